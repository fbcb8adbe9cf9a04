"""How often the interval of any statistic covers its true difference (``compare_statistic``).

    uv run benchmarks/any_statistic.py [--reps N]

Two arms answer the same queries; the second is less spread and higher in the middle. Scores are graded, or pile up at 0
and 1. Runs move an arm's scores, in pairs by as much for both; single runs are taken as they are. True differences come
from 400,000 queries.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from threadpoolctl import threadpool_limits

from unimoe.analysis.statistics.estimates import over_draws

Array = NDArray[np.float64]
Cell = tuple[str, float, int, int, bool]  # scores, standard deviation of runs, queries, runs, whether runs pair

STATISTICS = ("mean", "10th percentile", "median", "share below 0.1", "standard deviation")
RESAMPLES = 200
CELLS: list[Cell] = [
    *((kind, 0.0, n, 1, False) for kind, n in product(("graded", "at 0 and 1"), (50, 300, 1_000))),
    *product(("graded", "at 0 and 1"), (0.003, 0.02), (50, 300, 1_000), (2, 3, 5), (False, True)),
]


def arms(cell: Cell, rng: np.random.Generator, moved: Array | None = None) -> tuple[Array, Array]:
    """Return the scores of both arms, ``(runs, queries)``; ``moved`` is by how much each run is, if not by chance."""
    kind, sd, queries, runs, paired = cell
    base = rng.normal(0.5, 0.28, queries) if kind == "graded" else rng.beta(0.5, 0.5, queries)
    shared = rng.normal(0.0, sd, (runs, 1)) if paired else 0.0

    def arm(shrunk: float) -> Array:
        of_query = base * (1.0 - shrunk) + 0.6 * shrunk + rng.normal(0.0, 0.12, queries)
        by = rng.normal(0.0, sd, (runs, 1)) + shared if moved is None else moved
        of_run = by + rng.normal(0.0, 0.06, (len(by), queries))
        return np.clip(of_query + of_run, 0.0, 1.0)

    return arm(0.0), arm(0.08)


def values(scores: Array) -> Array:
    """Return all statistics of the last axis, as the first one."""
    n = scores.shape[-1]
    places = sorted({math.floor(0.1 * (n - 1)), math.ceil(0.1 * (n - 1)), (n - 1) // 2, n // 2})
    held = np.partition(scores, places, axis=-1)
    low, part = held[..., places[0]], 0.1 * (n - 1) % 1.0
    tenth = low + part * (held[..., math.ceil(0.1 * (n - 1))] - low)
    median = (held[..., (n - 1) // 2] + held[..., n // 2]) / 2.0
    return np.stack([scores.mean(axis=-1), tenth, median, (scores < 0.1).mean(axis=-1), scores.std(axis=-1)])


def coverage(cell: Cell, seed: np.random.SeedSequence, reps: int) -> list[float]:
    """Return the percentage of intervals with the true difference, by statistic."""
    rng, hits = np.random.default_rng(seed), np.zeros(len(STATISTICS))
    kind, sd, queries, _, paired = cell
    with threadpool_limits(1):
        # Runs at quantiles, the same for both arms: runs by chance would move the truth.
        moved = sd * math.sqrt(2.0 if paired else 1.0) * ndtri((np.arange(9)[:, None] + 0.5) / 9)
        first, second = map(values, arms((kind, sd, 400_000, 9, False), rng, moved))
        truth = (first - second).mean(axis=1)
        for _ in range(reps):
            both = arms(cell, rng)
            asked = rng.integers(queries, size=(RESAMPLES, queries))
            found = [values(scores) for scores in both]
            drawn = [values(scores[:, asked]) for scores in both]
            for i in range(len(STATISTICS)):
                one = over_draws([f[i] for f in found], [d[i] for d in drawn], queries, paired=paired)
                low, high = one.interval or (one.value, one.value)
                hits[i] += low <= truth[i] <= high
    return [round(100.0 * float(hit) / reps, 1) for hit in hits]


def main() -> None:
    """Print a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reps", type=int, default=1_000)
    reps, start = parser.parse_args().reps, time.perf_counter()
    seeds = np.random.SeedSequence(0).spawn(len(CELLS))
    print(f"| scores | run sd | queries | runs | paired | {' | '.join(STATISTICS)} |")
    print("|---|" + " --: |" * (4 + len(STATISTICS)))
    worst: list[float] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for cell, found in zip(CELLS, pool.map(partial(coverage, reps=reps), CELLS, seeds), strict=True):
            print(f"| {' | '.join(map(str, (*cell, *found)))} |", flush=True)
            worst += found
    error = 100.0 * math.sqrt(0.05 * 0.95 / reps)
    print(f"{min(worst)} to {max(worst)} %, standard error {error:.2f}; {time.perf_counter() - start:.0f} s in all")
    print(json.dumps({"reps": reps, "coverage_min": min(worst), "coverage_max": max(worst), "error": round(error, 2)}))


if __name__ == "__main__":
    main()
