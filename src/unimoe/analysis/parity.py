"""Whether two systems score the same pairs alike: a model and its copy behind a server, two dtypes, two libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unimoe.analysis.comparisons import difference
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.statistics.variance import Array
from unimoe.errors import DataError, UsageError, first_few
from unimoe.results import SIDECARS, EvalResult, by_query_id, read_result, refuse_changed_run, run_beside
from unimoe.trec import Run, ranked, read_run

TOP = 10  # documents at the head of a ranking, whose change a reader would see

# Result files below the folder of a seed, of an arm, and of an experiment.
_BELOW = ("results/*/*.json", "seed_*/results/*/*.json", "*/seed_*/results/*/*.json")


@dataclass(frozen=True)
class Scored:
    """A system on one dataset: its result, and its scores of all pairs."""

    result: EvalResult
    run: Run

    @property
    def label(self) -> str:
        """Name and identity."""
        return f"{self.result.config_name} ({self.result.identity.base_model or 'no model'})"


@dataclass(frozen=True)
class Parity:
    """How two systems' scores of the same pairs of one ``task/dataset`` differ."""

    key: str
    systems: tuple[str, str]  # by name and identity
    queries: int
    pairs: int
    largest: float  # the largest absolute difference of two scores
    largest_at: tuple[str, str]  # its query and document
    mean: float  # of all absolute differences
    kendall_mean: float | None  # over queries, Kendall's tau-b of the two orders; None where none has two documents
    kendall_lowest: tuple[float, str] | None  # the lowest of them, and its query
    top_changed: list[str]  # queries whose first ten documents, in their order, are others
    metric: str  # the main one
    means: tuple[float, float]  # of the metric
    measure: Estimate  # their difference, the second system minus the first
    unfit: str  # why that difference has no test, as a clause; empty where it has one


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
    """Read a result with its run; where one of them is missing or damaged, the DataError says what to run."""
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

    Systems without a dataset in common are a DataError, as is what ``parity`` refuses.
    """
    keys = [key for key in first if key in second]
    if not keys:
        raise DataError(
            f"no dataset in common: the first system has {', '.join(first)}, the second {', '.join(second)}; evaluate "
            "both on the same --datasets"
        )
    return [parity(key, read_scored(first[key]), read_scored(second[key])) for key in keys]


def parity(key: str, first: Scored, second: Scored) -> Parity:
    """Compare two systems on one dataset; a DataError if pairs or collection differ, or no measure is shared."""
    _refuse_other_pairs(key, first, second)
    differences: dict[str, Array] = {}
    taus: dict[str, float] = {}
    for query, scores in first.run.items():
        documents = sorted(scores)
        one, other = (np.array([run[query][document] for document in documents]) for run in (first.run, second.run))
        differences[query] = np.abs(one - other)
        if len(documents) > 1:
            taus[query] = _tau(one, other)
    pairs = sum(map(len, differences.values()))
    farthest = max(differences, key=lambda query: differences[query].max())
    lowest = min(taus, key=lambda query: taus[query], default=None)
    metric = _metric(key, first.result, second.result)
    values = [np.array([by_query_id(scored.result.metric(metric))]) for scored in (first, second)]
    measure, unfit = difference(values[1], values[0])
    return Parity(
        key=key,
        systems=(first.label, second.label),
        queries=len(first.run),
        pairs=pairs,
        largest=float(differences[farthest].max()),
        largest_at=(farthest, sorted(first.run[farthest])[differences[farthest].argmax()]),
        mean=math.fsum(float(of_query.sum()) for of_query in differences.values()) / pairs,
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
    ends = found.measure.interval
    test = f"[{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends and not found.unfit else f"(no test: {found.unfit})"
    one, other = found.means
    lines.append(f"  {found.metric:<14} {one:.4f} and {other:.4f}: {found.measure.value:+.4f} {test}")
    return lines


def parity_json(found: Sequence[Parity], tolerance: float) -> dict[str, Any]:
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
    largest = max((one.largest for one in found), default=0.0)
    return {"tolerance": tolerance, "largest": largest, "within": largest < tolerance, "datasets": datasets}


def verdict_line(found: Sequence[Parity], tolerance: float) -> str:
    """Return a sentence about the largest difference and the tolerance."""
    worst = max(found, key=lambda one: one.largest)
    if worst.largest < tolerance:
        return f"parity: no score differs by {tolerance:g} or more"
    alike = all(one.kendall_lowest is None or one.kendall_lowest[0] == 1.0 for one in found)
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


def _tau(one: Array, other: Array) -> float:
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
