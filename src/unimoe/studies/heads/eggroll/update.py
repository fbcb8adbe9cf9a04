"""A step from its fitness: shaping, the estimated gradient, and the scale of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unimoe.studies.heads.eggroll.noise import Perturbations

Shaping = Literal["rank", "zscore", "combined", "none"]
SigmaRule = Literal["relative", "absolute"]


def shape(fitness: Tensor, how: Shaping = "rank") -> Tensor:
    """Make fitness comparable from step to step; each last dimension is shaped by itself.

    ``rank``      average ranks from -0.5 to 0.5, so that ties weigh the same and nothing but order counts
    ``zscore``    zero mean and unit (population) standard deviation
    ``combined``  ranks of z-scores, which are the ranks: z-scores keep the order
    ``none``      unchanged

    Equal fitness is shaped to exactly 0 (except by ``none``): nothing was learned, so no step is taken.
    """
    if how == "none":
        return fitness
    count = fitness.shape[-1]
    if how in ("rank", "combined"):
        return average_ranks(fitness) / max(1, count - 1) - 0.5 * (count > 1)
    centred = fitness - fitness.mean(dim=-1, keepdim=True)
    # The mean of equal numbers may differ from them by its rounding, which a division by its own size would blow up.
    centred = torch.where(fitness.amax(dim=-1, keepdim=True) == fitness.amin(dim=-1, keepdim=True), 0.0, centred)
    spread = centred.square().mean(dim=-1, keepdim=True).sqrt()
    return centred / torch.where(spread == 0, 1.0, spread)


def average_ranks(values: Tensor) -> Tensor:
    """Return ranks from 0, ascending, along the last dimension; equal values share the mean of their places."""
    values = values.contiguous()
    ordered = values.sort(dim=-1).values
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to - 1).to(values.dtype) / 2


def estimate(perturbations: Perturbations, fitness: Tensor, sigma: float, *, seed_scale: bool = False) -> Tensor:
    """Estimate the gradient of the mean fitness as ``1 / (2 M sigma) sum_j (f+_j - f-_j) E_j``, ``(D_out, D_in)``.

    Args:
        perturbations: the step's M directions.
        fitness: ``(2M,)``, raw or shaped, in the order of ``Scorer.blocks``.
        sigma: the scale of the directions.
        seed_scale: leave out ``1 / sigma``, as the original's recipe does. The length of its steps then follows sigma,
            which only clipping or an optimizer that is free of scale hides.
    """
    plus, minus = fitness.chunk(2)
    scale = 1 / len(fitness) if seed_scale else 1 / (len(fitness) * sigma)
    return perturbations.weighted_sum((plus - minus) * scale)


def relative_sigma(sigma: float, weight: Tensor) -> float:
    """Return the size of a perturbation over the size of the weight: ``sigma sqrt(D_out D_in) / |W|``."""
    return sigma * math.sqrt(weight.numel()) / float(torch.linalg.vector_norm(weight))


def sigma_for(relative: float, weight: Tensor) -> float:
    """Return the sigma whose ``relative_sigma`` is ``relative``."""
    return relative * float(torch.linalg.vector_norm(weight)) / math.sqrt(weight.numel())


def relative_spread(fitness: Tensor) -> float:
    """Return the standard deviation of ``f+ - f-`` over the mean of raw fitness ``(2M,)``; 0 where the mean is 0."""
    plus, minus = fitness.double().chunk(2)
    mean = abs(float(fitness.double().mean()))
    return 0.0 if mean == 0 else float((plus - minus).std(correction=0)) / mean


@dataclass
class Sigma:
    """A scale of the noise that adapts, so that perturbations change the fitness neither hardly nor beyond recognition.

    ``relative`` steers ``relative_spread`` towards ``target``: the spread of ``f+ - f-`` grows with sigma, and as a
    share of the fitness one target serves collections whose nDCG is 0.1 and 0.9. (The share of directions that change
    any ranking would not do: over some thirty queries it is 1 long before a perturbation is too large.) Every step
    multiplies sigma by ``target / spread``, but by no more than ``1 + rate`` and no less than ``1 / (1 + rate)``, and
    keeps ``relative_sigma`` between ``lowest`` and ``highest``.

    ``absolute`` is the original's rule: times ``1 + rate`` where the variance of ``f+ - f-`` is below half the target,
    ``1 - rate`` where it is above twice. With its target of 0.1 and variances around 0.0005, sigma only grows up to
    ``highest``. The original has no such bound, which is ``highest = inf``.

    Attributes:
        value: sigma.
        rule: ``relative`` or ``absolute``.
        target: of the spread, or of the variance.
        rate: the largest relative change in a step.
        lowest: of the relative sigma.
        highest: of the relative sigma under both rules; at 1 a perturbation is as large as the weight.
    """

    value: float
    rule: SigmaRule = "relative"
    target: float = 0.05
    rate: float = 0.05
    lowest: float = 1e-3
    highest: float = 1.0

    def adapt(self, fitness: Tensor, weight: Tensor) -> float:
        """Change sigma after a step, by its raw fitness ``(2M,)`` and the weight after it; return the new sigma."""
        if self.rule == "relative":
            spread = relative_spread(fitness)
            factor = 1 + self.rate if spread == 0 else self.target / spread
            value = self.value * min(max(factor, 1 / (1 + self.rate)), 1 + self.rate)
            self.value = min(max(value, sigma_for(self.lowest, weight)), sigma_for(self.highest, weight))
            return self.value
        plus, minus = fitness.double().chunk(2)
        variance = float((plus - minus).var())
        if variance < 0.5 * self.target:
            self.value = max(self.value, min(self.value * (1 + self.rate), sigma_for(self.highest, weight)))
        elif variance > 2 * self.target:
            self.value *= 1 - self.rate
        return self.value
