"""How often a difference is said to vary between groups of queries, where it does not and where it does.

    uv run benchmarks/groups.py [--reps N]

The code that judges real results judges simulated experiments, in which the same runs answer all groups of queries. A
run shifts all its scores, and those of each group by a part of its own. Differences of queries are normal, skewed (a
few queries lose much, graded by chance) or 0/1; groups have other mean scores, and other variances with that. Level and
power in percent, of p below .05; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
from scipy.special import ndtri
from threadpoolctl import threadpool_limits

from simulated_arms import Array
from unimoe.analysis.gates.scores import Aligned, Runs
from unimoe.analysis.groups import by_group
from unimoe.core.grouping import gathered

SIZES: dict[str, tuple[int, ...]] = {"10/290": (10, 290), "150/150": (150, 150), "20/60/220": (20, 60, 220)}
SEEDS = {"one run": (1, 1), "3 v 3": (3, 3), "3 v 3 paired": (3, 3)}
SHAPES = ("normal", "skewed", "0/1")
SHIFT = 0.01
"""Standard deviation of a run's shift in all groups, and of its own in each group; one run is taken as it is."""
GAINS = (0.0, 0.03, 0.06)
"""What the first group has more: 0 gives the level, the others power."""
Cell = tuple[str, str, str, bool, float]


def experiment(
    sizes: Sequence[int], runs: tuple[int, int], shape: str, sd: float, rng: np.random.Generator, *,
    paired: bool = False, gain: float = 0.0, ratio: bool = False,
) -> tuple[Aligned, list[str]]:  # fmt: skip
    """Draw scores of two arms by query; the difference, or TIR, is ``gain`` higher in the first group."""
    blocks: list[list[Array]] = [[], []]
    both = sd * rng.standard_normal((2, max(runs)))
    for place, size in enumerate(sizes):
        mean = 0.4 + 0.3 * place / len(sizes)
        base = mean + 0.15 * rng.standard_normal(size)
        loss = (0.03 + gain * (place == 0)) * (mean / 0.5 if ratio else 1.0)
        shifts = both + sd * rng.standard_normal((2, max(runs)))
        if paired:
            shifts = math.sqrt(0.5) * (shifts + math.sqrt(2.0) * sd * rng.standard_normal(max(runs)))
        if shape == "0/1":  # whether a normal variable is above 0; a run draws a tenth of its variance again
            shares = np.sqrt([0.5, 0.4, 0.1])
            own = shares[0] * rng.standard_normal(size) + shares[1] * rng.standard_normal((2, size))
            arms = list(ndtri([[mean], [mean - loss]]) + own)
        elif shape == "skewed":
            arms = [base, base - rng.exponential(loss / 0.15, size) * (rng.random(size) < 0.15)]
        else:
            arms = [base, base - loss - 0.15 * rng.standard_normal(size)]
        for arm, (means, number) in enumerate(zip(arms, runs, strict=True)):
            moved = shifts[arm, :number, None] * (number > 1)  # one run is taken as it is
            noise = rng.standard_normal((number, size))
            if shape == "0/1":
                drawn = (means + 2.5 * moved + shares[2] * noise > 0.0).astype(np.float64)
            else:
                drawn = means + moved + 0.02 * noise
            blocks[arm].append(drawn)
    first, second = (Runs(tuple(range(len(of[0]))), np.concatenate(of, axis=1)) for of in blocks)
    groups = [f"group {place}" for place, size in enumerate(sizes) for _ in range(size)]
    return Aligned(("specialist", "joint"), paired, {"one": (first, second)}), groups


def rejected(cell: Cell, reps: int, seed: int) -> tuple[int, int]:
    """Return how many experiments of a cell say that values vary, and in how many there was a test."""
    sizes, seeds, shape, ratio, gain = cell
    rng, said, tested = np.random.default_rng([17, seed]), 0, 0
    with threadpool_limits(1):
        for _ in range(reps):
            paired = seeds.endswith("paired")
            drawn = experiment(SIZES[sizes], SEEDS[seeds], shape, SHIFT, rng, paired=paired, gain=gain, ratio=ratio)
            _, found = by_group(*drawn, ratio=ratio)
            tested += found is not None
            said += found is not None and found.p < 0.05
    return said, tested


def percent(said: int, of: int) -> str:
    """Return a share with its standard error."""
    share = said / of
    return f"{100 * share:.1f} ± {100 * math.sqrt(share * (1 - share) / of):.1f}"


def main() -> None:
    """Simulate each cell and print its row; then levels of cells with one number of seeds and one set of sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=100, help="experiments of each cell")
    reps, start = parser.parse_args().reps, time.perf_counter()
    cells: list[Cell] = list(product(SIZES, SEEDS, SHAPES, (False, True), GAINS[:1]))
    cells += [("150/150", seeds, "normal", False, gain) for seeds in SEEDS for gain in GAINS[1:]]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(rejected, cells, [reps] * len(cells), range(len(cells))))
    for (sizes, seeds, shape, ratio, gain), (said, tested) in zip(cells, found, strict=True):
        what = f"{sizes}, {seeds}, {shape}, {'TIR' if ratio else 'difference'}, {100 * gain:g} points more"
        print(f"{what}: {percent(said, reps)} % vary; tested in {100 * tested / reps:.0f} %")
    level = gathered((cell[:2], said) for cell, (said, _) in zip(cells, found, strict=True) if not cell[-1])
    for (sizes, seeds), of in level.items():
        print(f"level with {sizes}, {seeds}: {percent(sum(of), reps * len(of))} %")
    shares = [100 * sum(of) / (reps * len(of)) for of in level.values()]
    power = {f"{cell[1]}, {100 * cell[-1]:g} points": 100 * said / reps
             for cell, (said, _) in zip(cells, found, strict=True) if cell[-1]}  # fmt: skip
    print(json.dumps({
        "reps": reps, "level_min": round(min(shares), 2), "level_max": round(max(shares), 2), "power": power,
        "seconds": round(time.perf_counter() - start, 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
