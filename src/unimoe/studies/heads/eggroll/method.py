"""The methods that train a head by evolution: weights perturbed, scores perturbed, or gradients after evolution.

All randomness depends on seed and step alone, so that a resumed training takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date

import torch
from torch import Tensor

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.fp4 import FourBit
from unimoe.studies.heads.eggroll.genetic import Genetic
from unimoe.studies.heads.eggroll.noise import directions, product_directions
from unimoe.studies.heads.eggroll.objectives import Objectives
from unimoe.studies.heads.eggroll.perturbations import Perturbations
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.score_space import score_noise, through_head
from unimoe.studies.heads.eggroll.scoring import Scorer, base_scores
from unimoe.studies.heads.eggroll.update import Ascent, Sigma, estimate, relative_sigma, shape, sigma_for
from unimoe.studies.heads.methods import GradientMethod, Method
from unimoe.studies.heads.pools import Batch, PoolSet
from unimoe.training.losses.sampling import spread_of
from unimoe.training.losses.score_space import score_space_gradient

_ORIGINAL_TARGET = 0.1  # the variance of f+ - f- in the original's rule for sigma


def evolution(
    config: TrainConfig,
    weight: Tensor,
    train: PoolSet,
    *,
    groups: Mapping[str, str] | None = None,
    dates: Mapping[str, date] | None = None,
) -> Method:
    """Make the method of a config that trains by evolution.

    Args:
        config: ``method`` is ``eggroll``, ``score_es``, ``genetic`` or ``hybrid``.
        weight: the head before training, ``(D_out, D)``.
        train: the training pools, on the weight's device.
        groups: document id to group, for the objective ``fairness``; by default the first stage's upper and lower half.
        dates: document id to date, for the objective ``freshness``.

    Raises:
        UsageError: freshness without dates, or a method that is no evolution.
        DataError: a document without a group or date.
    """
    objectives = Objectives(config, train, groups=groups, dates=dates)
    method: Method
    if config.method == "eggroll":
        method = WeightEvolution(config, weight, objectives)
    elif config.method == "score_es":
        method = ScoreEvolution(config, objectives)
    elif config.method == "genetic":
        method = Genetic(config, objectives)
    elif config.method == "hybrid":
        gradient = GradientMethod(config, config.gradient_method, config.gradient_learning_rate, weight)
        method = Hybrid(WeightEvolution(config, weight, objectives), gradient, config.handoff)
    else:
        raise UsageError(f"method {config.method!r} is no evolution; use eggroll, score_es, genetic or hybrid")
    wraps = config.precision == "fp4" and config.method != "genetic"  # whose population is in four bits already
    return FourBit(method, config.seed) if wraps else method


class WeightEvolution:
    """EGGROLL: low-rank perturbations of the weights, the fitness of each, and a step along their weighted sum.

    The fitness is the mean of ``Objectives`` over the batch's queries. Where no direction's two perturbations differ in
    fitness, nothing was learned: weights and the optimizer's moments stay unchanged. An adaptive sigma starts
    relative to the given weight.
    """

    def __init__(self, config: TrainConfig, weight: Tensor, objectives: Objectives) -> None:
        self._config, self._objectives = config, objectives
        gemm = torch.bfloat16 if config.precision == "bfloat16" else None
        self._scorer = Scorer(config.scoring, gemm_dtype=gemm)
        self._optimizer = _optimizer(config)
        self._sigma: Sigma | None = None
        if config.adaptive_sigma and config.sigma_is == "relative":
            self._sigma = Sigma(_positive(sigma_for(config.sigma, weight)), "relative")
        elif config.adaptive_sigma:
            highest = math.inf if config.seed_scale else 1.0
            self._sigma = Sigma(config.sigma, "absolute", target=_ORIGINAL_TARGET, highest=highest)

    @torch.no_grad()
    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step; see ``Method``."""
        config, perturbations, sigma = self._config, self._perturbations(weight, step), self._scale(weight)
        values = self._values(weight, batch, perturbations, sigma)
        fitness = self._objectives.total(values)
        shaped = shape(fitness, config.shaping_method)
        gradient = estimate(perturbations, shaped, sigma, seed_scale=config.seed_scale)
        tied = _tied(fitness)
        moved, facts = _climb(self._optimizer, weight, gradient, informed=tied < 1)
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
        tensors = self._optimizer.state()
        if self._sigma is not None:
            # As the bits of its 64: not every device has numbers of that precision.
            tensors["sigma"] = torch.tensor(self._sigma.value, dtype=torch.float64).view(torch.int64)
        return tensors

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._optimizer.load_state(state)
        if self._sigma is not None:
            self._sigma.value = float(state["sigma"].cpu().view(torch.float64))

    def _values(self, weight: Tensor, batch: Batch, directions: Perturbations, sigma: float) -> dict[str, Tensor]:
        """Return each objective's mean over the queries, ``(2M,)``."""
        of_batch, totals = self._objectives.of(batch), dict[str, Tensor]()
        pools = Pools(batch.queries, batch.documents, batch.valid)
        relevance = of_batch.relevance_alone
        if relevance is not None:
            return {"relevance": self._scorer.rated(weight, pools, directions, sigma, relevance).mean(dim=0)}
        for block, scores in self._scorer.blocks(weight, pools, directions, sigma):
            for name, value in of_batch.values(scores, block).items():
                totals[name] = totals[name] + value if name in totals else value
        return {name: total / len(batch.queries) for name, total in totals.items()}

    def _perturbations(self, weight: Tensor, step: int) -> Perturbations:
        config, (d_out, d_in), count = self._config, weight.shape, self._config.population_size // 2
        if config.grid:
            sizes = product_sizes(count, d_out, d_in)
            return product_directions(config.seed, step, *sizes, d_out, d_in, device=weight.device)
        return directions(config.seed, step, count, d_out, d_in, rank=config.noise_rank, device=weight.device)

    def _scale(self, weight: Tensor) -> float:
        if self._sigma is not None:
            return self._sigma.value
        return _absolute_sigma(self._config, sigma_for(1.0, weight))


class ScoreEvolution:
    """Perturbs the scores of each pool, and returns from them to the weights by exact derivatives of the head.

    The estimate has as many dimensions as a pool has documents, not as the head has weights. A relative sigma is
    relative to the standard deviation of the scores in a pool. The metrics are not shaped: their size says how much
    there is to gain for a query. Of the objectives, relevance alone is used.
    """

    def __init__(self, config: TrainConfig, objectives: Objectives) -> None:
        self._config, self._objectives = config, objectives
        self._optimizer = _optimizer(config)

    @torch.no_grad()
    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step; see ``Method``."""
        config, pools = self._config, Pools(batch.queries, batch.documents, batch.valid)
        scores = base_scores(weight, pools, config.scoring)
        spread = spread_of(scores, batch.valid)
        sigma = _absolute_sigma(config, spread)
        metric, count = self._objectives.relevance(batch), config.population_size // 2
        noise = score_noise(config.seed, step, count, scores)
        slopes, found = score_space_gradient(scores, metric, sigma, noise)
        gradient = through_head(slopes, weight, pools, config.scoring)
        moved, facts = _climb(self._optimizer, weight, gradient, informed=bool(slopes.any()))
        facts |= {
            "fitness": float(found.mean()),
            "fitness_spread": float(found.mean(0).std(correction=0)),
            "tied": _tied(found.T),
            "sigma": sigma,
        }
        return moved, facts | ({"sigma_relative": sigma / spread} if spread > 0 else {})

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments."""
        return self._optimizer.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._optimizer.load_state(state)


class Hybrid:
    """Trains by evolution first and by gradients after, to see whether evolution finds a better start for gradients.

    The second method starts afresh, without moments of the first, and takes the steps from number ``handoff`` on,
    counted from 0.
    """

    def __init__(self, first: Method, second: Method, handoff: int) -> None:
        self._first, self._second, self._handoff = first, second, handoff

    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step of the method whose turn it is; see ``Method``."""
        return (self._first if step < self._handoff else self._second).step(weight, batch, step)

    def state(self) -> dict[str, Tensor]:
        """Return the state of both methods."""
        parts = {"first": self._first.state(), "second": self._second.state()}
        return {f"{part}.{name}": value for part, state in parts.items() for name, value in state.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for part, method in (("first.", self._first), ("second.", self._second)):
            method.load_state({name.removeprefix(part): t for name, t in state.items() if name.startswith(part)})


def product_sizes(count: int, outputs: int, inputs: int) -> tuple[int, int]:
    """Return how many b-vectors and a-vectors make ``count`` product directions with the least error.

    Raises:
        UsageError: ``count`` is a prime number above 3, which only a single vector on one side divides.
    """
    splits = [(split, count // split) for split in range(1, count + 1) if count % split == 0]
    if count > 3 and len(splits) == 2:
        raise UsageError(f"grid: half of population_size {2 * count} is a prime number; use 256, or one with divisors")
    return min(splits, key=lambda split: (1 + (outputs + 1) / split[1]) * (1 + (inputs + 1) / split[0]))


def _optimizer(config: TrainConfig) -> Ascent:
    rate, decay = config.learning_rate, config.weight_decay
    return Ascent(config.optimizer, rate, max_norm=config.max_norm, weight_decay=decay)


def _climb(optimizer: Ascent, weight: Tensor, gradient: Tensor, *, informed: bool) -> tuple[Tensor, dict[str, float]]:
    """Take the optimizer's step, or none where the fitness was tied: Adam's momentum would move the weight still."""
    if not informed:
        return weight, {"gradient_norm": 0.0, "update_norm": 0.0}
    moved = weight.clone()
    norm = optimizer.step(moved, gradient)
    return moved, {"gradient_norm": norm, "update_norm": float(torch.linalg.vector_norm(moved - weight))}


def _absolute_sigma(config: TrainConfig, unit: float) -> float:
    return _positive(config.sigma * (unit if config.sigma_is == "relative" else 1.0))


def _positive(sigma: float) -> float:
    if not (math.isfinite(sigma) and sigma > 0):
        raise DataError(f"sigma relative to weights or scores that do not differ is {sigma}; set sigma_is absolute")
    return sigma


def _tied(fitness: Tensor) -> float:
    """Return the share of directions whose two perturbations have equal fitness ``(2M, ...)``."""
    plus, minus = fitness.chunk(2)
    return float((plus == minus).double().mean())
