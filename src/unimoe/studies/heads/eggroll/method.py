"""Evolution strategies that train a head: weights perturbed, or scores perturbed.

What the other modules of this package compute is put together here, as ``Method``s of the trainer. Everything random
hangs on seed and step alone, so that a resumed training takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date

import torch
from torch import Tensor

from unimoe.errors import DataError, UsageError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.fp4 import FourBit
from unimoe.studies.heads.eggroll.genetic import Genetic
from unimoe.studies.heads.eggroll.hybrid import Hybrid
from unimoe.studies.heads.eggroll.noise import directions, grid
from unimoe.studies.heads.eggroll.objectives import Objectives
from unimoe.studies.heads.eggroll.perturbations import Perturbations
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.score_space import score_space_gradient, through_head
from unimoe.studies.heads.eggroll.scoring import Scorer, base_scores
from unimoe.studies.heads.eggroll.shaping import shape
from unimoe.studies.heads.eggroll.update import Ascent, Sigma, estimate, relative_sigma, sigma_for
from unimoe.studies.heads.methods import GradientMethod, Method
from unimoe.studies.heads.pools import Batch, PoolSet

_SEED_TARGET = 0.1  # of the seed's rule for sigma: the variance of f+ - f-


def evolution(
    config: TrainConfig,
    weight: Tensor,
    train: PoolSet,
    *,
    groups: Mapping[str, str] | None = None,
    dates: Mapping[str, date] | None = None,
) -> Method:
    """The method of a config that trains by evolution.

    Args:
        config: ``method`` is ``eggroll``, ``score_es``, ``genetic`` or ``hybrid``.
        weight: the head that is going to be trained, ``(D_out, D)``.
        train: the pools that its batches are taken from, on the weight's device.
        groups: document id to group, for the objective ``fairness``; by default the first stage's upper and lower half.
        dates: document id to date, for the objective ``freshness``.

    Raises:
        UsageError: settings that do not go together, freshness without dates, or a method that is no evolution.
        DataError: a document without a group or date.
    """
    _refuse_clashes(config)
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
    return FourBit(method, config.seed) if config.precision == "fp4" else method


class WeightEvolution:
    """EGGROLL: low-rank perturbations of the weights, the fitness of each, and a step along their weighted sum.

    The fitness is the mean over the batch's queries of ``Objectives``. Where no direction's two perturbations differ in
    fitness, nothing was learned: weights and the optimizer's moments stay as they are.

    Args:
        config: what is perturbed and how; ``precision`` bfloat16 is that of the products with the directions.
        weight: the head that is going to be trained; an adaptive sigma starts relative to it.
        objectives: of the training.
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
            self._sigma = Sigma(config.sigma, "absolute", target=_SEED_TARGET, highest=highest)

    @torch.no_grad()
    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """One generation; see ``Method``."""
        config, perturbations, sigma = self._config, self._perturbations(weight, step), self._scale(weight)
        values = self._values(weight, batch, perturbations, sigma)
        fitness = self._objectives.total(values)
        plus, minus = fitness.chunk(2)
        shaped = shape(fitness, config.shaping_method)
        gradient = estimate(perturbations, shaped, sigma, seed_scale=config.seed_scale)
        moved, facts = _climb(self._optimizer, weight, gradient, informed=bool((plus != minus).any()))
        facts |= {
            "fitness": float(fitness.mean()),
            "fitness_spread": float(fitness.std(correction=0)),
            "tied": float((plus == minus).double().mean()),
            "sigma": sigma,
            "sigma_relative": relative_sigma(sigma, weight),
        }
        if len(values) > 1:
            facts |= {name: float(value.mean()) for name, value in values.items()}
        if self._sigma is not None:
            self._sigma.adapt(fitness, moved)
        return moved, facts

    def state(self) -> dict[str, Tensor]:
        """The optimizer's moments, and sigma where it adapts."""
        tensors = self._optimizer.state()
        if self._sigma is not None:
            # As the bits of its 64: not every device has numbers of that precision.
            tensors["sigma"] = torch.tensor(self._sigma.value, dtype=torch.float64).view(torch.int64)
        return tensors

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take them back."""
        self._optimizer.load_state(state)
        if self._sigma is not None:
            self._sigma.value = float(state["sigma"].cpu().view(torch.float64))

    def _values(self, weight: Tensor, batch: Batch, directions: Perturbations, sigma: float) -> dict[str, Tensor]:
        """Each objective's mean over the queries, ``(2M,)``."""
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
        config, (outputs, inputs) = self._config, weight.shape
        count = config.population_size // 2
        if config.grid:
            return grid(config.seed, step, *grid_sizes(count, outputs, inputs), outputs, inputs, device=weight.device)
        rank = config.noise_rank
        return directions(config.seed, step, count, outputs, inputs, rank=rank, device=weight.device)

    def _scale(self, weight: Tensor) -> float:
        if self._sigma is not None:
            return self._sigma.value
        return _positive(_size(self._config, sigma_for(1.0, weight)))


class ScoreEvolution:
    """Perturbs the scores of each pool, and goes back from them to the weights by exact derivatives of the head.

    The estimate has as many dimensions as a pool has documents, not as the head has weights. A relative sigma is one
    relative to the standard deviation of the scores in a pool. The metrics are not shaped: their size says how much
    there is to gain for a query.

    Args:
        config: what is perturbed and how.
        objectives: of the training; relevance alone.
    """

    def __init__(self, config: TrainConfig, objectives: Objectives) -> None:
        self._config, self._objectives = config, objectives
        self._optimizer = _optimizer(config)

    @torch.no_grad()
    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """One generation; see ``Method``."""
        config, pools = self._config, Pools(batch.queries, batch.documents, batch.valid)
        scores = base_scores(weight, pools, config.scoring)
        spread = _pool_spread(scores, batch.valid)
        sigma = _positive(_size(config, spread))
        metric, count = self._objectives.relevance(batch), config.population_size // 2
        slopes, found = score_space_gradient(scores, metric, sigma, seed=config.seed, step=step, count=count)
        gradient = through_head(slopes, weight, pools, config.scoring)
        moved, facts = _climb(self._optimizer, weight, gradient, informed=bool(slopes.any()))
        plus, minus = found.chunk(2, dim=1)
        facts |= {
            "fitness": float(found.mean()),
            "fitness_spread": float(found.mean(0).std(correction=0)),
            "tied": float((plus == minus).double().mean()),
            "sigma": sigma,
        }
        return moved, facts | ({"sigma_relative": sigma / spread} if spread > 0 else {})

    def state(self) -> dict[str, Tensor]:
        """The optimizer's moments."""
        return self._optimizer.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take them back."""
        self._optimizer.load_state(state)


def grid_sizes(count: int, outputs: int, inputs: int) -> tuple[int, int]:
    """How many b-vectors and how many a-vectors make a grid of ``count`` directions with the least error.

    Raises:
        UsageError: ``count`` is a prime number above 3, which only a single vector on one side divides.
    """
    splits = [(split, count // split) for split in range(1, count + 1) if count % split == 0]
    if count > 3 and len(splits) == 2:
        raise UsageError(f"grid: half of population_size {2 * count} is a prime number; use 256, or one with divisors")
    return min(splits, key=lambda split: (1 + (outputs + 1) / split[1]) * (1 + (inputs + 1) / split[0]))


def _refuse_clashes(config: TrainConfig) -> None:
    """Settings that a method would ignore and whose results would then pass for what they are not."""
    if config.precision == "bfloat16" and config.method not in ("eggroll", "hybrid"):
        raise UsageError(f"precision bfloat16 is for eggroll and hybrid; {config.method} computes in float32")
    if config.precision == "fp4" and config.method == "genetic":
        raise UsageError("precision fp4: a population is kept in float32; use eggroll, score_es or hybrid")
    if config.adaptive_sigma and config.method == "score_es":
        raise UsageError("adaptive_sigma: score_es has a relative sigma that follows the scores; leave it out")
    if config.grid and config.noise_rank > 1:
        raise UsageError(f"grid: its directions have rank 1, noise_rank is {config.noise_rank}; choose one of the two")


def _optimizer(config: TrainConfig) -> Ascent:
    rate, decay = config.learning_rate, config.weight_decay
    return Ascent(config.optimizer, rate, max_norm=config.max_norm, weight_decay=decay)


def _climb(optimizer: Ascent, weight: Tensor, gradient: Tensor, *, informed: bool) -> tuple[Tensor, dict[str, float]]:
    """Take the optimizer's step, or none where the fitness was tied: Adam would go on by its momentum alone."""
    if not informed:
        return weight, {"gradient_norm": 0.0, "update_norm": 0.0}
    moved = weight.clone()
    norm = optimizer.step(moved, gradient)
    return moved, {"gradient_norm": norm, "update_norm": float(torch.linalg.vector_norm(moved - weight))}


def _size(config: TrainConfig, unit: float) -> float:
    return config.sigma * (unit if config.sigma_is == "relative" else 1.0)


def _positive(sigma: float) -> float:
    if not (math.isfinite(sigma) and sigma > 0):
        raise DataError(f"sigma relative to weights or scores that do not differ is {sigma}; set sigma_is absolute")
    return sigma


def _pool_spread(scores: Tensor, valid: Tensor) -> float:
    """Standard deviation of the scores in a pool, averaged over the pools as variances are."""
    count = valid.sum(1, keepdim=True).clamp(min=1)
    inside = scores.masked_fill(~valid, 0)
    apart = (inside - inside.sum(1, keepdim=True) / count).masked_fill(~valid, 0)
    return math.sqrt(float((apart.square().sum(1, keepdim=True) / count).mean()))
