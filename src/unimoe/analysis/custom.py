"""Ask results what no command asks: gates given as data, and a statistic of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unimoe.analysis.comparisons import ALPHA, ITERATIONS, unknown_arm
from unimoe.analysis.gates.definitions import Gate, Registration, given_gates, load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.registration import default_gates, registered_in
from unimoe.analysis.statistics.variance import Array
from unimoe.analysis.systems import SystemComparison
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results, load_all_results

AnyResults = Results | SystemComparison | Path | str
Statistic = Callable[[Array], float]


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


def judge(
    results: AnyResults,
    gates: Registration | Mapping[str, Gate | Mapping[str, Any]] | Path | str | None = None,
    *,
    advisory: bool = False,
) -> tuple[Judgment, ...]:
    """Judge results by gates.

    Args:
        results: what ``load_all_results`` or ``compare`` gives, or an output folder.
        gates: gates by name, each with the keys of a gate file, ``looks`` among them; or a gate file. By default those
            registered in the folder, else default gates. Of gates given as data ``judgment.registered`` is false:
            nothing shows that they were fixed before the scores.
        advisory: judge gates on those of their datasets and seeds that have results.

    Raises:
        UsageError: a gate given as data is malformed.
        DataError: the gate file or the folder cannot be read, or a gate cannot be judged on these results.
    """
    loaded = given_results(results)
    if gates is None:
        registration = registered_in(loaded.output_dir) or default_gates(loaded)
    elif isinstance(gates, str | Path):
        registration = load_gates(Path(gates))
    else:
        registration = gates if isinstance(gates, Registration) else given_gates(gates)
    outcomes = judge_all(loaded, registration, advisory=advisory)
    if refused := next((outcome for outcome in outcomes if isinstance(outcome, Refusal)), None):
        raise refused.error
    return tuple(outcome for outcome in outcomes if isinstance(outcome, Judgment))


def compare_statistic(
    results: AnyResults,
    function: Statistic,
    system: str,
    baseline: str,
    *,
    dataset: str | None = None,
    metric: str | None = None,
    iterations: int = ITERATIONS,
    seed: int = 0,
) -> StatisticComparison:
    """Compare two systems by any function of their scores by query, such as a percentile, with a bootstrap interval.

    Each resample draws queries, the same for both systems, and runs of each system that has several, in pairs where
    the experiment declares that they pair (Owen 2007). The interval holds the middle 95 % of the differences. It is no
    test, and a little too narrow with 25 queries or with two or three runs that differ much. A single run is taken as
    it is. A statistic that one query decides, such as the minimum, has no such interval.

    Args:
        results: what ``load_all_results`` or ``compare`` gives, or an output folder.
        function: gets the scores of one run by query, ``(queries,)``, and returns a finite number. A system's value is
            the mean over its runs, so that systems with other numbers of runs compare.
        system: an arm or system.
        baseline: the one to compare it with.
        dataset: a dataset or ``task/dataset``; needed where both have results on several.
        metric: one that the results hold by query; by default the main one.
        iterations: resamples.
        seed: of the random numbers.

    Raises:
        UsageError: an unknown system or dataset, no iterations, or a function that returns something else.
        DataError: the results do not hold the metric by query, or the statistic of a resample is not finite.
    """
    loaded = given_results(results)
    if not callable(function):
        raise UsageError(f"the statistic is a {type(function).__name__}; give a function of scores by query")
    if not hasattr(iterations, "__index__") or iterations < 1:
        raise UsageError(f"iterations {iterations}: at least 1 is needed, 10000 are usual")
    key, arms = _key(loaded, system, baseline, dataset), (system, baseline)
    metric = metric or loaded.measured(key, system)[0].main_metric
    held = [tuple(result.seed for result in loaded.measured(key, arm)) for arm in arms]
    common = loaded.paired_seeds(arms, [key], *held)
    scores = [loaded.scores(arm, key, common or own, metric) for arm, own in zip(arms, held, strict=True)]
    counts, queries = [len(runs) for runs in scores], scores[0].shape[1]
    rng, differences = np.random.default_rng(seed), np.empty(iterations)
    for iteration in range(iterations):
        # One run fewer than there are: as many would make the variance over runs too small (Rao & Wu 1988).
        drawn = [rng.integers(count, size=max(1, count - 1)) for count in counts]
        asked = rng.integers(queries, size=queries)
        chosen = (runs[drawn[0 if common else i]][:, asked] for i, runs in enumerate(scores))
        differences[iteration] = _mean_of(function, next(chosen)) - _mean_of(function, next(chosen))
    low, high = np.quantile(differences, [ALPHA / 2.0, 1.0 - ALPHA / 2.0]).tolist()
    value, other = (_mean_of(function, runs) for runs in scores)
    return StatisticComparison(key, metric, queries, value, other, value - other, low, high)


def given_results(results: AnyResults) -> Results:
    """Return results given in any of their forms; a folder is read."""
    if isinstance(results, SystemComparison):
        return results.results
    if isinstance(results, Results):
        return results
    if not isinstance(results, str | Path):
        raise UsageError(
            f"the results are a {type(results).__name__}; give an output folder, or what load_all_results gives"
        )
    return load_all_results(results)


def _key(results: Results, system: str, baseline: str, dataset: str | None) -> str:
    """Return the one ``task/dataset`` on which two arms are compared."""
    if unknown := next((arm for arm in (system, baseline) if arm not in results), None):
        raise UsageError(unknown_arm(unknown, results))
    shared = [key for key in results.dataset_keys if all(results.measured(key, arm) for arm in (system, baseline))]
    chosen = [key for key in shared if dataset in (None, key, key.partition("/")[2])]
    if len(chosen) != 1:
        there = ", ".join(shared) or "none"
        raise UsageError(f"dataset={dataset!r} names {len(chosen)} of those with both {system} and {baseline}: {there}")
    return chosen[0]


def _mean_of(function: Statistic, runs: Array) -> float:
    """Return the mean over runs ``(runs, queries)`` of a statistic of each."""
    found = [function(scores) for scores in runs]
    for one in found:
        if not isinstance(one, int | float | np.number) or np.iscomplexobj(one):
            raise UsageError(f"the statistic returned {type(one).__name__}; return one number for an array of scores")
        if not np.isfinite(one):
            raise DataError(
                f"the statistic is {one} for some draw of {runs.shape[1]} queries; define it for every draw"
            )
    return float(np.mean(found))
