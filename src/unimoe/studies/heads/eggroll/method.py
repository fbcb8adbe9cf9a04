"""The methods that train a head by evolution: weights perturbed, scores perturbed, or gradients after evolution.

All randomness depends on seed and step alone, so that a resumed training takes the same steps.

A step comes from its fitness: shaping, the estimated gradient, and the scale of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.fp4 import FourBit
from unimoe.studies.heads.eggroll.genetic import Genetic
from unimoe.studies.heads.eggroll.noise import Perturbations, directions, product_directions, score_noise
from unimoe.studies.heads.eggroll.objectives import Objectives
from unimoe.studies.heads.eggroll.scoring import HeadScorer, base_scores
from unimoe.studies.heads.methods import Ascent, GradientMethod, Method
from unimoe.studies.heads.pools import PoolBatch, PoolSet
from unimoe.training.losses.sampled import score_space_gradient, spread_of

_ORIGINAL_TARGET = 0.1  # the variance of f+ - f- in the original's rule for sigma
Shaping = Literal["rank", "zscore", "combined", "none"]
SigmaRule = Literal["relative", "absolute"]


def evolution(config: TrainConfig, weight: Tensor, train: PoolSet) -> Method:
    """Make the method of a config that trains by evolution: ``eggroll``, ``score_es``, ``genetic`` or ``hybrid``.

    ``weight`` is the head before training, ``(D_out, D)``, on the device of the training pools.
    """
    objectives = Objectives(config, train)
    method: Method
    if config.method == "genetic":
        return Genetic(config, objectives)  # which has a population in four bits of its own
    if config.method == "score_es":
        method = ScoreEvolution(config, objectives)
    else:
        method = WeightEvolution(config, weight, objectives)
    if config.method == "hybrid":
        gradient = GradientMethod(config, config.gradient_method, config.gradient_learning_rate)
        method = Hybrid(method, gradient, config.handoff)
    return FourBit(method, config.seed) if config.precision == "fp4" else method


class WeightEvolution:
    """EGGROLL: low-rank perturbations of the weights, the fitness of each, and a step along their weighted sum.

    The fitness is the mean of ``Objectives`` over the batch's queries. Where no direction's two perturbations differ in
    fitness, nothing was learned: weights and the optimizer's moments stay unchanged. An adaptive sigma starts
    relative to the given weight.
    """

    def __init__(self, config: TrainConfig, weight: Tensor, objectives: Objectives) -> None:
        self._config, self._objectives, self._ascent = config, objectives, Ascent(config)
        self._scorer = HeadScorer(config.scoring, gemm_dtype=torch.bfloat16 if config.precision == "bfloat16" else None)
        self._sigma: Sigma | None = None
        if config.adaptive_sigma and config.sigma_is == "relative":
            self._sigma = Sigma(_absolute_sigma(config, sigma_for(1.0, weight)))
        elif config.adaptive_sigma:
            # The original has no bound; from here on, noise alone would decide the step.
            highest = 1 / torch.finfo(torch.float32).eps if config.seed_scale else 1.0
            self._sigma = Sigma(config.sigma, "absolute", target=_ORIGINAL_TARGET, highest=highest)

    @torch.no_grad()
    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step; see ``Method``."""
        config, perturbations = self._config, self._perturbations(weight, step)
        sigma = self._sigma.value if self._sigma else _absolute_sigma(config, sigma_for(1.0, weight))
        values = self._objectives.means(batch, self._scorer.blocks(weight, batch, perturbations, sigma))
        fitness = self._objectives.total(values)
        gradient = estimate(perturbations, shape(fitness, config.shaping_method), sigma, seed_scale=config.seed_scale)
        tied = _tied(fitness)
        moved, facts = _climb(self._ascent, weight, gradient, informed=tied < 1)
        facts |= {
            "fitness": float(fitness.mean()),
            "fitness_spread": float(fitness.std(correction=0)),
            "tied": tied,
            "sigma": sigma,
            "sigma_relative": relative_sigma(sigma, weight),
        }
        if len(values) > 1:
            facts |= {name: float(value.mean()) for name, value in values.items()}
        if self._sigma is not None:
            self._sigma.adapt(fitness, moved)
        return moved, facts

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments, and an adaptive sigma."""
        tensors = self._ascent.state()
        if self._sigma is not None:
            # As the bits of its 64: not every device has numbers of that precision.
            tensors["sigma"] = torch.tensor(self._sigma.value, dtype=torch.float64).view(torch.int64)
        return tensors

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        if self._sigma is not None:
            self._sigma.value = float(state["sigma"].cpu().view(torch.float64))
        self._ascent.load_state({name: value for name, value in state.items() if name != "sigma"})

    def _perturbations(self, weight: Tensor, step: int) -> Perturbations:
        config, (d_out, d_in), count = self._config, weight.shape, self._config.population_size // 2
        if config.grid:
            sizes = product_sizes(count, d_out, d_in)
            return product_directions(config.seed, step, *sizes, d_out, d_in, device=weight.device)
        return directions(config.seed, step, count, d_out, d_in, rank=config.noise_rank, device=weight.device)


class ScoreEvolution:
    """Perturbs the scores of each pool, and returns from them to the weights by exact derivatives of the head.

    The estimate has as many dimensions as a pool has documents, not as the head has weights. A relative sigma is
    relative to the standard deviation of the scores in a pool. The metrics are not shaped: their size says how much
    there is to gain for a query. Of the objectives, relevance alone is used.
    """

    def __init__(self, config: TrainConfig, objectives: Objectives) -> None:
        self._config, self._objectives, self._ascent = config, objectives, Ascent(config)
        self.state, self.load_state = self._ascent.state, self._ascent.load_state

    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step; see ``Method``."""
        config, parameter = self._config, weight.detach().requires_grad_()
        scores = base_scores(parameter, batch, config.scoring)
        fixed = scores.detach()
        spread = spread_of(fixed, batch.valid)
        sigma = _absolute_sigma(config, spread)
        noise = score_noise(config.seed, step, config.population_size // 2, fixed)
        slopes, found = score_space_gradient(fixed, self._objectives.relevance(batch), sigma, noise)
        (gradient,) = torch.autograd.grad(scores, parameter, slopes)
        moved, facts = _climb(self._ascent, weight, gradient, informed=bool(slopes.any()))
        facts |= {
            "fitness": float(found.mean()),
            "fitness_spread": float(found.mean(0).std(correction=0)),
            "tied": _tied(found.T),
            "sigma": sigma,
        }
        return moved, facts | ({"sigma_relative": sigma / spread} if spread > 0 else {})


class Hybrid:
    """Trains by evolution first and by gradients after, to see whether evolution finds a better start for gradients.

    The second method starts afresh, without moments of the first, and takes the steps from number ``handoff`` on,
    counted from 0.
    """

    def __init__(self, first: Method, second: Method, handoff: int) -> None:
        self._parts, self._handoff = {"first": first, "second": second}, handoff

    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step of the method that has its turn; see ``Method``."""
        return self._parts["first" if step < self._handoff else "second"].step(weight, batch, step)

    def state(self) -> dict[str, Tensor]:
        """Return the state of both methods."""
        return {f"{part}.{key}": value for part, one in self._parts.items() for key, value in one.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for part, method in self._parts.items():
            method.load_state({k.removeprefix(f"{part}."): v for k, v in state.items() if k.startswith(f"{part}.")})


def product_sizes(count: int, outputs: int, inputs: int) -> tuple[int, int]:
    """Return how many b-vectors and a-vectors make ``count`` product directions with the least error.

    A prime number above 3, which only a single vector on one side divides, is refused.
    """
    splits = [(split, count // split) for split in range(1, count + 1) if count % split == 0]
    if count > 3 and len(splits) == 2:
        raise UsageError(f"grid: half of population_size {2 * count} is a prime number; use 256, or one with divisors")
    return min(splits, key=lambda split: (1 + (outputs + 1) / split[1]) * (1 + (inputs + 1) / split[0]))


def _climb(ascent: Ascent, weight: Tensor, gradient: Tensor, *, informed: bool) -> tuple[Tensor, dict[str, float]]:
    """Take the optimizer's step, or none where the fitness was tied: Adam's momentum would move the weight still."""
    if not informed:
        return weight, {"gradient_norm": 0.0, "update_norm": 0.0}
    moved, norm = ascent.step(weight, gradient)
    return moved, {"gradient_norm": norm, "update_norm": float(torch.linalg.vector_norm(moved - weight))}


def _absolute_sigma(config: TrainConfig, unit: float) -> float:
    sigma = config.sigma * (unit if config.sigma_is == "relative" else 1.0)
    if sigma == 0 or math.isnan(sigma):
        raise DataError(f"sigma relative to weights or scores that do not differ is {sigma}; set sigma_is absolute")
    return sigma


def _tied(fitness: Tensor) -> float:
    """Return the share of directions with two perturbations of equal fitness ``(2M, ...)``."""
    plus, minus = fitness.chunk(2)
    return float((plus == minus).double().mean())


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
        fitness: ``(2M,)``, raw or shaped, in the order of ``HeadScorer.blocks``.
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
    """Return the sigma with ``relative`` as its ``relative_sigma``."""
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
    share of the fitness one target serves collections with nDCG 0.1 and 0.9. (The share of directions that change
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
