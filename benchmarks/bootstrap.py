"""Resampling over queries: the bootstrap against scipy.stats.bootstrap, sign flips against ranx's Fisher randomisation.

    uv run --group benchmarks benchmarks/bootstrap.py

Like with like: percentile intervals of six mean differences over 6,980 queries (MS MARCO dev) from 10,000 resamples,
and two-sided p-values of the same differences from 10,000 random sign flips, which is what swapping two systems' scores
at random comes to. SciPy runs at the fastest of several batch sizes, once over all comparisons together and once over
one after the other; ranx takes one pair of systems at a time, on all cores, compiled beforehand. Ours uses one core.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tracemalloc
from functools import partial
from typing import Any

import numba
import numpy as np
import scipy
from numpy.typing import NDArray
from ranx.statistical_tests import fisher_randomization_test
from scipy.stats import bootstrap

from timing import in_turn, seconds
from unimoe.analysis.statistics.resampling import bootstrap_means, sign_flip_p
from unimoe.results import processor_name

QUERIES, COMPARISONS, ITERATIONS, ROUNDS = 6_980, 6, 10_000, 5
BATCHES = (8, 16, 32, 64, 256)
LEVEL = 0.95

Array = NDArray[np.float64]


def generated(rng: np.random.Generator) -> tuple[Array, Array]:
    """Reciprocal ranks cut at 10 of one baseline and six systems: ``(queries,)`` and ``(queries, comparisons)``."""
    difficulty = rng.normal(size=(QUERIES, 1))
    hidden = difficulty + 0.5 * rng.normal(size=(QUERIES, COMPARISONS + 1)) + 0.02 * np.arange(COMPARISONS + 1)
    ranks = np.maximum(1, np.exp(1.5 - hidden)).astype(int)
    scores = np.where(ranks <= 10, 1.0 / ranks, 0.0)
    return scores[:, 0], scores[:, 1:]


def our_intervals(differences: Array) -> Array:
    """Percentile intervals, ``(2, comparisons)``."""
    tails = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    return np.asarray(np.quantile(bootstrap_means(differences, ITERATIONS, seed=0), tails, axis=0))


def scipy_intervals(differences: Array, batch: int, together: bool) -> Array:
    """The same by SciPy: all comparisons in one call, or a call for each."""
    samples = np.ascontiguousarray(differences.T)

    def interval(sample: Array) -> Any:
        found = bootstrap(
            (sample,),
            np.mean,
            n_resamples=ITERATIONS,
            batch=batch,
            vectorized=True,
            axis=-1,
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(0),
        )
        return found.confidence_interval

    return np.array(interval(samples)) if together else np.array([interval(sample) for sample in samples]).T


def ranx_p_values(baseline: Array, systems: Array) -> list[float]:
    """p-values by ranx, one pair of systems at a time."""
    samples = np.ascontiguousarray(systems.T)
    return [float(fisher_randomization_test(baseline, sample, ITERATIONS)[0]) for sample in samples]


def fastest_scipy(differences: Array) -> tuple[int, bool]:
    """The batch size, and whether all comparisons go together, that cost SciPy least."""
    settings = list(itertools.product(BATCHES, (True, False)))
    taken = [seconds(partial(scipy_intervals, differences, *setting)) for setting in settings]
    for together in (True, False):
        times = (f"{batch}: {t:.2f}" for (batch, way), t in zip(settings, taken, strict=True) if way is together)
        print(f"scipy, comparisons {'together' if together else 'in turn'}, seconds by batch: {', '.join(times)}")
    return settings[taken.index(min(taken))]


def peak_mib(differences: Array) -> float:
    """The most memory that either resampling holds beyond its input, as tracemalloc counts it."""
    tracemalloc.start()
    for resampling in (bootstrap_means, sign_flip_p):
        resampling(differences, ITERATIONS, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def refuse_unless_right(differences: Array, batch: int, together: bool) -> None:
    """Stop unless two runs of ours agree to the bit, and ours with SciPy within resampling error."""
    for resampling in (bootstrap_means, sign_flip_p):
        first, again = (resampling(differences, ITERATIONS, 0) for _ in range(2))
        if first.tobytes() != again.tobytes():
            raise SystemExit(f"{resampling.__name__}: two runs from one seed differ")
    error = differences.std(axis=0) / math.sqrt(QUERIES)
    off = np.abs(our_intervals(differences) - scipy_intervals(differences, batch, together)) / error
    print(f"equal seeds give equal bits; ends of intervals differ from scipy's by at most {off.max():.3f} errors")
    if off.max() > 0.15:
        raise SystemExit("the intervals are not scipy's")


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    baseline, systems = generated(np.random.default_rng(0))
    differences = systems - baseline[:, None]
    print(
        f"{processor_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; numpy {np.__version__}, "
        f"scipy {scipy.__version__}, numba {numba.__version__} with {numba.get_num_threads()} threads"
    )
    print(f"{ITERATIONS:,} resamples x {QUERIES:,} queries x {COMPARISONS} comparisons")
    batch, together = fastest_scipy(differences)
    refuse_unless_right(differences, batch, together)
    vs_scipy = in_turn(
        f"bootstrap against scipy.stats.bootstrap, {'together' if together else 'in turn'}, batch {batch}",
        lambda: our_intervals(differences),
        lambda: scipy_intervals(differences, batch, together),
        ROUNDS,
    ).ratio
    ranx_p_values(baseline[:10], systems[:10])  # compiles
    vs_ranx = in_turn(
        "sign flips against ranx's fisher_randomization_test",
        lambda: sign_flip_p(differences, ITERATIONS, seed=0),
        lambda: ranx_p_values(baseline, systems),
        ROUNDS,
    ).ratio
    peak = peak_mib(differences)
    print(json.dumps({"vs_scipy": round(vs_scipy, 1), "vs_ranx": round(vs_ranx), "peak_mib": round(peak, 1)}))


if __name__ == "__main__":
    main()
