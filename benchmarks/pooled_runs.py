"""What pooled runs win and cost: power and size of a row, and false marks where arms vary unlike (``pool_runs``).

    uv run benchmarks/pooled_runs.py [--reps N]

Eight systems have three runs each on 200 queries; seven are compared with the first. Power is that of a difference of
3.5 standard errors. Where arms vary unlike, the standard deviations of their runs are lognormal (0.5).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from unimoe.analysis.gates.findings import mean_difference
from unimoe.analysis.gates.scores import Aligned, Runs
from unimoe.analysis.statistics.estimates import holm

Array = NDArray[np.float64]
SYSTEMS, RUNS, QUERIES, OWN = 8, 3, 200, 0.2
RATIOS = (0.3, 2.0, 10.0)  # of the variances that runs and queries give to a difference
UNLIKE = 0.5


def p_values(systems: list[Array], *, pooled: bool) -> list[float]:
    """Return the p of each system against the first."""
    found = []
    seeds = tuple(range(RUNS))
    for place in range(1, SYSTEMS):
        others = tuple(s.mean(axis=1)[:, None] for i, s in enumerate(systems) if i not in (0, place))
        both = (Runs(seeds, systems[place]), Runs(seeds, systems[0]))
        aligned = Aligned(("system", "baseline"), False, {"one": both}, pool=others if pooled else None)
        found.append(aligned.estimate(mean_difference(["one"])).p or 0.0)
    return found


def simulated(ratio: float, seed: np.random.SeedSequence, reps: int) -> dict[str, float]:
    """Return percentages of experiments, by name."""
    rng, counts = np.random.default_rng(seed), dict[str, float]()
    of_queries = 2.0 * OWN**2 / QUERIES
    sd, error = math.sqrt(ratio * of_queries * RUNS / 2.0), math.sqrt(of_queries * (1.0 + ratio))

    def draw(sds: Array) -> list[Array]:
        base = rng.normal(0.5, 0.2, QUERIES)
        own = (base + rng.normal(0.0, OWN, QUERIES) + rng.normal(0.0, s, (RUNS, 1)) for s in sds)
        return [scores + rng.normal(0.0, 0.05, scores.shape) for scores in own]

    with threadpool_limits(1):
        for _ in range(reps):
            alike, unlike = np.full(SYSTEMS, sd), sd * np.exp(rng.normal(0.0, UNLIKE, SYSTEMS))
            equal, differing = draw(alike), draw(unlike)
            better = [equal[0], equal[1] + 3.5 * error, *equal[2:]]
            for pooled in (False, True):
                how = "pooled" if pooled else "separate"
                of_equal, of_unlike = p_values(equal, pooled=pooled), p_values(differing, pooled=pooled)
                for name, hit in (
                    ("power", p_values(better, pooled=pooled)[0] < 0.05),
                    ("size", np.mean(np.array(of_equal) < 0.05)),
                    ("tables with a mark", min(holm(of_equal)) < 0.05),
                    ("unlike: tables with a mark", min(holm(of_unlike)) < 0.05),
                    ("unlike: row of the most variable", of_unlike[int(unlike[1:].argmax())] < 0.05),
                ):
                    key = f"{name}, {how}"
                    counts[key] = counts.get(key, 0.0) + 100.0 * float(hit) / reps
    return counts


def main() -> None:
    """Print a row for each statement, a column for each ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reps", type=int, default=2_000)
    reps, start = parser.parse_args().reps, time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = np.random.SeedSequence(0).spawn(len(RATIOS))
        found = list(pool.map(partial(simulated, reps=reps), RATIOS, seeds))
    print(f"| percent | {' | '.join(f'V_run / V_query {ratio:g}' for ratio in RATIOS)} |")
    print("|---|" + " --: |" * len(RATIOS))
    for name in found[0]:
        print(f"| {name} | {' | '.join(f'{of_ratio[name]:.1f}' for of_ratio in found)} |")
    error = 100.0 * math.sqrt(0.05 * 0.95 / reps)
    print(f"standard error at 5 %: {error:.2f}; {time.perf_counter() - start:.0f} s in all")
    ends: dict[str, float] = {}
    for how in ("separate", "pooled"):
        ends[f"power_min, {how}"] = round(min(of_ratio[f"power, {how}"] for of_ratio in found), 2)
        false = [of_ratio[f"{kind}tables with a mark, {how}"] for of_ratio in found for kind in ("", "unlike: ")]
        ends[f"false_tables_max, {how}"] = round(max(false), 2)
    print(json.dumps({"reps": reps, **ends}))


if __name__ == "__main__":
    main()
