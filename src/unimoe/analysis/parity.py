"""Whether two systems score the same pairs alike: a model and its copy behind a server, two dtypes, two libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unimoe.analysis.comparisons import difference
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.errors import DataError, UsageError, first_few
from unimoe.results import SIDECARS, EvalResult, read_result, refuse_changed_run, run_beside
from unimoe.trec import Run, ranked, read_run

TOP = 10
"""Documents at the head of a ranking, whose change a reader would see."""

_BELOW = ("results/*/*.json", "seed_*/results/*/*.json", "*/seed_*/results/*/*.json")
"""Result files below the folder of a seed, of an arm, and of an experiment."""


@dataclass(frozen=True)
class Scored:
    """A system on one dataset.

    Attributes:
        result: its result.
        run: the score of every pair.
    """

    result: EvalResult
    run: Run

    @property
    def label(self) -> str:
        """Name and identity."""
        return f"{self.result.config_name} ({self.result.identity.base_model or 'no model'})"


@dataclass(frozen=True)
class Parity:
    """How two systems' scores of the same pairs of one ``task/dataset`` differ.

    Attributes:
        systems: the two, by name and identity.
        largest: the largest absolute difference of two scores; ``mean``: the mean of all.
        largest_at: query and document of the largest.
        kendall_mean: mean over queries of Kendall's tau-b of the two orders; None where no query has two documents.
        kendall_lowest: the lowest of them, and its query.
        top_changed: queries whose first ten documents, in their order, are others.
        metric: the main one, of whose means ``means`` and ``measure`` are: the second system minus the first.
        unfit: why the difference of the means has no test, as a clause; empty where it has one.
    """

    key: str
    systems: tuple[str, str]
    queries: int
    pairs: int
    largest: float
    largest_at: tuple[str, str]
    mean: float
    kendall_mean: float | None
    kendall_lowest: tuple[float, str] | None
    top_changed: list[str]
    metric: str
    means: tuple[float, float]
    measure: Estimate
    unfit: str


def result_paths(path: Path) -> dict[str, Path]:
    """Return the reranking results at a path by ``task/dataset``: a file, or the folder of a seed, arm or system.

    A folder of several arms has the first stage's results beside one system's; nothing is found in other folders.

    Raises:
        UsageError: the folder holds several systems.
        DataError: a result is damaged.
    """
    if path.is_file() and path.suffix == ".json":
        return {read_result(path).key: path}
    for pattern in _BELOW if path.is_dir() else ():
        files = [file for file in sorted(path.glob(pattern)) if not file.name.endswith(SIDECARS)]
        if files:
            return _of_one_system(path, files)
    return {}


def read_scored(path: Path) -> Scored:
    """Read a result with its run.

    Raises:
        DataError: one of them is missing or damaged; says what to run.
    """
    result = read_result(path)
    run = run_beside(path)
    if not run.is_file():
        raise DataError(
            f"{path}: its run {run} is missing, and a result holds no scores of pairs; delete the result and run "
            f"`unimoe evaluate` again"
        )
    refuse_changed_run(run, result)
    return Scored(result, read_run(run))


def compare_scores(first: Mapping[str, Path], second: Mapping[str, Path]) -> list[Parity]:
    """Compare two systems on every dataset that both have results of, as ``result_paths`` finds them.

    Raises:
        DataError: they have none in common, or not the same pairs.
    """
    keys = [key for key in first if key in second]
    if not keys:
        raise DataError(
            f"no dataset in common: the first system has {', '.join(first)}, the second {', '.join(second)}; evaluate "
            "both on the same --datasets"
        )
    return [parity(key, read_scored(first[key]), read_scored(second[key])) for key in keys]


def parity(key: str, first: Scored, second: Scored) -> Parity:
    """Compare two systems on one dataset.

    Raises:
        DataError: they scored other pairs or another collection, or have no measure in common.
    """
    _refuse_other_pairs(key, first, second)
    largest, at, total, pairs = -1.0, ("", ""), [], 0
    taus: dict[str, float] = {}
    for query, scores in first.run.items():
        documents = sorted(scores)
        one = np.array([scores[document] for document in documents])
        other = np.array([second.run[query][document] for document in documents])
        gaps = np.abs(one - other)
        worst = int(gaps.argmax())
        if gaps[worst] > largest:
            largest, at = float(gaps[worst]), (query, documents[worst])
        total.append(float(gaps.sum()))
        pairs += len(documents)
        if len(documents) > 1:
            taus[query] = _tau(one, other)
    metric = _metric(key, first.result, second.result)
    by_query = [result.metric(metric) for result in (first.result, second.result)]
    ids = sorted(by_query[0])
    values = [np.array([[own[query] for query in ids]]) for own in by_query]
    measure, unfit = difference(values[1], values[0])
    lowest = min(taus, key=lambda query: taus[query], default=None)
    return Parity(
        key=key,
        systems=(first.label, second.label),
        queries=len(first.run),
        pairs=pairs,
        largest=largest,
        largest_at=at,
        mean=math.fsum(total) / pairs,
        kendall_mean=math.fsum(taus.values()) / len(taus) if taus else None,
        kendall_lowest=None if lowest is None else (taus[lowest], lowest),
        top_changed=[q for q in first.run if ranked(first.run[q])[:TOP] != ranked(second.run[q])[:TOP]],
        metric=metric,
        means=(float(values[0].mean()), float(values[1].mean())),
        measure=measure,
        unfit=unfit,
    )


def parity_lines(found: Parity) -> list[str]:
    """Return a comparison as lines of text."""
    lines = [f"{found.key}: {found.systems[0]} and {found.systems[1]}"]
    query, document = found.largest_at
    lines.append(f"  scores         {found.pairs:,} pairs of {found.queries:,} queries")
    lines.append(f"  difference     largest {found.largest:.3g} (query {query}, document {document})")
    lines.append(f"                 mean {found.mean:.3g}")
    if found.kendall_mean is not None and found.kendall_lowest is not None:
        low, where = found.kendall_lowest
        lines.append(f"  Kendall's tau  mean {found.kendall_mean:.4f}, lowest {low:.4f} (query {where})")
    changed = f" ({first_few(found.top_changed)})" if found.top_changed else ""
    lines.append(f"  top {TOP}         other in {len(found.top_changed):,} of {found.queries:,} queries{changed}")
    low_high = found.measure.interval
    ends = (
        f" [{low_high[0]:+.4f}, {low_high[1]:+.4f}]" if low_high and not found.unfit else f" (no test: {found.unfit})"
    )
    one, other = found.means
    lines.append(f"  {found.metric:<14} {one:.4f} and {other:.4f}: {found.measure.value:+.4f}{ends}")
    return lines


def parity_json(found: Iterable[Parity], tolerance: float) -> dict[str, Any]:
    """Return comparisons as plain data."""
    datasets = [
        {
            "key": one.key,
            "systems": list(one.systems),
            "queries": one.queries,
            "pairs": one.pairs,
            "largest_difference": one.largest,
            "largest_at": {"query": one.largest_at[0], "document": one.largest_at[1]},
            "mean_difference": one.mean,
            "kendall_mean": one.kendall_mean,
            "kendall_lowest": one.kendall_lowest and one.kendall_lowest[0],
            "kendall_lowest_query": one.kendall_lowest and one.kendall_lowest[1],
            "top_changed": one.top_changed,
            "metric": one.metric,
            "means": list(one.means),
            "measure_difference": one.measure.as_json(),
            "unfit": one.unfit or None,
        }
        for one in found
    ]
    largest = max((float(str(one["largest_difference"])) for one in datasets), default=0.0)
    return {"tolerance": tolerance, "largest": largest, "within": largest < tolerance, "datasets": datasets}


def verdict_line(found: Iterable[Parity], tolerance: float) -> str:
    """Return a sentence about the largest difference and the tolerance."""
    every = list(found)
    worst = max(every, key=lambda one: one.largest)
    if worst.largest < tolerance:
        return f"parity: no score differs by {tolerance:g} or more"
    alike = all(one.kendall_lowest is None or one.kendall_lowest[0] == 1.0 for one in every)
    why = "; the order is the same, so the scores may be on two scales, as a margin and a probability are"
    return f"no parity: scores differ by up to {worst.largest:.3g} ({worst.key}), tolerance {tolerance:g}{why * alike}"


def _of_one_system(path: Path, files: list[Path]) -> dict[str, Path]:
    found: dict[str, dict[str, Path]] = {}
    for file in files:
        result = read_result(file)
        if result.task == "reranking" and result.identity.base_model is not None:
            found.setdefault(str(file.parents[2]), {})[result.key] = file
    if len(found) > 1:
        raise UsageError(f"{path}: holds results of {len(found)} systems; name one of {', '.join(sorted(found))}")
    return next(iter(found.values()), {})


def _refuse_other_pairs(key: str, first: Scored, second: Scored) -> None:
    hashes = [scored.result.provenance.hashes.get("collection") for scored in (first, second)]
    if None not in hashes and hashes[0] != hashes[1]:
        raise DataError(f"{key}: two collections of one name (other texts or judgments); evaluate both on one of them")
    for query in {**first.run, **second.run}:
        one, other = first.run.get(query, {}).keys(), second.run.get(query, {}).keys()
        if one != other:
            document = min(one ^ other)
            holder = first if document in one else second
            raise DataError(
                f"{key}: query {query!r}, document {document!r} was scored by {holder.result.config_name} alone; "
                "evaluate both on the same candidates (evaluation.first_stage, depth and --max-queries)"
            )
    if not first.run:
        raise DataError(f"{key}: no pair was scored; evaluate both on a collection with candidates")


def _tau(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return Kendall's tau-b; 1 where neither orders anything, 0 where one of them alone does not."""
    from scipy.stats import kendalltau

    flat = [bool((values == values[0]).all()) for values in (one, other)]
    if any(flat):
        return float(all(flat))
    return round(float(kendalltau(one, other).statistic), 12)  # 1 for equal orders, where scipy leaves a last bit


def _metric(key: str, first: EvalResult, second: EvalResult) -> str:
    held = second.per_query_metrics.keys() | {second.main_metric}
    metric = next((name for name in (first.main_metric, *first.per_query_metrics) if name in held), None)
    if metric is None or first.per_query.keys() != second.per_query.keys():
        raise DataError(f"{key}: the two were not judged by one measure on the same queries; evaluate both again")
    return metric
