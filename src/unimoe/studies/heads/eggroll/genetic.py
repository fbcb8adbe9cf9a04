"""A genetic algorithm over whole heads: tournaments, crossover, low-rank mutation, elites."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.chance import generator
from unimoe.studies.heads.eggroll.noise import directions
from unimoe.studies.heads.eggroll.objectives import Objectives
from unimoe.studies.heads.eggroll.population import Population
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.scoring import base_scores
from unimoe.studies.heads.pools import Batch


class Genetic:
    """A population of heads; a step is a generation.

    The first population is the given head and mutations of it. A step judges all individuals, elites too, on its
    batch, returns the best of them, and breeds the next population: the elites unchanged, the best first, and children.
    A parent is the best of a few drawn at random. A child is ``t W1 + (1 - t) W2`` of two parents, or a copy of one,
    and always mutates by ``W + s a b^T``, with normal a and b and s relative to the weights.

    The head that a step returns is the best on that step's queries, so a lucky one may pass for a good one: the larger
    the batch, the less. The next step ignores it, for the population holds it already.

    Args:
        config: ``genetic``, ``scoring``, ``precision`` and the seed are used.
        objectives: their weighted sum is the fitness.
    """

    def __init__(self, config: TrainConfig, objectives: Objectives) -> None:
        self._config, self._objectives = config, objectives
        self._population = Population(four_bits=config.precision == "fp4", seed=config.seed)

    @torch.no_grad()
    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Breed one generation; see ``Method``."""
        population = self._population.heads
        if population is None:
            count = self._config.genetic.individuals
            copies = weight.expand(count - 1, *weight.shape)
            mutated = self._mutated(copies, step, first=count)
            population = self._population.fill(torch.cat([weight.unsqueeze(0), mutated]))
        values = self._values(population, batch)
        fitness = self._objectives.total(values)
        # Stable: of equals the first is the better, so that an elite gives way only to an individual that beats it.
        order = fitness.argsort(descending=True, stable=True)
        best = population[order[0]].clone()
        elites = order[: self._config.genetic.elites]
        self._population.replace(elites, self._children(population, fitness, step), step)
        facts = {
            "fitness": float(fitness[order[0]]),
            "fitness_mean": float(fitness.mean()),
            "fitness_spread": float(fitness.std(correction=0)),
            "best_individual": float(order[0]),
            "update_norm": float(torch.linalg.vector_norm(best - weight)),
        }
        facts |= self._population.facts()
        if len(values) > 1:
            facts |= {name: float(value[order[0]]) for name, value in values.items()}
        return best, facts

    def state(self) -> dict[str, Tensor]:
        """Return the population, elites first."""
        return self._population.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._population.load_state(state)

    def _values(self, population: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return each objective's mean over the queries, for every individual."""
        pools = Pools(batch.queries, batch.documents, batch.valid)
        scores = torch.stack([base_scores(head, pools, self._config.scoring) for head in population], dim=2)
        values = self._objectives.of(batch).values(scores, slice(0, len(batch.queries)))
        return {name: value / len(batch.queries) for name, value in values.items()}

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
        return heads + size.view(-1, 1, 1) * noise.a.transpose(1, 2) @ noise.b
