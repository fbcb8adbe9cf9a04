"""How often the statements about the best systems, other collections, clusters and chosen settings hold.

    uv run benchmarks/best_systems.py [--reps N]

The code that judges real results judges simulated experiments. Systems are equal, which is the hardest case: each one
is the best, and has every rank; where they differ in even steps, sets and ranks err less. Scores are those of
``simulated_arms.py``, or heavy-tailed (Student's t with three degrees of freedom). Coverage in percent, nominal 95.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import combinations

import numpy as np
from threadpoolctl import threadpool_limits

from simulated_arms import Array, World, draw
from unimoe.analysis.comparisons import ALPHA, difference
from unimoe.analysis.standings import standings_of
from unimoe.analysis.statistics.estimates import over_collections
from unimoe.analysis.statistics.simultaneous import Joint, corrected, joint
from unimoe.analysis.statistics.variance import groups_of, moments
from unimoe.results.clusters import by_cluster

TAILS = ("normal", "heavy")
KINDS = (("graded", 50), ("0/1", 300), ("heavy", 50))
FIELDS = [(n, 0, kind, queries, 0.0) for n in (3, 9, 20) for kind, queries in KINDS]
FIELDS += [(n, runs, "graded", 300, 0.0) for n in (3, 9, 20) for runs in (3, 5)]
FIELDS += [(9, runs, kind, 300, 0.0) for runs in (3, 5) for kind in ("paired", "noisy")]
FIELDS += [(9, runs, "graded", 300, 0.01) for runs in (0, 5)]
"""Systems, runs of each (0: without seeds), scores, queries, and the step from one true mean to the next."""
COLLECTIONS = [(n, runs, sd, kind) for n in (5, 12) for runs in (0, 3) for sd in (0.0, 0.02, 0.04) for kind in TAILS]
CLUSTERS = [(number, runs, kind) for number in (12, 30, 100) for runs in (0, 3) for kind in (*TAILS, "0/1")]
CHOICES = [(settings, together) for settings in (5, 20) for together in (False, True)]
WORLDS = {
    "graded": World(0.44, 0.01),
    "paired": World(0.44, 0.01),
    "noisy": World(0.44, 0.03),
    "0/1": World(0.44, 0.01, "0/1"),
}
"""The seeds of ``paired`` pair; where they are ``noisy``, runs scatter more than two standard errors over queries."""


def noise(kind: str, rng: np.random.Generator, *shape: int) -> Array:
    """Return normal or heavy-tailed variables of mean 0 and variance 1."""
    return rng.standard_t(3, shape) / math.sqrt(3.0) if kind == "heavy" else rng.standard_normal(shape)


def systems(number: int, runs: int, kind: str, queries: int, step: float, rng: np.random.Generator) -> list[Array]:
    """Return scores ``(runs, queries)`` of each system, the last one the best."""
    if kind == "heavy":
        own = 0.2 * rng.standard_t(3, (number, max(1, runs), queries))
        return list(0.5 + 0.2 * rng.standard_t(3, queries) + own)
    world = WORLDS[kind]
    found = draw([world], [queries], [runs] * number, rng, paired=kind == "paired")[0]
    return [world.scores(hidden + world.centre(world.mean + step * rank)) for rank, hidden in enumerate(found)]


def tests_of(scores: list[Array], *, paired: bool) -> tuple[dict[tuple[str, str], tuple[float, float | None]], Joint]:
    """Return the tests of every two systems, the later against the earlier, and how their means scatter."""
    tests, terms = {}, {}
    for first, second in combinations(range(len(scores)), 2):
        found, _ = difference(scores[second], scores[first], paired=paired)
        tests[str(second), str(first)] = found.value, replace(found, by_t=True).p
        terms[second, first] = found.terms
    return tests, joint(terms, [len(own) for own in scores])


def field(number: int, runs: int, kind: str, queries: int, step: float, rng: np.random.Generator) -> dict[str, float]:
    """Say whether the best is among the best, and all ranks and all differences lie in their intervals."""
    scores = systems(number, runs, kind, queries, step, rng)
    tests, together = tests_of(scores, paired=kind == "paired")
    found = standings_of({str(i): float(own.mean()) for i, own in enumerate(scores)}, tests, together)
    best = [one.is_among_best for one in found if step == 0.0 or int(one.system) == number - 1]
    ranks = [(number - int(one.system),) * 2 if step else (1, number) for one in found]
    right = all(one.ranks[0] <= low and high <= one.ranks[1] for one, (low, high) in zip(found, ranks, strict=True))
    equal = all(corrected(p or 0.0, together.of_all) >= ALPHA for _, p in tests.values())
    return {"mcb": sum(best) / len(best), "rank": right} | ({} if step else {"simultaneous": equal})


def collections(number: int, runs: int, between: float, kind: str, rng: np.random.Generator) -> dict[str, float]:
    """Say whether the interval covers the mean over all collections; sizes of datasets differ 140-fold."""
    shifts = 0.01 * rng.standard_normal((2, max(1, runs), 1)) * (runs > 0)
    sizes, blocks = rng.choice([50, 100, 300, 1000, 7000], number), []
    for effect, n in zip(between * noise(kind, rng, number), sizes, strict=True):
        scores = 0.5 + shifts + 0.2 * noise(kind, rng, 2, max(1, runs), n)
        blocks.append([scores[0] + effect, scores[1]])
    taken = moments(blocks, groups_of((max(1, runs),) * 2, paired=False))
    found = over_collections(taken, np.eye(number), "seeds_and_queries" if runs else "queries")
    low, high = (found and found.interval) or (math.inf, -math.inf)
    return {"new_collection": low <= 0.0 <= high}


def clusters(number: int, runs: int, kind: str, rng: np.random.Generator) -> dict[str, float]:
    """Say whether the interval of a difference covers it, queries in clusters of 1 to 8; and one that ignores that."""
    codes = np.repeat(np.arange(number), rng.integers(1, 9, number))
    shape = (2, max(1, runs), len(codes))
    hidden = noise(kind, rng, len(codes)) + noise(kind, rng, 2, 1, number)[:, :, codes] + noise(kind, rng, *shape)
    hidden += 0.05 * rng.standard_normal((2, max(1, runs), 1)) * (runs > 0)
    first, second = (hidden > 0.0).astype(float) if kind == "0/1" else hidden
    pairs = {"cluster": (by_cluster(first, codes), by_cluster(second, codes)), "ignored": (first, second)}
    return {what: (difference(*pair)[0].p or 1.0) >= ALPHA for what, pair in pairs.items()}


def choice(number: int, together: bool, rng: np.random.Generator) -> dict[str, float]:
    """Say whether the best of some settings, all equal to the baseline, is called better or worse than it."""
    scores = systems(number + 1, 0, "graded", 50, 0.0, rng)
    p = difference(max(scores[1:], key=np.mean), scores[0])[0].p or 1.0
    of_best = (
        corrected(p, tests_of(scores, paired=False)[1].smallest_p([(0, range(1, number + 1))]))
        if together
        else number * p
    )
    return {"false": of_best < ALPHA, "uncorrected": p < ALPHA}


def shares(work: str, setting: tuple[object, ...], reps: int, seed: int) -> dict[str, float]:
    """Return in how many percent of experiments each statement held, on one BLAS thread."""
    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        held = [globals()[work](*setting, rng) for _ in range(reps)]
    return {what: round(100.0 * sum(one[what] for one in held) / reps, 1) for what in held[0]}


def main() -> None:
    """Simulate every setting on two processes, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=120, help="simulated experiments of a setting")
    reps, start = parser.parse_args().reps, time.perf_counter()
    works = (("field", FIELDS, 1), ("collections", COLLECTIONS, 4), ("clusters", CLUSTERS, 4), ("choice", CHOICES, 1))
    tasks = [(work, setting, reps * times) for work, settings, times in works for setting in settings]
    found: dict[str, list[float]] = {}
    with ProcessPoolExecutor(2) as pool:
        running = [pool.submit(shares, *task, seed) for seed, task in enumerate(tasks)]
        for (work, setting, _), done in zip(tasks, running, strict=True):
            print(work, *setting, *(f"{what} {share}" for what, share in done.result().items()), flush=True)
            for what, share in done.result().items():
                found.setdefault(what, []).append(share)
    print(f"{reps:,} experiments, four times as many of quick ones; {time.perf_counter() - start:.0f} s")
    keys = [key for key in found if key not in ("ignored", "false", "uncorrected")]
    ends = {f"{key}_coverage{name}": end(found[key]) for name, end in (("", min), ("_max", max)) for key in keys}
    print(json.dumps({**ends, "best_of_k_false": max(found["false"])}))


if __name__ == "__main__":
    main()
