"""Paired comparisons over queries: bootstrap intervals, sign-flip p-values, Holm's correction, effect sizes.

These tests ask about other queries and take the trained seeds as they are; whether other seeds would agree is what the
crossed interval of ``unimoe.analysis.crossed`` asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from unimoe.analysis.interference import pairs
from unimoe.analysis.loading import Results
from unimoe.errors import UsageError

ZERO_SHOT = "zero_shot"
ITERATIONS = 10_000

_CHUNK = 64
"""Resamples drawn at once: the counts of 64 x 6,980 queries are 0.4 MiB as bytes and stay in cache."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """System against baseline on the same queries of one ``task/dataset``.

    Attributes:
        seed: the training seed; None where per-query scores are averaged over ``seeds`` first.
        delta: mean of system minus baseline over queries, in the metric's unit.
        low: lower end of the paired bootstrap's percentile interval of ``delta``, at ``level``.
        high: its upper end.
        p: two-sided, from the sign-flip permutation of per-query differences; never 0.
        p_holm: ``p`` corrected for the comparisons of the same family: seed averages are one family, single seeds
            another.
        effect: Cohen's d of the paired differences, mean over standard deviation; None where they do not vary.
        wins: queries where the system scores higher; ``ties`` and ``losses`` likewise.
    """

    key: str
    metric: str
    system: str
    baseline: str
    seed: int | None
    seeds: tuple[int, ...]
    queries: int
    system_mean: float
    baseline_mean: float
    delta: float
    low: float
    high: float
    level: float
    p: float
    p_holm: float
    effect: float | None
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class _Question:
    """One comparison before its numbers: per-query scores of both sides, ``(queries,)``."""

    system: str
    baseline: str
    seed: int | None
    seeds: tuple[int, ...]
    system_scores: Array
    baseline_scores: Array


def compute_significance(
    results: Results, alpha: float = 0.05, iterations: int = ITERATIONS, seed: int = 0
) -> tuple[Comparison, ...]:
    """Compare each trained arm with zero-shot and each joint arm with its specialist, by seed and averaged over seeds.

    All comparisons on one dataset share their resamples, so that they agree with each other, and the resamples depend
    on ``seed`` and the number of queries only, so that another dataset changes nothing.

    Args:
        results: what ``load_all_results`` returned.
        alpha: intervals have level ``1 - alpha``.
        iterations: resamples, and permutations.
        seed: of the random numbers.

    Raises:
        UsageError: ``alpha`` outside (0, 1), or no iterations.
    """
    if not 0.0 < alpha < 1.0:
        raise UsageError(f"alpha {alpha}: choose a value between 0 and 1, for example 0.05")
    if iterations < 1:
        raise UsageError(f"iterations {iterations}: at least 1 is needed, 10000 are usual")
    found: list[Comparison] = []
    for key in results.dataset_keys:
        questions = list(_questions(results, key))
        if questions:
            metric = results.measured(key)[0].main_metric
            found += _answer(key, metric, questions, alpha, iterations, seed)
    return _corrected(found)


def bootstrap_means(values: Array, iterations: int, seed: int) -> Array:
    """Means of resampled rows, the same resamples for every column.

    A resample is a row of counts, so that many resamples of many columns are one matrix product: in single precision
    around the column means, on one BLAS thread, since more only fight over these small matrices.

    Args:
        values: ``(rows, columns)``.
        iterations: resamples of the rows, with replacement.
        seed: of the random numbers.

    Returns:
        ``(iterations, columns)``.
    """
    n, columns = values.shape
    centre = values.mean(axis=0)
    deviations = (values - centre).astype(np.float32)
    rng = np.random.default_rng(seed)
    index_type = np.uint16 if n <= 2**16 else np.uint32
    ones = np.ones(_CHUNK * n, dtype=np.uint8)  # a count above 255 in n draws of probability 1/n does not happen
    starts = np.arange(_CHUNK + 1, dtype=np.int32) * n
    sums = np.empty((iterations, columns))
    with threadpool_limits(1, user_api="blas"):
        for start in range(0, iterations, _CHUNK):
            size = min(_CHUNK, iterations - start)
            drawn = rng.integers(0, n, size=size * n, dtype=index_type).astype(np.int32)
            counts = csr_array((ones[: size * n], drawn, starts[: size + 1]), shape=(size, n)).toarray()
            sums[start : start + size] = counts.astype(np.float32) @ deviations
    return np.asarray(centre + sums / n)


def sign_flip_p(differences: Array, iterations: int, seed: int) -> Array:
    """Two-sided p-values of mean difference 0, by flipping the sign of each row at random.

    Exact where the differences are symmetric about 0 under the null, and near its nominal level at the sizes met here,
    unlike a p read off the bootstrap (Urbano, Lima & Hanjalic 2019). The observed differences count as one of the
    permutations, so that p is never 0 (Phipson & Smyth 2010).

    Args:
        differences: ``(rows, columns)``; all columns share their flips.
        iterations: random flips.
        seed: of the random numbers.

    Returns:
        ``(columns,)``.
    """
    n, columns = differences.shape
    total = differences.sum(axis=0)
    # Single precision must not turn a tie with the observed sum into a loss.
    threshold = np.abs(total) - 1e-5 * np.abs(differences).sum(axis=0)
    single = differences.astype(np.float32)
    rng = np.random.default_rng(seed)
    width = -(-n // 8)
    extreme = np.zeros(columns, dtype=np.int64)
    with threadpool_limits(1, user_api="blas"):
        for start in range(0, iterations, _CHUNK):
            size = min(_CHUNK, iterations - start)
            random_bytes = np.frombuffer(rng.bytes(size * width), dtype=np.uint8).reshape(size, width)
            flipped = np.unpackbits(random_bytes, axis=1, count=n).astype(np.float32)
            sums = total - 2.0 * (flipped @ single)
            extreme += (np.abs(sums) >= threshold).sum(axis=0)
    return np.asarray((extreme + 1) / (iterations + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down correction: the family-wise error stays at its level whatever the dependence."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def _questions(results: Results, key: str) -> Iterator[_Question]:
    arms = sorted({r.config_name for r in results.measured(key) if r.seed is not None})
    if results.result(ZERO_SHOT, None, key) is not None:
        baseline = results.scores(ZERO_SHOT, key, [None])
        for arm in arms:
            seeds = results.seeds(arm, key)
            scores = results.scores(arm, key, seeds)
            yield from _by_seed_and_averaged(arm, ZERO_SHOT, seeds, scores, np.broadcast_to(baseline, scores.shape))
    task = key.partition("/")[0]
    for pair in pairs(results):
        if pair.task == task and {pair.joint, pair.specialist} <= set(arms):
            theirs = results.seeds(pair.specialist, key)
            common = tuple(s for s in results.seeds(pair.joint, key) if s in theirs)
            joint, specialist = (results.scores(arm, key, common) for arm in (pair.joint, pair.specialist))
            yield from _by_seed_and_averaged(pair.joint, pair.specialist, common, joint, specialist)


def _by_seed_and_averaged(
    system: str, baseline: str, seeds: tuple[int, ...], system_scores: Array, baseline_scores: Array
) -> Iterator[_Question]:
    if len(seeds) > 1:
        yield _Question(system, baseline, None, seeds, system_scores.mean(axis=0), baseline_scores.mean(axis=0))
    for row, seed in enumerate(seeds):
        yield _Question(system, baseline, seed, (seed,), system_scores[row], baseline_scores[row])


def _answer(
    key: str, metric: str, questions: Sequence[_Question], alpha: float, iterations: int, seed: int
) -> Iterator[Comparison]:
    differences = np.column_stack([q.system_scores - q.baseline_scores for q in questions])
    differences[np.abs(differences) < 1e-12] = 0.0  # a tie, but for the rounding of an average
    means = bootstrap_means(differences, iterations, seed)
    lows, highs = np.quantile(means, [alpha / 2.0, 1.0 - alpha / 2.0], axis=0)
    p_values = sign_flip_p(differences, iterations, seed)
    for i, question in enumerate(questions):
        column = differences[:, i]
        yield Comparison(
            key=key,
            metric=metric,
            system=question.system,
            baseline=question.baseline,
            seed=question.seed,
            seeds=question.seeds,
            queries=len(column),
            system_mean=float(question.system_scores.mean()),
            baseline_mean=float(question.baseline_scores.mean()),
            delta=float(column.mean()),
            low=float(lows[i]),
            high=float(highs[i]),
            level=1.0 - alpha,
            p=float(p_values[i]),
            p_holm=math.nan,
            effect=_cohens_d(column),
            wins=int((column > 0).sum()),
            ties=int((column == 0).sum()),
            losses=int((column < 0).sum()),
        )


def _cohens_d(differences: Array) -> float | None:
    if len(differences) < 2 or np.ptp(differences) == 0.0:
        return None
    return float(differences.mean() / differences.std(ddof=1))


def _corrected(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    adjusted = [0.0] * len(comparisons)
    for averaged in (True, False):
        family = [i for i, c in enumerate(comparisons) if (c.seed is None) == averaged]
        for i, p in zip(family, holm([comparisons[i].p for i in family]), strict=True):
            adjusted[i] = p
    return tuple(replace(c, p_holm=p) for c, p in zip(comparisons, adjusted, strict=True))
