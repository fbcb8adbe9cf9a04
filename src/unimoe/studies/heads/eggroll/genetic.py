"""A genetic algorithm over whole heads: tournaments, crossover, low-rank mutation, elites."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.fp4 import Packed, dequantize, quantize, rounding_chances
from unimoe.studies.heads.eggroll.noise import directions, generator
from unimoe.studies.heads.eggroll.objectives import Objectives
from unimoe.studies.heads.eggroll.scoring import base_scores
from unimoe.studies.heads.pools import PoolBatch
from unimoe.training.steps import overflow


class Genetic:
    """A population of heads; a step is a generation.

    The first population is the given head and mutations of it. A step judges all individuals, elites too, on its
    batch, returns the best of them, and breeds the next population: the elites unchanged, the best first, and children.
    A parent is the best of a few drawn at random. A child is ``t W1 + (1 - t) W2`` of two parents, or a copy of one,
    and always mutates by ``W + s a b^T``, with normal a and b and s relative to the weights.

    The head that a step returns is the best on that step's queries, so a lucky one may pass for a good one: the larger
    the batch, the less. The next step ignores it, for the population holds it already.

    In four bits a child is encoded once, with stochastic rounding, and an elite keeps its codes: encoded again, it
    could get other block scales and change.

    Args:
        config: ``genetic``, ``scoring``, ``precision`` and the seed are used.
        objectives: their weighted sum is the fitness.
    """

    def __init__(self, config: TrainConfig, objectives: Objectives) -> None:
        self._config, self._objectives = config, objectives
        self._held: Tensor | Packed | None = None

    @torch.no_grad()
    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Breed one generation; see ``Method``."""
        if self._held is None:
            count = self._config.genetic.individuals
            mutated = self._mutated(weight.expand(count - 1, *weight.shape), step, first=count)
            heads = torch.cat([weight.unsqueeze(0), mutated])
            self._held = quantize(heads) if self._config.precision == "fp4" else heads
        population = dequantize(self._held) if isinstance(self._held, Packed) else self._held
        scores = torch.stack([base_scores(head, batch, self._config.scoring) for head in population], dim=2)
        values = self._objectives.means(batch, [(slice(0, len(scores)), scores)])
        fitness = self._objectives.total(values)
        # Stable: of equals the first is the better, so that an elite gives way only to an individual that beats it.
        order = fitness.argsort(descending=True, stable=True)
        best = population[order[0]].clone()
        facts = {
            "fitness": float(fitness[order[0]]),
            "fitness_mean": float(fitness.mean()),
            "fitness_spread": float(fitness.std(correction=0)),
            "best_individual": float(order[0]),
            "update_norm": float(torch.linalg.vector_norm(best - weight)),
        }
        elites, children = order[: self._config.genetic.elites], self._children(population, fitness, step)
        if isinstance(self._held, Packed):
            chances = rounding_chances("four bits of a population", self._config.seed, step, children)
            parts = zip(self._held[:3], quantize(children, chances)[:3], strict=True)
            codes, scales, scale = (torch.cat([old[elites], new]) for old, new in parts)
            self._held = Packed(codes, scales, scale, weight.shape[1])
            size = float(self._held.bytes)
            facts |= {"weight_bytes": size / len(population), "method_bytes": size}
        else:
            self._held = torch.cat([population[elites], children])
        if len(values) > 1:
            facts |= {name: float(value[order[0]]) for name, value in values.items()}
        return best, facts

    def state(self) -> dict[str, Tensor]:
        """Return the population, elites first."""
        if isinstance(self._held, Packed):
            return self._held.state()
        return {} if self._held is None else {"population": self._held}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._held = state.get("population", Packed.of_state(state))

    def _children(self, population: Tensor, fitness: Tensor, step: int) -> Tensor:
        settings = self._config.genetic
        chance = generator("breeding", self._config.seed, step)
        children = len(population) - settings.elites
        drawn = torch.from_numpy(chance.integers(len(population), size=(children, 2, settings.tournament)))
        drawn = drawn.to(fitness.device)
        winners = drawn.gather(2, fitness[drawn].argmax(2, keepdim=True)).squeeze(2)
        shares = np.where(chance.random(children) < settings.crossover, chance.random(children), 1.0)
        share = torch.from_numpy(shares).to(population.device, population.dtype).view(-1, 1, 1)
        bred = share * population[winners[:, 0]] + (1 - share) * population[winners[:, 1]]
        return self._mutated(bred, step)

    def _mutated(self, heads: Tensor, step: int, first: int = 0) -> Tensor:
        """Add a different rank-1 matrix to each of the heads ``(n, D_out, D)``."""
        count, outputs, inputs = heads.shape
        noise = directions(self._config.seed, step, count, outputs, inputs, first=first, device=heads.device)
        size = heads.flatten(1).square().mean(1).sqrt() * self._config.genetic.mutation
        mutated = heads + size.view(-1, 1, 1) * noise.a.transpose(1, 2) @ noise.b
        if overflow([mutated]):
            raise DataError("the weights of a mutation overflow; lower genetic.mutation")
        return mutated
