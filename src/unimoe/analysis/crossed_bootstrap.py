"""The crossed bootstrap of TIR: the shape of its uncertainty, for figures.

Seeds and queries are resampled independently of each other (Owen 2007, The pigeonhole bootstrap). Verdicts rest on
``unimoe.analysis.crossed`` instead: with three seeds these intervals are too short, since three rows have only ten
resamples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unimoe.analysis.crossed import LEVEL, Array
from unimoe.analysis.interference import MIN_SPECIALIST
from unimoe.analysis.resampling import bootstrap_means


def crossed_bootstrap_tir(specialist: Array, joint: Array, iterations: int, seed: int) -> Array:
    """TIR of one dataset, resampled; ``crossed_bootstrap_across`` for what is drawn and how.

    Args:
        specialist: main metric, ``(seeds, queries)``.
        joint: the same shape, queries in the same order.
        iterations: resamples.
        seed: of the random numbers.

    Returns:
        ``(iterations,)``.
    """
    return crossed_bootstrap_across([(specialist, joint)], np.ones((1, 1)), iterations, seed)


def crossed_bootstrap_across(
    scores: Sequence[tuple[Array, Array]], weights: Array, iterations: int, seed: int
) -> Array:
    """TIR across datasets, resampled.

    Both arms share the draw of queries, since they answer the same ones, and each dataset has its own. The seeds of the
    two arms are drawn apart, since equal numbers do not make them a pair, and once for all datasets, since one training
    run serves all. With one seed only queries vary.

    Args:
        scores: specialist and joint of each dataset, ``(seeds, queries)``; the same seeds everywhere.
        weights: ``(ratios, datasets)`` as ``ratio_weights`` of ``unimoe.analysis.across`` returns them.
        iterations: resamples.
        seed: of the random numbers; equal seeds and sizes give equal bits.

    Returns:
        ``(iterations,)``; minus infinity for a draw that leaves the specialist nearly at 0, so that the interval then
        has no lower end.
    """
    n_seeds = len(scores[0][0])
    of_seeds, *of_queries = np.random.SeedSequence(seed).generate_state(1 + len(scores)).tolist()
    shares = np.random.default_rng(of_seeds).multinomial(n_seeds, [1.0 / n_seeds] * n_seeds, (2, iterations)) / n_seeds
    means = np.empty((2, iterations, len(scores)))
    for i, ((specialist, joint), stream) in enumerate(zip(scores, of_queries, strict=True)):
        by_run = bootstrap_means(np.vstack([specialist, joint]).T, iterations, stream)
        for arm, runs in enumerate(np.split(by_run, 2, axis=1)):
            means[arm, :, i] = (shares[arm] * runs).sum(axis=1)
    base, joint_mean = means @ weights.T
    usable = base.min(axis=1) >= MIN_SPECIALIST
    tir = (1.0 - joint_mean / np.where(usable[:, None], base, 1.0)).mean(axis=1)
    return np.where(usable, tir, -np.inf)


def percentile_interval(draws: Array, level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval of resampled values: order statistics, so that infinite ones do no harm."""
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], method="nearest")
    return float(low), float(high)
