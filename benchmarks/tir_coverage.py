"""How often the 95 % interval of TIR covers the truth, and how often a label says PASS where it should not.

    uv run benchmarks/tir_coverage.py [--reps N]

Simulated retrieval experiments: every query has a difficulty that both arms share, a part of its own under each arm,
and noise that each training run draws anew; a training run also shifts all its scores by one number. Scores are cut to
0 and 1, where many end, as nDCG@10 and MRR@10 do. The joint arm's mean is set so that the true TIR, over all seeds and
queries there could be, is exactly the one asked for.

Compared on the same data: the crossed interval (``unimoe.analysis.crossed``, what verdicts use), Student's t over
per-seed TIRs, and the bootstrap over queries with the seeds as they are, by the normal limit it has at these sizes.

A second table says where the crossed interval falls short: by the share of the variance that lies in few seeds. It
draws mean squares instead of scores, which are then independent and chi-squared. The JSON counts the first table only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from unimoe.analysis.crossed import MeanSquares, crossed_interval, interval_from, linearised_tir, rule_label, seeds_mean

SEEDS = (3, 5, 10)
QUERIES = (300, 648, 2_000, 6_980)
DIFFERENCE_SDS = (0.25, 0.44, 0.60)
TRUTHS = (0.0, 0.01, 0.02, 0.05)
METHODS = ("crossed", "t over seeds", "query bootstrap")

MEAN, SCORE_SD, SEED_SD, RUN_SHARE = 0.6, 0.36, 0.003, 0.5
"""Of a metric between 0 and 1: the specialist's mean, the sd of its scores over queries, and the sd of its mean over
training runs. The last is the share of the variance between arms on one query that another training run draws anew."""

SHARE_SEEDS, SHARES, SHARE_QUERIES, SHARE_REPS = (2, 3, 5, 10), (0.0, 0.2, 0.4, 0.6, 0.8, 0.95), 2_000, 20_000

Z = 1.959963984540054

Array: TypeAlias = NDArray[np.float64]

ByTruth: TypeAlias = dict[float, Counter[str]]
"""True TIR to how many intervals covered it and how many labels were PASS."""

Found: TypeAlias = dict[tuple[int, int, float], ByTruth]
"""By seeds, queries, and sd of the difference."""


@dataclass(frozen=True)
class World:
    """The normal variables behind the scores, before these are cut to 0 and 1.

    Attributes:
        difference_sd: standard deviation over queries of the difference between two runs, one of each arm, as a
            fraction of the specialist's mean.
    """

    difference_sd: float

    @cached_property
    def total_sd(self) -> float:
        """Gives the scores the standard deviation ``SCORE_SD``."""
        return float(brentq(lambda sd: cut_sd(self.centre(MEAN, sd), sd) - SCORE_SD, 0.05, 3.0))

    @cached_property
    def arm_sd(self) -> float:
        """Of one arm's part of a query, own and drawn anew; found by simulation, the same numbers for every guess."""
        normals = np.random.default_rng(0).standard_normal((3, 200_000))
        centre = self.centre(MEAN, self.total_sd)

        def excess(arm_sd: float) -> float:
            shared = centre + math.sqrt(self.total_sd**2 - arm_sd**2) * normals[0]
            difference = np.diff(np.clip(shared + arm_sd * normals[1:], 0.0, 1.0), axis=0)
            return float(difference.std()) - self.difference_sd * MEAN

        return float(brentq(excess, 0.0, self.total_sd))

    @cached_property
    def seed_sd(self) -> float:
        """Moves an arm's mean score by ``SEED_SD``: scores that are cut do not move."""
        centre = self.centre(MEAN, self.total_sd)
        uncut = ndtr((1.0 - centre) / self.total_sd) - ndtr(-centre / self.total_sd)
        return float(SEED_SD / uncut)

    def centre(self, mean: float, sd: float | None = None) -> float:
        """Where a normal variable must lie so that its cut values have this mean."""
        sd = self.total_sd if sd is None else sd
        return float(brentq(lambda centre: cut_moments(centre, sd)[0] - mean, -20.0, 20.0))

    def draw(self, seeds: int, queries: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Both arms' scores before the cut, centred at 0, ``(seeds, queries)`` each."""
        shared_variance = self.total_sd**2 - self.arm_sd**2 - self.seed_sd**2
        shared = math.sqrt(shared_variance) * rng.standard_normal(queries)

        def arm() -> Array:
            own = self.arm_sd * math.sqrt(1.0 - RUN_SHARE) * rng.standard_normal(queries)
            anew = self.arm_sd * math.sqrt(RUN_SHARE) * rng.standard_normal((seeds, queries))
            return np.asarray(shared + own + anew + self.seed_sd * rng.standard_normal((seeds, 1)))

        return arm(), arm()


def cut_moments(centre: float, sd: float) -> tuple[float, float]:
    """Mean and mean square of a normal variable cut to 0 and 1."""
    low, high = -centre / sd, (1.0 - centre) / sd
    inside = ndtr(high) - ndtr(low)
    density_low, density_high = (math.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi) for z in (low, high))
    above = 1.0 - ndtr(high)
    mean = centre * inside + sd * (density_low - density_high) + above
    square = (centre**2 + sd**2) * inside + sd * (centre * density_low - (1.0 + centre) * density_high) + above
    return float(mean), float(square)


def cut_sd(centre: float, sd: float) -> float:
    """Standard deviation of a normal variable cut to 0 and 1."""
    mean, square = cut_moments(centre, sd)
    return math.sqrt(square - mean**2)


def simulate(world: World, seeds: int, queries: int, reps: int, rng: np.random.Generator) -> ByTruth:
    """Simulate ``reps`` experiments; all truths share their draws."""
    counts: ByTruth = {truth: Counter() for truth in TRUTHS}
    centres = {truth: world.centre(MEAN * (1.0 - truth)) for truth in TRUTHS}
    for _ in range(reps):
        raw_specialist, raw_joint = world.draw(seeds, queries, rng)
        specialist = np.clip(raw_specialist + centres[0.0], 0.0, 1.0)
        for truth, centre in centres.items():
            counts[truth].update(outcomes(specialist, np.clip(raw_joint + centre, 0.0, 1.0), truth))
    return counts


def outcomes(specialist: Array, joint: Array, truth: float) -> dict[str, bool]:
    """Of one experiment: which intervals cover the truth, which labels are PASS."""
    crossed = crossed_interval(specialist, joint)
    by_seed = 1.0 - joint.mean(axis=1) / specialist.mean(axis=1)
    fixed_queries = seeds_mean(by_seed)
    if crossed is None or fixed_queries is None:
        raise ValueError("a simulated experiment needs two seeds and two queries")
    by_query = linearised_tir(*(arm.mean(axis=0, keepdims=True) for arm in (specialist, joint)))[0]
    reach = Z * float(by_query.std()) / math.sqrt(len(by_query))
    return {
        "crossed": crossed.low <= truth <= crossed.high,
        "t over seeds": fixed_queries.low <= truth <= fixed_queries.high,
        "query bootstrap": abs(crossed.estimate - truth) <= reach,
        "rule PASS": rule_label(float(by_seed.mean())) == "PASS",
        "label PASS": crossed.label == "PASS",
    }


def table(found: Found, reps: int) -> str:
    """One row per configuration: coverage over all truths, PASS by truth, in percent."""
    judged = [(judge, truth) for judge in ("rule", "label") for truth in TRUTHS[:2]]
    wrong = [f"{judge} PASS at {100 * truth:g} %" for judge, truth in judged]
    head = ["sd(diff)/mean", "Queries", "Seeds", *METHODS, *wrong]
    lines = [f"| {' | '.join(head)} |", f"|{' --: |' * len(head)}"]
    for (seeds, queries, sd), counts in found.items():
        covered = [sum(c[m] for c in counts.values()) / (reps * len(TRUTHS)) for m in METHODS]
        passed = [counts[truth][f"{judge} PASS"] / reps for judge, truth in judged]
        cells = [f"{sd:.2f}", f"{queries:,}", str(seeds), *(f"{100 * share:.1f}" for share in (*covered, *passed))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def coverage_by_share(seeds: int, share: float, rng: np.random.Generator) -> float:
    """How often the crossed interval covers when seeds alone carry ``share`` of the variance of the mean."""
    degrees = np.array([seeds - 1, SHARE_QUERIES - 1, (seeds - 1) * (SHARE_QUERIES - 1)])
    by_query = seeds * (1.0 - RUN_SHARE) + RUN_SHARE
    expected = np.array([by_query * share / (1.0 - share) + RUN_SHARE, by_query, RUN_SHARE])
    true_sd = math.sqrt((expected[0] + by_query - RUN_SHARE) / (seeds * SHARE_QUERIES))
    covered = 0
    draws = expected * rng.chisquare(degrees, (SHARE_REPS, 3)) / degrees
    for error, (seed, query, residual) in zip(rng.normal(0.0, true_sd, SHARE_REPS), draws, strict=True):
        squares = MeanSquares(seed, query, residual, n_seeds=seeds, n_queries=SHARE_QUERIES)
        found = interval_from(float(error), squares)
        covered += found.low <= 0.0 <= found.high
    return covered / SHARE_REPS


def share_table() -> str:
    """One row per number of seeds: coverage of the crossed interval by what seeds carry, in percent."""
    rng = np.random.default_rng(1)
    head = ["Seeds", *(f"{100 * share:g} %" for share in SHARES)]
    lines = [f"| {' | '.join(head)} |", f"|{' --: |' * len(head)}"]
    for seeds in SHARE_SEEDS:
        cells = [str(seeds), *(f"{100 * coverage_by_share(seeds, share, rng):.1f}" for share in SHARES)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate every configuration and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=2_000, help="simulated experiments per configuration")
    reps = parser.parse_args().reps
    print(f"{platform.machine()}, numpy {np.__version__}, {reps:,} experiments per configuration")
    start = time.perf_counter()
    found: Found = {}
    worlds = {sd: World(sd) for sd in DIFFERENCE_SDS}
    rngs = np.random.default_rng(0).spawn(len(SEEDS) * len(QUERIES) * len(DIFFERENCE_SDS))
    for (sd, queries, seeds), rng in zip(itertools.product(DIFFERENCE_SDS, QUERIES, SEEDS), rngs, strict=True):
        found[seeds, queries, sd] = simulate(worlds[sd], seeds, queries, reps, rng)
        print(f"{len(found)} of {len(rngs)} configurations, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print(f"\n{table(found, reps)}\n\n{share_table()}\n")
    error = 100 * math.sqrt(0.95 * 0.05 / reps)
    print(
        f"percent; the standard error of a coverage is {error:.2f} points; {time.perf_counter() - start:.0f} s in all"
    )
    covered = [counts["crossed"] for by_truth in found.values() for counts in by_truth.values()]
    passed = {truth: max(by_truth[truth]["label PASS"] for by_truth in found.values()) for truth in TRUTHS}
    summary = {
        "coverage_min": min(covered),
        "coverage_max": max(covered),
        "false_pass_at_0": passed[0.0],
        "false_pass_at_1": passed[0.01],
    }
    print(json.dumps({key: round(100 * count / reps, 2) for key, count in summary.items()}))


if __name__ == "__main__":
    main()
