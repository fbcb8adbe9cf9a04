"""Any statistic of two systems' scores by query, such as a percentile, with an interval like that of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from unimoe.analysis.analysis import AnyResults, given_results, refuse_unknown
from unimoe.analysis.gates.scores import align
from unimoe.analysis.statistics.estimates import over_draws
from unimoe.analysis.statistics.resampling import drawn_queries
from unimoe.analysis.statistics.variance import Array
from unimoe.core.errors import DataError, UsageError, users_code

Statistic: TypeAlias = Callable[[Array], float]


class StatisticComparison(NamedTuple):
    """A statistic of two systems' scores on one ``task/dataset``, in its own unit; system minus baseline at 95 %."""

    key: str
    metric: str
    queries: int
    system_value: float
    baseline_value: float
    difference: float
    low: float
    high: float


def compare_statistic(
    results: AnyResults,
    function: Statistic,
    system: str,
    baseline: str,
    *,
    dataset: str | None = None,
    metric: str | None = None,
    iterations: int = 2_000,
    seed: int = 0,
) -> StatisticComparison:
    """Compare two systems by any function of their scores by query, such as a percentile, with a 95 % interval.

    The interval holds for other queries and, of systems with several runs, for other runs, which pair where the
    experiment declares it: it is that of the tests, with the variance over queries from resamples that all runs share.
    A single run is taken as it is. A statistic that one query decides, such as the minimum, has no such interval.

    Args:
        results: what ``load_all_results`` or ``compare`` gives, or an output folder.
        function: gets the scores of one run by query, ``(queries,)``, and returns a finite number. A system's value is
            the mean over its runs, so that systems with other numbers of runs compare.
        system: an arm or system.
        baseline: the one to compare it with.
        dataset: a dataset or ``task/dataset``; needed where both have results on several.
        metric: one that the results hold by query; by default the main one.
        iterations: resamples of queries; with 2,000 the interval's width is known to 2 %.
        seed: of the random numbers.

    Raises:
        UsageError: an unknown system or dataset, fewer than two iterations, or a function that returns something else.
        DataError: the results do not hold the metric by query, the function raised, or its value is not finite.
    """
    loaded, arms = given_results(results), (system, baseline)
    if not callable(function):
        raise UsageError(f"the statistic is a {type(function).__name__}; give a function of scores by query")
    if not hasattr(iterations, "__index__") or iterations < 2:
        raise UsageError(f"iterations {iterations}: at least 2 are needed, 2000 are usual")
    refuse_unknown(arms, loaded)
    if not isinstance(metric, str | None):
        raise UsageError(f"the metric is a {type(metric).__name__}; give its name, such as 'ndcg@10'")
    shared = [key for key in loaded.dataset_keys if all(loaded.measured(key, arm) for arm in arms)]
    chosen = [key for key in shared if dataset in (None, key, key.partition("/")[2])]
    if len(chosen) != 1:
        there = ", ".join(shared) or "none"
        raise UsageError(f"dataset={dataset!r} names {len(chosen)} of those with both {system} and {baseline}: {there}")
    (key,) = chosen
    metric = metric or loaded.measured(key, system)[0].main_metric
    aligned = align(loaded, arms, [key], metric)
    (both,) = aligned.by_dataset.values()
    scores = [loaded.scores(arm, key, runs.seeds, metric) for arm, runs in zip(arms, both, strict=True)]
    queries, codes = scores[0].shape[1], loaded.codes(key)
    draws = queries if codes is None else int(codes.max()) + 1
    resamples = drawn_queries(queries, codes, iterations, seed)
    with users_code("the statistic raised"):
        values = [_of_runs(function, runs) for runs in scores]
        of_draws = [[_of_runs(function, runs[:, asked]) for runs in scores] for asked in resamples]
    drawn = [np.stack(of_arm, axis=1) for of_arm in zip(*of_draws, strict=True)]
    found = over_draws(values, drawn, draws, paired=aligned.paired)
    low, high = found.interval or (found.value, found.value)
    value, other = (float(of_arm.mean()) for of_arm in values)
    return StatisticComparison(key, metric, queries, value, other, found.value, low, high)


def _of_runs(function: Statistic, runs: Array) -> Array:
    """Return a statistic of each of some runs ``(runs, queries)``."""
    found = [function(scores) for scores in runs]
    for one in found:
        if not isinstance(one, int | float | np.number) or np.iscomplexobj(one):
            raise UsageError(f"the statistic returned {type(one).__name__}; return one number for an array of scores")
        if not np.isfinite(one):
            raise DataError(
                f"the statistic is {one} for some draw of {runs.shape[1]} queries; define it for every draw"
            )
    return np.array(found, dtype=np.float64)
