"""Whether two systems score the same pairs alike: a model and its copy behind a server, two dtypes, two libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unimoe.analysis.comparisons import difference
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.statistics.variance import Array
from unimoe.core.errors import DataError, path_of
from unimoe.core.trec import Run, ranked
from unimoe.formats.runs import read_run
from unimoe.results import EvalResult, by_query_id, read_result, result_paths, run_beside
from unimoe.results.comparability import caveats_of

TOP = 10  # documents at the head of a ranking: a reader would see their change


class Scored(NamedTuple):
    """A system on one dataset: its result, and its scores of all pairs."""

    result: EvalResult
    run: Run


@dataclass(frozen=True)
class Parity:
    """How two systems' scores of the same pairs of one ``task/dataset`` differ."""

    key: str
    systems: tuple[str, str]  # by name and identity
    queries: int
    pairs: int
    largest: float  # the largest absolute difference of two scores
    largest_at: tuple[str, str]  # its query and document
    span: float  # of all scores, the wider of the two systems'
    mean: float  # of all absolute differences
    kendall_mean: float | None  # over queries, Kendall's tau-b of the two orders; None where none has two documents
    kendall_lowest: tuple[float, str] | None  # the lowest of them, and its query
    top_changed: list[str]  # queries with other first ten documents, or in another order
    metric: str  # the main one
    means: tuple[float, float]  # of the metric
    measure: Estimate  # their difference, the second system minus the first
    unfit: str  # why that difference has no test, as a clause; empty where it has one
    caveats: tuple[str, ...] = ()  # what to read the scores with, each with its system

    @property
    def relative(self) -> float:
        """The largest difference as a share of the range: a hundredth is nothing to logits, and much to cosines."""
        if self.largest == 0:
            return 0.0
        return self.largest / self.span if self.span else math.inf

    @property
    def share_changed(self) -> float:
        """The share of queries with a change among the first documents."""
        return len(self.top_changed) / self.queries

    def within(self, tolerance: float, ranking_tolerance: float) -> bool:
        """Return whether scores differ by less than this share of their range, and no more rankings change than may."""
        return self.relative < tolerance and self.share_changed <= ranking_tolerance


def parity(first: str | Path | Mapping[str, Path], second: str | Path | Mapping[str, Path]) -> list[Parity]:
    """Compare two systems on every dataset that both have reranking results of.

    Args:
        first: a result file; the folder of a seed, an arm or a system; or result files by ``task/dataset``.
        second: the same.

    Returns:
        A comparison for each dataset; differences of the measure are the second system's minus the first's.

    Raises:
        UsageError: a folder holds several systems.
        DataError: no results, no dataset in common, or systems that did not score the same pairs.
    """
    found = []
    for side in (first, second):
        found.append(side if isinstance(side, Mapping) else result_paths(path_of(side, "a system's results")))
        if not found[-1]:
            raise DataError(f"{side}: no reranking results here; name a result file, or a folder of one system")
    one, other = found
    keys = [key for key in one if key in other]
    if not keys:
        raise DataError(
            f"no dataset in common: the first system has {', '.join(one)}, the second {', '.join(other)}; evaluate "
            "both on the same --dataset"
        )
    return [compare_dataset(key, _read(one[key]), _read(other[key])) for key in keys]


def _read(path: Path) -> Scored:
    result, run = read_result(path), run_beside(path)
    if not run.is_file():
        raise DataError(
            f"{path}: its run {run} is missing, and a result holds no scores of pairs; delete the result and run "
            f"`unimoe evaluate` again"
        )
    return Scored(result, read_run(run))


def compare_dataset(key: str, first: Scored, second: Scored) -> Parity:
    """Compare two systems on one dataset; a DataError if pairs or collection differ, or no measure is shared."""
    _refuse_other_pairs(key, first, second)
    runs, results = (first.run, second.run), (first.result, second.result)
    differences, taus = dict[str, Array](), dict[str, float]()
    for query, scores in first.run.items():
        one, other = (np.array([run[query][document] for document in sorted(scores)]) for run in runs)
        differences[query] = np.abs(one - other)
        if len(scores) > 1:
            taus[query] = _tau(one, other)
    pairs = sum(map(len, differences.values()))
    every = [[score for scores in run.values() for score in scores.values()] for run in runs]
    farthest = max(differences, key=lambda query: differences[query].max())
    lowest = min(taus, key=lambda query: taus[query], default=None)
    metric = _metric(key, results)
    values = [np.array([by_query_id(result.metric(metric))]) for result in results]
    measure, unfit = difference(values[1], values[0])
    name, other_name = (f"{result.config_name} ({result.identity.base_model or 'no model'})" for result in results)
    return Parity(
        key=key,
        systems=(name, other_name),
        queries=len(first.run),
        pairs=pairs,
        largest=float(differences[farthest].max()),
        largest_at=(farthest, sorted(first.run[farthest])[differences[farthest].argmax()]),
        span=max(max(scores) - min(scores) for scores in every),
        mean=math.fsum(float(of_query.sum()) for of_query in differences.values()) / pairs,
        kendall_mean=math.fsum(taus.values()) / len(taus) if taus else None,
        kendall_lowest=None if lowest is None else (taus[lowest], lowest),
        top_changed=[q for q in first.run if ranked(first.run[q])[:TOP] != ranked(second.run[q])[:TOP]],
        metric=metric,
        means=(float(values[0].mean()), float(values[1].mean())),
        measure=measure,
        unfit=unfit,
        caveats=tuple(dict.fromkeys(f"{one.config_name}: {line}" for one in results for line in caveats_of(one))),
    )


def _refuse_other_pairs(key: str, first: Scored, second: Scored) -> None:
    hashes = {scored.result.provenance.hashes.get("collection") for scored in (first, second)}
    if len(hashes - {None}) > 1:
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


def _metric(key: str, results: Sequence[EvalResult]) -> str:
    """Return the first metric that both hold of the same queries."""
    first, second = results
    held = second.per_query_metrics.keys() | {second.main_metric}
    metric = next((name for name in (first.main_metric, *first.per_query_metrics) if name in held), None)
    if metric is None or first.per_query.keys() != second.per_query.keys():
        raise DataError(f"{key}: the two were not judged by one measure on the same queries; evaluate both again")
    return metric
