"""How often 95 % intervals cover the truth, labels say PASS where they should not, and marks are false.

    uv run benchmarks/tir_coverage.py [--reps N]

The code that judges real results (``unimoe.analysis.statistics``, the label rule of an interference gate, the
differences and Holm's correction of the comparison table) judges scores between 0 and 1 from ``simulated_arms.py``.
Four tables: TIR on one dataset, TIR over a suite of five (mean of TIRs), labels where losses are skewed
(``simulated_losses.py``, by the errors on each side), and the comparison table of eight equal systems on three
datasets, whose 84 rows are one family; ``mark_false_rate_max`` is the share of tables with a mark. On the same data it
shows Student's t over per-seed TIRs, and the bootstrap over queries with the runs as they are, by the normal limit it
has at these sizes; beside the marks, a t test over queries with the runs as they are.

The JSON counts rows with three seeds or more on each side; ``*`` marks those with two. ``†`` marks rows whose intervals
are so wide that a true TIR of 1 % is as good as the cutoff of 2 %, where the label's confidence of .90 allows up to
10 % false PASS: their coverage counts, and their false PASS is a key of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeAlias

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from simulated_arms import MEAN, Kind
from simulated_judgments import FEWEST, TRUTHS, Counts, Setting, judge, mark
from simulated_losses import LOSSES, Skewed, judge_skewed
from unimoe.results import processor_name

Found: TypeAlias = dict[Setting, Counts]
World: TypeAlias = Setting | Skewed

RUNS = (
    *((runs, True) for runs in ((2, 2), (3, 3), (5, 5), (10, 10))),
    *((runs, False) for runs in ((2, 3), (3, 3), (3, 5), (5, 5), (10, 10))),
)
"""Training runs of specialist and joint arm, and whether they pair."""

FEW_RUNS = (((3, 3), True), ((3, 3), False), ((3, 5), False), ((5, 5), False))

ONE: tuple[tuple[Kind, float, float, int], ...] = (
    ("graded", 0.44, 0.003, 300),
    ("graded", 0.25, 0.003, 2_000),
    ("graded", 0.44, 0.003, 6_980),
    ("graded", 0.25, 0.01, 2_000),
    ("graded", 0.25, 0.01, 6_980),
    ("0/1", 0.60, 0.003, 648),
    ("0/1", 0.44, 0.01, 2_000),
)
"""Scores, standard deviation of a query's difference over the mean, of an arm's mean over seeds, and queries."""

WIDE: tuple[tuple[Kind, float, float, int], ...] = (
    ("graded", 0.44, 0.02, 300),
    ("graded", 0.25, 0.02, 6_980),
    ("0/1", 0.60, 0.02, 2_000),
)

SUITE_SIZES, SUITE_MEANS = (300, 323, 648, 1_000, 1_406), (0.65, 0.35, 0.40, 0.30, 0.50)
"""As many queries as SciFact, NFCorpus, FiQA2018, SCIDOCS and ArguAna have."""

MARK_SIZES, MARK_SYSTEMS, MARK_SHARE = (50, 300, 1_000), 8, 6
"""The default table of eight systems and three datasets: every two systems on each. A sixth of the experiments tells
enough."""

MARK_ROWS = len(MARK_SIZES) * math.comb(MARK_SYSTEMS, 2)

MARK_RUNS = ((3, True), (5, True), (3, False), (5, False), (0, False))
"""Runs of each system; 0: systems with three, and one without seeds."""

HEAD = ("Scores", "Queries", "sd(diff)/mean", "Seed sd", "Seeds")


def one_dataset() -> list[Setting]:
    """Return the configurations of the first table."""
    return [
        Setting(kind, sd, seed_sd, (queries,), (MEAN,), runs, paired, wide)
        for grid, numbers, wide in ((ONE, RUNS, False), (WIDE, FEW_RUNS, True))
        for kind, sd, seed_sd, queries in grid
        for runs, paired in numbers
    ]


def suites() -> list[Setting]:
    """Return the configurations of the second table."""
    return [
        Setting("graded", 0.44, seed_sd, SUITE_SIZES, SUITE_MEANS, runs, paired)
        for seed_sd in (0.003, 0.01)
        for runs, paired in FEW_RUNS
    ]


def comparison_tables() -> list[Setting]:
    """Return the configurations of the third table."""
    means = (MEAN,) * len(MARK_SIZES)
    return [
        Setting("graded", 0.44, sd, MARK_SIZES, means, (runs, *(runs or FEWEST,) * (MARK_SYSTEMS - 1)), paired)
        for sd in (0.003, 0.01, 0.02, 0.04)
        for runs, paired in MARK_RUNS
    ]


def skewed_worlds() -> list[Skewed]:
    """Return the configurations of the table of skewed losses."""
    sizes = {shape: (43, 200, 1_000) if "dl19" in shape else (100, 300, 1_000, 3_000) for shape in LOSSES}
    worlds = [
        Skewed(shape, size, paired=paired) for shape in LOSSES for size in sizes[shape] for paired in (True, False)
    ]
    return [
        *worlds,
        *(Skewed(shape, sizes[shape][-2], runs=0) for shape in LOSSES),
        *(Skewed(shape, 300, datasets=5) for shape in LOSSES),
        *(Skewed(shape, 300, looks=True) for shape in LOSSES),
    ]


def skewed_table(found: dict[Skewed, Counts], reps: int) -> str:
    """Return one row per world: how often labels are wrong on either side, at a nominal 10 %, and FAIL without loss."""
    asked = (("FAIL", 0.01), ("PASS", 0.02), ("FAIL", 0.0))
    rows = [
        [
            f"{world.shape}{' x 5' if world.datasets > 1 else ''}",
            f"{world.queries:,}",
            "3, 5, 8" if world.looks else f"{world.runs or 'none'}{' paired' if world.paired else ''}",
            *(percent(counts[key], reps) for key in asked),
        ]
        for world, counts in found.items()
    ]
    heads = (f"{label} at {100 * truth:g} %" for label, truth in asked)
    return table(["Losses", "Queries", "Seeds", *heads], rows)


def one_sided(found: dict[Skewed, Counts], reps: int) -> dict[str, float]:
    """Return the largest share of wrong labels, either way, of worlds by their size; a nominal 10."""

    def largest(chosen: Callable[[Skewed], bool]) -> float:
        wrong = (max(c["FAIL", 0.01], c["PASS", 0.02]) for world, c in found.items() if chosen(world))
        return round(100 * max(wrong) / reps, 2)

    return {
        "one_sided_1000": largest(lambda world: world.queries >= 1_000),
        "one_sided_dl19_200": largest(lambda world: world.queries == 200),
        "one_sided_300": largest(lambda world: world.queries == 300),
        "one_sided_below_200": largest(lambda world: world.queries < 200),
    }


def tir_table(found: Found, reps: int) -> str:
    """Return one row per configuration: coverage over all truths, and what says PASS by truth, in percent."""
    covered = {"model": "model of variance", "t over seeds": "t over seeds", "queries": "query bootstrap"}
    passed = [(what, truth) for what in ("estimate", "label") for truth in TRUTHS[:2]]
    words = {"estimate": "estimate 2 % or more", "label": "label PASS"}
    rows = [
        [
            *described(setting),
            *(percent(coverage(counts, what), reps) for what in covered),
            *(percent(counts[key], reps) for key in passed),
        ]
        for setting, counts in found.items()
    ]
    return table([*HEAD, *covered.values(), *(f"{words[what]} at {100 * truth:g} %" for what, truth in passed)], rows)


def mark_table(found: Found, reps: int) -> str:
    """Return one row per configuration: how often equal systems are marked, in percent."""
    of = {"row": "single rows", "family": "tables with a mark, Holm", "query row": "single rows, t over queries",
          "best": "best systems left out", "rank": "ranks outside their interval"}  # fmt: skip
    per_table = {"row": MARK_ROWS, "family": 1, "query row": MARK_ROWS}
    per_table |= dict.fromkeys(("best", "rank"), MARK_SYSTEMS * len(MARK_SIZES))
    rows = [
        [*described(setting), *(percent(counts[what, 0.0], reps * per_table[what]) for what in of)]
        for setting, counts in found.items()
    ]
    return table([*HEAD, *of.values()], rows)


def described(setting: Setting) -> list[str]:
    """Return what is simulated as cells."""
    first, second = setting.runs[0], setting.runs[-1]
    seeds = f"{second} paired" if setting.paired else f"{first or 'none'} v {second}"
    mark = "" if setting.enough else " *"
    sizes = ", ".join(f"{size:,}" for size in setting.sizes)
    sd = f"{setting.seed_sd:g}" + (" †" if setting.wide else "")
    return [setting.kind, sizes, f"{setting.difference_sd:.2f}", sd, f"{seeds}{mark}"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{' --: |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def coverage(counts: Counts, what: str) -> float:
    """Return in how many experiments an interval covers the truth, averaged over truths."""
    return sum(counts[what, truth] for truth in TRUTHS) / len(TRUTHS)


def percent(count: float, of: float) -> str:
    """Return a share in percent."""
    return f"{100 * count / of:.1f}"


def summary(tirs: Found, marks: Found, reps: int) -> dict[str, float]:
    """Return the extremes over the configurations with seeds enough, in percent."""
    held = {setting: counts for setting, counts in tirs.items() if setting.enough}
    covered = {setting: coverage(counts, "model") for setting, counts in held.items()}
    usual, wide = ([counts for setting, counts in held.items() if setting.wide is of] for of in (False, True))
    rows, tables = (max(counts[what, 0.0] for counts in marks.values()) * MARK_SHARE for what in ("row", "family"))
    counted = {
        "coverage_min": min(covered.values()),
        "coverage_max": max(covered.values()),
        "false_pass_at_0": max(counts["label", 0.0] for counts in usual),
        "false_pass_at_1": max(counts["label", 0.01] for counts in usual),
        "false_pass_at_1_wide": max(counts["label", 0.01] for counts in wide),
        "mark_false_rate_max": tables,
        "row_false_rate_max": rows / MARK_ROWS,
        **{
            f"{what}_missed_max": max(counts[what, 0.0] for counts in marks.values())
            * MARK_SHARE
            / (MARK_SYSTEMS * len(MARK_SIZES))
            for what in ("best", "rank")
        },
        "unpaired_coverage_min": min(count for setting, count in covered.items() if not setting.paired),
    }
    return {key: round(100 * count / reps, 2) for key, count in counted.items()}


def simulated(work: Callable[..., Counts], setting: World, reps: int, seed: np.random.SeedSequence) -> Counts:
    """Simulate one configuration on one BLAS thread: other configurations have the other cores."""
    with threadpool_limits(1):
        return work(setting, reps, np.random.default_rng(seed))


def simulate_all(groups: Sequence[tuple[Callable[..., Counts], Sequence[World], int]]) -> list[dict[Any, Counts]]:
    """Simulate groups of configurations on all cores; random numbers do not depend on how many there are."""
    tasks = [(work, setting, reps) for work, settings, reps in groups for setting in settings]
    start = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = np.random.SeedSequence(0).spawn(len(tasks))
        running = [pool.submit(simulated, *task, seed) for task, seed in zip(tasks, seeds, strict=True)]
        for done, _ in enumerate(as_completed(running), start=1):
            print(f"{done} of {len(tasks)} configurations, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    results = iter(running)
    return [{setting: next(results).result() for setting in settings} for _, settings, _ in groups]


def main() -> None:
    """Simulate every configuration and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=1_200, help="simulated experiments per configuration")
    reps = parser.parse_args().reps
    of_marks = max(1, reps // MARK_SHARE)
    start = time.perf_counter()
    print(f"{processor_name()}, {os.cpu_count()} cores, numpy {np.__version__}, scipy {scipy.__version__}")
    print(f"{reps:,} experiments per configuration, {of_marks:,} comparison tables")
    groups: list[tuple[Callable[..., Counts], Sequence[World], int]] = [
        (judge, one_dataset(), reps),
        (judge, suites(), reps),
        (judge_skewed, skewed_worlds(), reps),
        (mark, comparison_tables(), of_marks),
    ]
    one, suite, skewed, marks = simulate_all(groups)
    print(f"\n{tir_table(one, reps)}\n\n{tir_table(suite, reps)}\n\n{skewed_table(skewed, reps)}\n")
    print(f"{mark_table(marks, of_marks)}\n")
    for enough, words in ((False, "with two seeds"), (True, "with three or more")):
        refused = [coverage(c, "refused") for s, c in {**one, **suite}.items() if s.enough is enough]
        print(f"no interval {words}, since the denominator is too uncertain: at most {percent(max(refused), reps)} %")
    error = 100 * math.sqrt(0.95 * 0.05 / reps)
    label = 100 * math.sqrt(0.1 * 0.9 / reps)
    spent = time.perf_counter() - start
    print(f"percent; standard error of a coverage {error:.2f} points, of 10 % {label:.2f}; {spent:.0f} s in all")
    print(json.dumps(summary({**one, **suite}, marks, reps) | one_sided(skewed, reps)))


if __name__ == "__main__":
    main()
