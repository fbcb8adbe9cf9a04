"""The estimate of the gradient from the fitness of a step, the step along it, and the scale of the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from unimoe.errors import DataError, UsageError
from unimoe.studies.heads.eggroll.perturbations import Perturbations

OptimizerName = Literal["sgd", "adam"]
SigmaRule = Literal["fixed", "relative", "absolute"]


def estimate(perturbations: Perturbations, fitness: Tensor, sigma: float, *, seed_scale: bool = False) -> Tensor:
    """The antithetic estimate ``1 / (2 M sigma) sum_j (f+_j - f-_j) E_j`` of the gradient of the mean fitness.

    Args:
        perturbations: the step's M directions.
        fitness: ``(2M,)``, raw or shaped, in the order of ``Scorer.blocks``.
        sigma: what the directions were scaled with.
        seed_scale: leave out ``1 / sigma``: what the recipe that this package grew out of does. The length of its
            steps then follows sigma, which only an optimizer that is free of scale, or clipping, hides.

    Returns:
        ``(D_out, D_in)``, the direction to go in for more fitness.
    """
    plus, minus = fitness.chunk(2)
    scale = 1 / len(fitness) if seed_scale else 1 / (len(fitness) * sigma)
    return perturbations.weighted_sum((plus - minus) * scale)


class Ascent:
    """Steps of SGD or Adam towards more fitness, with clipping and decoupled weight decay.

    Args:
        name: ``sgd``, or ``adam`` (Kingma & Ba 2015).
        learning_rate: the length of a step where ``step`` is given none.
        max_norm: gradients are scaled down to this Frobenius norm; None for no clipping.
        weight_decay: decoupled, as in Loshchilov & Hutter 2019.
        betas: decay of Adam's moments.
        epsilon: Adam's.

    Raises:
        UsageError: an unknown optimizer.
    """

    def __init__(
        self,
        name: OptimizerName,
        learning_rate: float,
        *,
        max_norm: float | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        if name not in get_args(OptimizerName):
            raise UsageError(f"optimizer {name!r}: unknown; use {' or '.join(get_args(OptimizerName))}")
        self._adam, self._learning_rate, self._max_norm = name == "adam", learning_rate, max_norm
        self._weight_decay, self._betas, self._epsilon = weight_decay, betas, epsilon
        self._steps, self._first, self._second = 0, torch.zeros(()), torch.zeros(())

    @torch.no_grad()
    def step(self, weight: Tensor, gradient: Tensor, learning_rate: float | None = None) -> float:
        """Move the weight in place.

        Args:
            weight: ``(D_out, D_in)``.
            gradient: of the fitness, the same shape.
            learning_rate: of this step, for schedules.

        Returns:
            The gradient's norm before clipping.

        Raises:
            DataError: the gradient is not finite; the weight is as it was.
        """
        rate = self._learning_rate if learning_rate is None else learning_rate
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            raise DataError(f"step {self._steps + 1}: the gradient's norm is {norm}; lower the learning rate or sigma")
        if self._max_norm is not None and norm > self._max_norm:
            gradient = gradient * (self._max_norm / norm)
        self._steps += 1
        if self._weight_decay:
            weight.mul_(1 - rate * self._weight_decay)
        if self._adam:
            self._adam_step(weight, gradient, rate)
        else:
            weight.add_(gradient, alpha=rate)
        return norm

    def _adam_step(self, weight: Tensor, gradient: Tensor, rate: float) -> None:
        if self._first.ndim == 0:
            self._first, self._second = torch.zeros_like(gradient), torch.zeros_like(gradient)
        fast, slow = self._betas
        self._first.lerp_(gradient, 1 - fast)
        self._second.mul_(slow).addcmul_(gradient, gradient, value=1 - slow)
        root = self._second.sqrt().div_(math.sqrt(1 - slow**self._steps)).add_(self._epsilon)
        weight.addcdiv_(self._first, root, value=rate / (1 - fast**self._steps))

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as plain tensors."""
        return {"steps": torch.tensor(self._steps), "first": self._first.clone(), "second": self._second.clone()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        self._steps = int(tensors["steps"])
        self._first, self._second = tensors["first"].clone(), tensors["second"].clone()


def relative_sigma(sigma: float, weight: Tensor) -> float:
    """The size of a perturbation over the size of what it perturbs: ``sigma sqrt(D_out D_in) / |W|``."""
    return sigma * math.sqrt(weight.numel()) / float(torch.linalg.vector_norm(weight))


def sigma_for(relative: float, weight: Tensor) -> float:
    """The sigma whose ``relative_sigma`` is ``relative``."""
    return relative * float(torch.linalg.vector_norm(weight)) / math.sqrt(weight.numel())


def relative_spread(fitness: Tensor) -> float:
    """The standard deviation of ``f+ - f-`` over the mean fitness; 0 where the mean is 0.

    Args:
        fitness: raw, ``(2M,)``.
    """
    plus, minus = fitness.double().chunk(2)
    mean = abs(float(fitness.double().mean()))
    return 0.0 if mean == 0 else float((plus - minus).std(correction=0)) / mean


@dataclass
class Sigma:
    """The scale of the noise, kept so that perturbations change the fitness neither hardly nor beyond recognition.

    ``relative`` steers ``relative_spread`` towards ``target``: the spread of ``f+ - f-`` grows with sigma, and as a
    share of the fitness one target serves collections whose nDCG is 0.1 and 0.9. (The share of directions that change
    any ranking would not do: over some thirty queries it is 1 long before a perturbation is too large.) Every step
    multiplies sigma by ``target / spread``, but by no more than ``1 + rate`` and no less than ``1 / (1 + rate)``, and
    keeps ``relative_sigma`` between ``lowest`` and ``highest``.

    ``absolute`` is the recipe that this package grew out of: times ``1 + rate`` where the variance of ``f+ - f-`` is
    below half the target, ``1 - rate`` where it is above twice. With its target of 0.1 and variances around 0.0005,
    sigma only grows, until ``highest`` ends it: that recipe names no end, and has it at infinity.

    Attributes:
        value: sigma.
        rule: ``fixed``, ``relative`` or ``absolute``.
        target: of the spread, or of the variance.
        rate: of a step.
        lowest: of the relative sigma.
        highest: of the relative sigma under both rules; at 1 a perturbation is as large as the weight.
    """

    value: float
    rule: SigmaRule = "relative"
    target: float = 0.05
    rate: float = 0.05
    lowest: float = 1e-3
    highest: float = 1.0

    def __post_init__(self) -> None:
        if self.rule not in get_args(SigmaRule):
            raise UsageError(f"sigma's rule {self.rule!r}: unknown; use {', '.join(get_args(SigmaRule))}")
        if not (math.isfinite(self.value) and self.value > 0):
            raise UsageError(f"sigma is {self.value}; it must be above 0")

    def adapt(self, fitness: Tensor, weight: Tensor) -> float:
        """Change sigma after a step.

        Args:
            fitness: raw, ``(2M,)``.
            weight: after the step.

        Returns:
            The new sigma.
        """
        if self.rule == "relative":
            spread = relative_spread(fitness)
            factor = 1 + self.rate if spread == 0 else self.target / spread
            value = self.value * min(max(factor, 1 / (1 + self.rate)), 1 + self.rate)
            self.value = min(max(value, sigma_for(self.lowest, weight)), sigma_for(self.highest, weight))
        elif self.rule == "absolute":
            plus, minus = fitness.double().chunk(2)
            variance = float((plus - minus).var())
            if variance < 0.5 * self.target:
                grown, highest = self.value * (1 + self.rate), sigma_for(self.highest, weight)
                self.value = max(self.value, min(grown, highest))
            elif variance > 2 * self.target:
                self.value *= 1 - self.rate
        return self.value

    def state(self) -> dict[str, float]:
        """Everything that changes."""
        return {"value": self.value}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what ``state`` returned."""
        self.value = float(state["value"])
