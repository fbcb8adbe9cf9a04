"""A full EGGROLL step against materialised weights, the original's recipe, and the matrix product that it cannot avoid.

    uv run benchmarks/eggroll_step.py

32 queries, pools of 100 documents of which 1 to 3 are relevant, vectors of 384 dimensions, a head with 128 outputs, 128
directions with both signs, float32. A step is noise, the scores and nDCG@10 of all 256 perturbations, shaping, estimate
and the weight's update; pools and ideal DCGs are prepared beforehand for all.

naive   one perturbed weight after the other, projections, scores, topk
seed    the original: the closed form as three products with the documents' vectors, topk, argsort for shaping
floor   documents times all directions' factors: one matrix product by torch, into memory that exists already

The JSON's numbers are for one thread, in processor time: with two threads, or in wall-clock time, other processes of a
small machine decide. Several threads are timed by the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from unimoe.models.device import describe_device
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.method import estimate, shape
from unimoe.studies.heads.eggroll.noise import Perturbations, directions, product_directions
from unimoe.studies.heads.eggroll.objectives import PoolMetric, ideal_dcg
from unimoe.studies.heads.eggroll.scoring import HeadScorer
from unimoe.studies.heads.methods import Ascent
from unimoe.studies.heads.pools import Pools

QUERIES, SIZE, WIDTH, OUTPUTS, DIRECTIONS, CUTOFF, SIGMA = 32, 100, 384, 128, 128, 10, 0.01
FACTORS = 32
ROUNDS = 31

Step = Callable[[], object]


class Problem:
    """Random pools with normal vectors; relevant documents stand anywhere."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.weight = torch.randn(OUTPUTS, WIDTH, generator=draw) / WIDTH**0.5
        vectors = torch.randn(QUERIES, SIZE + 1, WIDTH, generator=draw)
        vectors /= vectors.norm(dim=-1, keepdim=True)
        self.pools = Pools(vectors[:, 0].contiguous(), vectors[:, 1:].contiguous())
        self.grades = torch.zeros(QUERIES, SIZE)
        for query in range(QUERIES):
            self.grades[query, torch.randperm(SIZE, generator=draw)[: 1 + 3 * (QUERIES - 1 - query) // QUERIES]] = 1
        self.ideal = torch.tensor([ideal_dcg(grades, CUTOFF) for grades in self.grades.tolist()])
        self.discounts = 1 / torch.arange(2, CUTOFF + 2).log2()


class Ours:
    """Steps of ours, with independent or product directions."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._weight, self._step = problem, problem.weight.clone(), 0
        self._scorer = HeadScorer("dot")
        self._metric = PoolMetric(problem.grades, problem.ideal, CUTOFF)
        self._ascent = Ascent(TrainConfig(optimizer="sgd", learning_rate=1e-4))

    def independent(self, count: int) -> None:
        """A step with so many independent directions."""
        self._step += 1
        self._with(directions(0, self._step, count, OUTPUTS, WIDTH))

    def products(self) -> None:
        """A step with the products of as many input as output factors."""
        self._step += 1
        self._with(product_directions(0, self._step, FACTORS, FACTORS, OUTPUTS, WIDTH))

    def _with(self, perturbations: Perturbations) -> None:
        blocks = self._scorer.blocks(self._weight, self._problem.pools, perturbations, SIGMA)
        found = torch.cat([self._metric(scores, queries) for queries, scores in blocks])
        self._weight, _ = self._ascent.step(self._weight, estimate(perturbations, shape(found.mean(dim=0)), SIGMA))


def topk_ndcg(problem: Problem, scores: Tensor) -> Tensor:
    """The nDCG of rankings ``(N, B, P)``, averaged over queries."""
    best = scores.topk(CUTOFF, dim=-1).indices
    gains = problem.grades.expand(len(scores), -1, -1).gather(2, best)
    return ((gains @ problem.discounts) / problem.ideal).mean(dim=1)


def ranked(fitness: Tensor) -> Tensor:
    """Ranks from -0.5 to 0.5, ties in any order."""
    return fitness.argsort().argsort() / (len(fitness) - 1) - 0.5


def naive(problem: Problem) -> None:
    """A step that builds every perturbed weight."""
    weight, queries, documents = problem.weight, problem.pools.queries, problem.pools.documents
    a, b = torch.randn(DIRECTIONS, OUTPUTS), torch.randn(DIRECTIONS, WIDTH)
    fitness = torch.empty(2 * DIRECTIONS)
    for number in range(DIRECTIONS):
        change = SIGMA * torch.outer(a[number], b[number])
        for place, perturbed in ((number, weight + change), (DIRECTIONS + number, weight - change)):
            scores = torch.bmm(documents @ perturbed.T, (queries @ perturbed.T).unsqueeze(2)).squeeze(2)
            fitness[place] = topk_ndcg(problem, scores.unsqueeze(0))[0]
    shaped = ranked(fitness)
    difference = (shaped[:DIRECTIONS] - shaped[DIRECTIONS:]) / 2
    weight + 1e-4 * torch.einsum("m,mo,md->od", difference, a, b) / DIRECTIONS


def seed(problem: Problem) -> None:
    """A step of the original's recipe."""
    weight, queries, documents = problem.weight, problem.pools.queries, problem.pools.documents
    a, b = torch.randn(DIRECTIONS, OUTPUTS), torch.randn(DIRECTIONS, WIDTH)
    query_base, document_base = queries @ weight.T, documents @ weight.T
    base = torch.einsum("bo,bpo->bp", query_base, document_base)
    s_q, s_d, a_q, a_d = queries @ b.T, documents @ b.T, query_base @ a.T, document_base @ a.T
    s_d, a_d = s_d.permute(2, 0, 1), a_d.permute(2, 0, 1)
    s_q, a_q = s_q.T.unsqueeze(2), a_q.T.unsqueeze(2)
    linear = SIGMA * (s_q * a_d + s_d * a_q)
    square = SIGMA**2 * s_q * s_d * a.square().sum(dim=1).view(-1, 1, 1)
    fitness = topk_ndcg(problem, torch.cat([base + linear + square, base - linear + square]))
    shaped = ranked(fitness)
    difference = (shaped[:DIRECTIONS] - shaped[DIRECTIONS:]) / 2
    weight + 1e-4 * (a * difference.unsqueeze(1)).T @ b / DIRECTIONS


def floors(problem: Problem) -> dict[str, Step]:
    """The matrix product alone."""
    factors = torch.randn(2 * DIRECTIONS, WIDTH)
    rows, out = problem.pools.documents.flatten(0, 1), torch.empty(QUERIES * SIZE, 2 * DIRECTIONS)
    return {
        "floor": lambda: torch.mm(rows, factors.T, out=out),
    }


def milliseconds(step: Step) -> float:
    """How long a step takes: of the processor's time with one thread, by the clock with several."""
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = now()
    step()
    return (now() - start) * 1e3


def times(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """The times of steps that take turns, after a warm-up."""
    for step in steps.values():
        step()
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken[name].append(milliseconds(step))
    return taken


def ratio(taken: dict[str, list[float]], above: str, below: str) -> float:
    """The median over rounds of one time over another of the same round."""
    return statistics.median(one / other for one, other in zip(taken[above], taken[below], strict=True))


def compare(problem: Problem) -> dict[str, float]:
    """Take turns and print; returns the ratios."""
    ours = Ours(problem)
    steps = floors(problem) | {
        "ours": lambda: ours.independent(DIRECTIONS),
        "seed": lambda: seed(problem),
    }
    taken = times(steps, ROUNDS)
    slow = times({"ours": steps["ours"], "naive": lambda: naive(problem)}, 5)
    wide = times({"products": ours.products, "same count": lambda: ours.independent(FACTORS * FACTORS)}, 5)
    noise = times({"noise": lambda: directions(0, 0, DIRECTIONS, OUTPUTS, WIDTH)}, ROUNDS)
    print(f"{torch.get_num_threads()} thread(s), {ROUNDS} rounds, naive and products 5; median and range in ms")
    for name, values in (taken | {"naive": slow["naive"]} | wide | noise).items():
        print(f"  {name:10} {statistics.median(values):8.2f}  {min(values):8.2f} to {max(values):.2f}")
    return {
        "vs_naive": round(ratio(slow, "naive", "ours"), 1),
        "vs_seed": round(ratio(taken, "seed", "ours"), 2),
        "vs_floor": round(ratio(taken, "ours", "floor"), 2),
        "grid_directions_per_ms_vs_independent": round(ratio(wide, "same count", "products"), 2),
    }


def main() -> None:
    """Measure and print one JSON object as the last line."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    problem, threads = Problem(), torch.get_num_threads()
    print(f"{describe_device(torch.device('cpu'))}, torch {torch.__version__}")
    if threads > 1:
        print(json.dumps(compare(problem)))
    torch.set_num_threads(1)
    print(json.dumps(compare(problem)))


if __name__ == "__main__":
    main()
