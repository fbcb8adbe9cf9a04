"""How a verdict from few human labels and a model's many covers the truth, and what the model's labels bring.

    uv run benchmarks/few_labels.py [--reps N]

Of N queries, n drawn at random have human judgments; all have a model's. Two systems, with one run or three training
runs each, have scores between 0 and 1 whose true difference and TIR are known. Judges range from good to useless, and
all are biased, one system more than the other. Beside the prediction-powered interval: that of the human queries alone,
and that of the model's labels taken as the truth. The code is that of ``compare``: weights, columns, draws, Fieller.

``width_good`` and ``width_useless`` are the widest intervals beside those of the human queries alone, where the judge
is good and all queries are ten times the labelled ones or more; and where it is useless, anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from simulated_arms import Array
from unimoe.analysis.gates.scores import drawn_together
from unimoe.analysis.statistics.estimates import Estimate, Linear, LossRatios, estimate
from unimoe.analysis.statistics.variance import groups_of, moments
from unimoe.results import processor_name
from unimoe.results.predicted import Labels, PredictedScores

JUDGES = {"good": 0.88, "fair": 0.6, "poor": 0.3, "useless": 0.0}
"""The correlation of the differences by the judge's labels with those by human ones."""

SIZES = tuple(product((30, 100, 200), (500, 2_000)))
RUNS = ((1, 0.0), (3, 0.005))
"""Runs of each system, and the standard deviation of a system's mean score over them."""

MEAN, LOSS, DIFFERENCE_SD = 0.6, 0.04, 0.2
BIASES = (0.05, 0.08)
"""What the judge adds to the scores of each system."""


@dataclass(frozen=True)
class Cell:
    """One configuration."""

    judge: str
    labelled: int
    queries: int
    runs: int
    seed_sd: float

    def drawn(self, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
        """Draw the scores of both systems by people and by the judge, ``(runs, queries)``."""
        share = JUDGES[self.judge]
        difficulty = rng.normal(0.0, 0.2, self.queries)
        own = rng.normal(0.0, DIFFERENCE_SD / math.sqrt(2.0), (2, self.queries))
        errors = rng.normal(0.0, DIFFERENCE_SD / math.sqrt(2.0), (2, self.queries))
        seen = share * own + math.sqrt(1.0 - share**2) * errors
        human, model = [], []
        for arm, mean in enumerate((MEAN, MEAN * (1.0 - LOSS))):
            shifts = self.seed_sd * rng.standard_normal((self.runs, 1))
            noise = 0.5 * self.seed_sd * math.sqrt(self.queries) * rng.standard_normal((self.runs, self.queries))
            of_runs = (shifts + np.clip(noise, -0.2, 0.2)) * (self.runs > 1)
            human.append(mean + difficulty + own[arm] + of_runs)
            model.append(mean + BIASES[arm] + difficulty + seen[arm] + share * of_runs)
        return human, model


def judged(blocks: Sequence[Array], cell: Cell, labelled: np.ndarray | None = None) -> tuple[Estimate, Estimate]:
    """Estimate difference and TIR of two systems on one dataset, whose labelled queries are drawn apart."""
    places = np.arange(blocks[0].shape[1], dtype=np.intp)
    drawn = () if labelled is None else drawn_together([places], [labelled])
    found = moments([blocks], groups_of((cell.runs, cell.runs), paired=False), drawn=drawn)
    weights = np.ones((1, 1))
    return estimate(found, Linear(np.array([[1.0, -1.0]]))), estimate(found, LossRatios(weights))


def simulated(cell: Cell, reps: int, seed: np.random.SeedSequence) -> dict[str, float]:
    """Return coverage, in percent, and widths of one configuration."""
    rng, covered, widths = np.random.default_rng(seed), np.zeros((3, 2)), []
    truths = (MEAN * LOSS, LOSS)
    with threadpool_limits(1):
        for _ in range(reps):
            human, model = cell.drawn(rng)
            labelled = np.zeros(cell.queries, dtype=bool)
            labelled[rng.permutation(cell.queries)[: cell.labelled]] = True
            alone = [scores[:, labelled] for scores in human]
            of_people, of_judge = (np.array([of.mean(axis=0) for of in arms]) for arms in (alone, model))
            labels = Labels(of_people, of_judge, labelled)
            both = [
                np.array([_columns(row, by_model, labels.weight, labelled) for row, by_model in zip(*of, strict=True)])
                for of in zip(alone, model, strict=True)
            ]
            found = (judged(both, cell, labelled), judged(alone, cell), judged(model, cell))
            for way, estimates in enumerate(found):
                for what, (one, truth) in enumerate(zip(estimates, truths, strict=True)):
                    low, high = one.interval or (-math.inf, math.inf)
                    covered[way, what] += low <= truth <= high
            ends = [of[0].interval or (0.0, math.inf) for of in found[:2]]
            widths.append([high - low for low, high in ends])
    ratio = float(np.median(np.divide(*np.array(widths).T)))
    share = 100.0 * covered / reps
    return {"tir": share[0, 1], "difference": share[0, 0], "human": share[1, 0], "model": share[2, 0], "width": ratio}


def _columns(human: Array, model: Array, weight: float, labelled: np.ndarray) -> Array:
    """Return what ``compare`` keeps of one run: a number for each query, whose mean is the estimate."""
    queries = [str(place) for place in range(len(model))]
    scores = PredictedScores.model_construct(queries=queries, scores={"m": model}, weights={"m": weight})
    return scores.columns("m", human.tolist(), labelled)


def main() -> None:
    """Simulate every configuration and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reps", type=int, default=1_000, help="simulated experiments per configuration")
    reps, start = parser.parse_args().reps, time.perf_counter()
    print(f"{processor_name()}, {os.cpu_count()} cores; {reps:,} experiments per configuration")
    cells = [Cell(judge, *size, *runs) for judge, size, runs in product(JUDGES, SIZES, RUNS)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = np.random.SeedSequence(0).spawn(len(cells))
        found = dict(zip(cells, pool.map(simulated, cells, [reps] * len(cells), seeds), strict=True))
    print("| judge | labelled | queries | runs | seed sd | difference | TIR | human alone | model alone | width |")
    print("|---|" + " --: |" * 9)
    for cell, of in found.items():
        shares = " | ".join(f"{of[name]:.1f}" for name in ("difference", "tir", "human", "model"))
        sizes = f"{cell.labelled} | {cell.queries:,} | {cell.runs} | {cell.seed_sd:g}"
        print(f"| {cell.judge} | {sizes} | {shares} | {of['width']:.2f} |")
    error = 100.0 * math.sqrt(0.95 * 0.05 / reps)
    print(f"percent covered; standard error {error:.2f} points; {time.perf_counter() - start:.0f} s in all")
    covered = [of[what] for of in found.values() for what in ("difference", "tir")]
    good = [of["width"] for cell, of in found.items() if cell.judge == "good" and cell.queries >= 10 * cell.labelled]
    print(json.dumps({
        "coverage_min": round(min(covered), 2),
        "coverage_max": round(max(covered), 2),
        "width_good": round(max(good), 3),
        "width_useless": round(max(of["width"] for cell, of in found.items() if cell.judge == "useless"), 3),
        "model_only_coverage_min": round(min(of["model"] for of in found.values()), 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
