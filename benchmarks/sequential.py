"""How often gates with looks are wrong, how often they decide, and what looking again costs without them.

    uv run benchmarks/sequential.py [--reps N]

Experiments are drawn as in ``tir_coverage.py``, with the true TIR at a cutoff: at 2 % every PASS is false, at 1 % every
FAIL. Seeds are added from look to look, and the first label stops the gate, at a nominal 10 % of wrong labels. Beside
it: the same data looked at after each seed from the third, with the gate's confidence of .90 at every look. Power and
mean seeds are those of a clear effect, a TIR of 8 % with paired seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from simulated_arms import MEAN, Array, Kind, World, draw
from unimoe.analysis.gates.definitions import InterferenceGate, Label
from unimoe.analysis.gates.findings import label_of, ratio_weights
from unimoe.analysis.statistics.estimates import LossRatios, estimate
from unimoe.analysis.statistics.variance import groups_of, moments
from unimoe.results import processor_name

LOOKS = (3, 5, 8)
NAIVE = tuple(range(3, 9))
CLEAR = 0.08
GATE = InterferenceGate(
    kind="interference",
    task="reranking",
    datasets=["one"],
    metric="ndcg@10",
    specialist="rank_only",
    joint="joint",
    looks=list(LOOKS),
)

Regime = tuple[Kind, float, float, int, bool]

REGIMES: tuple[Regime, ...] = (
    *(("graded", 0.44, sd, 100, paired) for sd in (0.0, 0.02, 0.04) for paired in (True, False)),
    *(("graded", 0.25, 0.01, 2_000, paired) for paired in (True, False)),
    ("graded", 0.25, 0.02, 300, True),
    ("0/1", 0.60, 0.02, 300, False),
)
"""Scores, standard deviation of a query's difference over the mean, of an arm's mean over seeds, queries, pairing."""

POWERED: Regime = ("graded", 0.25, 0.015, 100, True)


def ended(specialist: Array, joint: Array, looks: Sequence[int], needed: float, *, paired: bool) -> tuple[Label, int]:
    """Return the label of the first look that has one, and the seeds it took; those of the last look without one."""
    label: Label = "INCONCLUSIVE"
    for look in looks:
        block = specialist[:look], joint[:look]
        quantity = LossRatios(ratio_weights(["one"], "mean_of_tirs"))
        found = estimate(moments([block], groups_of((look, look), paired=paired)), quantity)
        label = "INCONCLUSIVE" if found.unfit else label_of(GATE.confidences(found.held), needed)
        if label != "INCONCLUSIVE":
            break
    return label, look


def simulated(regime: Regime, reps: int, seed: np.random.SeedSequence, truths: Sequence[float]) -> Counter[str]:
    """Count labels and seeds of one regime, by the true TIR."""
    kind, difference_sd, seed_sd, queries, paired = regime
    world, rng, counts = World(difference_sd, seed_sd, kind), np.random.default_rng(seed), Counter[str]()
    centres = {truth: world.centre(MEAN * (1.0 - truth)) for truth in (0.0, *truths)}
    runs = (LOOKS[-1], LOOKS[-1])
    with threadpool_limits(1):
        for _ in range(reps):
            ((first, second),) = draw([world], [queries], runs, rng, paired=paired)
            specialist = world.scores(first + centres[0.0])
            for truth in truths:
                joint = world.scores(second + centres[truth])
                label, seeds = ended(specialist, joint, LOOKS, GATE.label_confidence, paired=paired)
                counts[f"{label} at {truth:g}"] += 1
                counts[f"seeds at {truth:g}"] += seeds
                naive, _ = ended(specialist, joint, NAIVE, GATE.confidence, paired=paired)
                counts[f"naive {naive} at {truth:g}"] += 1
    return counts


def main() -> None:
    """Simulate every regime and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=3_000, help="simulated experiments per regime")
    reps, start = parser.parse_args().reps, time.perf_counter()
    print(f"{processor_name()}, {os.cpu_count()} cores; {reps:,} experiments per regime, looks {LOOKS}")
    print(f"confidence {GATE.label_confidence:g} at each look in place of {GATE.confidence:g}")
    seeds = np.random.SeedSequence(0).spawn(len(REGIMES) + 1)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        at_cutoffs = pool.map(partial(simulated, truths=GATE.cutoffs), REGIMES, [reps] * len(REGIMES), seeds[:-1])
        clear = pool.submit(simulated, POWERED, reps, seeds[-1], (CLEAR,)).result()
        found = list(at_cutoffs)

    def percent(counts: Counter[str], key: str) -> float:
        return float(round(100.0 * counts[key] / reps, 2))

    print("| scores | sd(diff)/mean | seed sd | queries | paired | false PASS | false FAIL | naive PASS | mean seeds |")
    print("|---|" + " --: |" * 8)
    for regime, counts in zip(REGIMES, found, strict=True):
        rates = (percent(counts, key) for key in ("PASS at 0.02", "FAIL at 0.01", "naive PASS at 0.02"))
        print(f"| {' | '.join(map(str, (*regime, *rates)))} | {counts['seeds at 0.02'] / reps:.2f} |")
    error = 100.0 * math.sqrt(0.1 * 0.9 / reps)
    print(f"percent; standard error at 10 %: {error:.2f} points; {time.perf_counter() - start:.0f} s in all")
    found_at_most = {
        "false_pass_max": max(percent(counts, "PASS at 0.02") for counts in found),
        "false_fail_max": max(percent(counts, "FAIL at 0.01") for counts in found),
        "power_8": percent(clear, f"PASS at {CLEAR:g}"),
        "mean_seeds_8": round(clear[f"seeds at {CLEAR:g}"] / reps, 2),
        "naive_false_pass": max(percent(counts, "naive PASS at 0.02") for counts in found),
    }
    print(json.dumps(found_at_most))


if __name__ == "__main__":
    main()
