"""Paired comparisons over queries: intervals, p-values, corrections for their number, effect sizes.

These tests ask about other queries and take the trained seeds as they are; whether other seeds would agree is what the
crossed interval of ``unimoe.analysis.crossed`` asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from unimoe.analysis.corrections import benjamini_hochberg, holm
from unimoe.analysis.interference import pairs
from unimoe.analysis.loading import Results
from unimoe.analysis.resampling import Array, bootstrap_t, max_t, sign_flip_p, standard_deviations
from unimoe.errors import UsageError

ZERO_SHOT = "zero_shot"
FIRST_STAGE = "bm25"
ITERATIONS = 10_000


@dataclass(frozen=True)
class Comparison:
    """System against baseline on the same queries of one ``task/dataset``.

    Comparisons are corrected by family. Averages over seeds are one family, single seeds another. Holm and
    Benjamini-Hochberg take the family over all datasets; max-T takes its part on this dataset, the only ones that share
    queries.

    Attributes:
        seed: the training seed; None where per-query scores are averaged over ``seeds`` first.
        delta: mean of system minus baseline over queries, in the metric's unit.
        low: lower end of the paired bootstrap's percentile interval of ``delta``, at ``level``.
        high: its upper end.
        level: of this interval alone, and of the simultaneous ones of a family together.
        p: two-sided, from the sign-flip permutation of per-query differences; never 0.
        p_holm: ``p`` corrected by Holm: the chance of any false one in the family stays below alpha.
        effect: Cohen's d of the paired differences, mean over standard deviation; None where they do not vary.
        wins: queries where the system scores higher; ``ties`` and ``losses`` likewise.
        p_t: two-sided, from the paired t-test; 1 where the differences do not vary, which leaves t undefined.
        p_bh: ``p`` corrected by Benjamini and Hochberg: the expected share of false ones among those found.
        simultaneous_low: lower end of the max-T interval: those of the family on this dataset hold together, at
            ``level``. From the bootstrap-t; infinite where the queries are too few to bound it, ``delta`` where the
            differences do not vary.
        simultaneous_high: its upper end.
        p_max_t: two-sided, corrected by max-T from the same draws; 1 where the differences do not vary.
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
    p_t: float
    p_bh: float
    simultaneous_low: float
    simultaneous_high: float
    p_max_t: float

    @property
    def relative(self) -> float | None:
        """``delta`` as a fraction of the baseline's mean; None where that is 0."""
        return self.delta / self.baseline_mean if self.baseline_mean else None

    @property
    def superiority(self) -> float:
        """Chance that the system scores higher on a query, ties counting half (Grissom & Kim 2012)."""
        return (self.wins + self.ties / 2.0) / self.queries


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
    """Compare trained arms with what they should beat, by seed and averaged over seeds.

    Each arm is compared with zero-shot, each joint arm with its specialist, and each arm with BM25, the first stage,
    where these were measured on the dataset.

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


def _questions(results: Results, key: str) -> Iterator[_Question]:
    arms = sorted({r.config_name for r in results.measured(key) if r.seed is not None})
    for questions in _against_untrained(results, key, arms, ZERO_SHOT):
        yield from questions
    task = key.partition("/")[0]
    for pair in pairs(results):
        if pair.task == task and {pair.joint, pair.specialist} <= set(arms):
            theirs = results.seeds(pair.specialist, key)
            common = tuple(s for s in results.seeds(pair.joint, key) if s in theirs)
            joint, specialist = (results.scores(arm, key, common) for arm in (pair.joint, pair.specialist))
            yield from _by_seed_and_averaged(pair.joint, pair.specialist, common, joint, specialist)
    for questions in _against_untrained(results, key, arms, FIRST_STAGE):
        yield questions[0]  # seeds averaged where there are several: seed by seed is for the arms' own comparisons


def _against_untrained(results: Results, key: str, arms: Sequence[str], baseline: str) -> Iterator[list[_Question]]:
    """Every arm against a baseline that has one result whatever the seed; nothing where it was not measured."""
    if results.result(baseline, None, key) is not None:
        its_scores = results.scores(baseline, key, [None])
        for arm in arms:
            seeds = results.seeds(arm, key)
            scores = results.scores(arm, key, seeds)
            yield list(_by_seed_and_averaged(arm, baseline, seeds, scores, np.broadcast_to(its_scores, scores.shape)))


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
    n = len(differences)
    deltas, errors = differences.mean(axis=0), standard_deviations(differences) / math.sqrt(n)
    t = np.divide(deltas, errors, out=np.zeros_like(deltas), where=errors > 0.0)
    means, resampled_t = bootstrap_t(differences, iterations, seed)
    lows, highs = np.quantile(means, [alpha / 2.0, 1.0 - alpha / 2.0], axis=0)
    margins, p_max_t = _simultaneous(questions, t, errors, resampled_t, alpha)
    p_flip, p_t = sign_flip_p(differences, iterations, seed), _t_test(t, n)
    for i, question in enumerate(questions):
        column = differences[:, i]
        yield Comparison(
            key=key,
            metric=metric,
            system=question.system,
            baseline=question.baseline,
            seed=question.seed,
            seeds=question.seeds,
            queries=n,
            system_mean=float(question.system_scores.mean()),
            baseline_mean=float(question.baseline_scores.mean()),
            delta=float(deltas[i]),
            low=float(lows[i]),
            high=float(highs[i]),
            level=1.0 - alpha,
            p=float(p_flip[i]),
            p_holm=float(p_flip[i]),
            effect=float(t[i]) / math.sqrt(n) if errors[i] > 0.0 else None,
            wins=int((column > 0).sum()),
            ties=int((column == 0).sum()),
            losses=int((column < 0).sum()),
            p_t=float(p_t[i]),
            p_bh=float(p_flip[i]),
            simultaneous_low=float(deltas[i] - margins[i]),
            simultaneous_high=float(deltas[i] + margins[i]),
            p_max_t=float(p_max_t[i]),
        )


def _simultaneous(
    questions: Sequence[_Question], t: Array, errors: Array, resampled_t: Array, alpha: float
) -> tuple[Array, Array]:
    """Half-widths of the max-T intervals and adjusted p-values, by family: ``(questions,)`` both."""
    margins, p_values = np.zeros_like(t), np.ones_like(t)
    for family in _families([question.seed for question in questions]):
        varying = [i for i in family if errors[i] > 0.0]
        if varying:
            reach, p_values[varying] = max_t(t[varying], resampled_t[:, varying], alpha)
            margins[varying] = reach * errors[varying]
    return margins, p_values


def _families(seeds: Sequence[int | None]) -> Iterator[list[int]]:
    """Places of the averages over seeds, then of the single seeds."""
    for averaged in (True, False):
        yield [i for i, seed in enumerate(seeds) if (seed is None) == averaged]


def _t_test(t: Array, n: int) -> Array:
    """Two-sided p; the smallest number there is where double precision would say 0."""
    if n < 2:
        return np.ones_like(t)
    return np.asarray(np.maximum(2.0 * stdtr(n - 1, -np.abs(t)), np.finfo(np.float64).tiny))


def _corrected(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    corrected = list(comparisons)
    for family in _families([c.seed for c in comparisons]):
        p_values = [comparisons[i].p for i in family]
        for i, by_holm, by_bh in zip(family, holm(p_values), benjamini_hochberg(p_values), strict=True):
            corrected[i] = replace(comparisons[i], p_holm=by_holm, p_bh=by_bh)
    return tuple(corrected)
