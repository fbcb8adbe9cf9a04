"""Score a run against judgments, average over a suite, and say from which grade on a document is relevant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from unimoe.core.errors import DataError, UsageError
from unimoe.core.grouping import gathered
from unimoe.core.limits import HIGHEST_GRADE, HIGHEST_SCORE, read_grade, read_score, text_problem
from unimoe.core.trec import Qrels, Run
from unimoe.metrics.computing import N, checked_number, provider_of, scores_by_query
from unimoe.metrics.names import MetricLike, canonical_metrics, parse_metric

DEFAULT_METRICS = ("ndcg@10", "mrr@10", "map", "recall@100")


@dataclass(frozen=True)
class Scores:
    """The measures of one run.

    Attributes:
        per_query: metric name to ``{query id: value}`` over the judged queries.
        aggregate: metric name to the mean over the judged queries; of counts such as NumRet, their sum.
        unjudged_queries: queries of the run without judgments, in sorted order; part of no mean.
    """

    per_query: dict[str, dict[str, float]]
    aggregate: dict[str, float]
    unjudged_queries: list[str]


def score_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    metrics: MetricLike | Sequence[MetricLike] = DEFAULT_METRICS,
    relevance_level: int = 1,
) -> Scores:
    """Score a run against qrels, per query and on average.

    Args:
        qrels: query id to ``{document id: integer grade}``; nDCG's gain is the grade.
        run: query id to ``{document id: score}``; higher is better, ties break by document id descending.
        metrics: in any spelling that ``canonical_metric`` knows, or objects of ir_measures; the scores
            hold each once, by its canonical name.
        relevance_level: the lowest grade that counts as relevant, in binary metrics whose name fixes none.

    Raises:
        DataError: run or qrels have another shape, a score is not finite, a grade no whole number or too high, an id is
            no text or holds NUL or half a surrogate pair, or no query of the run is judged.
        UsageError: an unknown metric, one that cannot be computed here, or a level below 1.
    """
    wanted = [parse_metric(name) for name in computable_metrics(metrics, relevance_level)]
    judged, found = whole_grades(qrels), plain_run(run)
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    if run and judged.keys().isdisjoint(run):
        raise DataError(
            f"none of the run's {len(run):,} queries is judged (the first is {next(iter(run))!r}); give the qrels of "
            "this collection and split"
        )
    per_query = scores_by_query(judged, {key: found.get(key, {}) for key in judged}, wanted, relevance_level)
    aggregate = {}
    for metric in wanted:
        total, is_count = math.fsum(per_query[metric.name].values()), str(metric.measure).startswith("Num")
        aggregate[metric.name] = total if is_count else total / len(judged)
    return Scores(per_query, aggregate, unjudged_queries=sorted(set(run) - set(judged)))


def computable_metrics(metrics: MetricLike | Sequence[MetricLike], relevance_level: int = 1) -> tuple[str, ...]:
    """Return the canonical names of metrics, each once; refuse those that ``score_run`` would refuse."""
    checked_level(relevance_level)
    names = canonical_metrics(metrics)
    for metric in map(parse_metric, names):
        if metric.measure is not None:
            provider_of(metric, relevance_level)
    return names


def dataset_group(dataset: str) -> str:
    """Return what counts once in an average: CQADupStack for its twelve subforums, else the dataset itself."""
    return "cqadupstack" if "cqadupstack" in dataset.lower() else dataset


def suite_averages(main_metrics: Mapping[str, str], scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average over a suite of datasets, once for each main metric: MRR@10 is never mixed with nDCG@10.

    From dataset to its main metric, and dataset to ``{metric: value}``, to metric and mean. The parts of one set are
    averaged first. A metric that a dataset lacks is left out: an average over fewer would pass for one over all.
    """
    averages = {}
    for metric in sorted(set(main_metrics.values())):
        datasets = [dataset for dataset, main in main_metrics.items() if main == metric]
        if all(metric in scores.get(dataset, {}) for dataset in datasets):
            groups = gathered((dataset_group(dataset), scores[dataset][metric]) for dataset in datasets)
            averages[metric] = fmean(map(fmean, groups.values()))
    return averages


def from_grade(qrels: Mapping[str, Mapping[str, int]], lowest: int) -> Qrels:
    """Return judgments in which grades below ``lowest`` are 0: what is not relevant enough is not relevant.

    Every judgment stays, so the same queries are judged, and one that loses all its relevant documents counts 0. A
    DataError where no grade is that high, so that every query would count 0.
    """
    if (highest := _highest(qrels)) < lowest:
        raise DataError(
            f"no judgment reaches grade {lowest}, the highest is {highest}, so nothing would be relevant; "
            "lower relevance_threshold, or check the judgments"
        )
    return {
        query_id: {document_id: grade if grade >= lowest else 0 for document_id, grade in grades.items()}
        for query_id, grades in qrels.items()
    }


def level_note(
    metrics: Iterable[str], qrels: Mapping[str, Mapping[str, int]], stated: int | None, *, where: str, remedy: str
) -> str | None:
    """Return a line on binary metrics whose relevance level looks wrong for some judgments; None where none does.

    They count grade 1 as relevant though grades go higher and no level was ``stated``, or no grade reaches the level.
    ``where`` names the judgments, and ``remedy`` says how to state a level.
    """
    binary, highest = [metric.name for metric in map(parse_metric, metrics) if metric.binary], _highest(qrels)
    named, level = ", ".join(binary), stated or 1
    if binary and highest < level:
        return (
            f"no grade in {where} reaches relevance level {level}, the highest is {highest}: {named} "
            "find nothing relevant; lower the level, or check the judgments"
        )
    if binary and stated is None and highest > 1:
        count = "counts" if len(binary) == 1 else "count"
        return (
            f"grades up to {highest} in {where}: {named} {count} grade 1 as relevant; TREC DL counts from 2: {remedy}"
        )
    return None


def checked_level(level: int, name: str = "relevance level") -> None:
    """Refuse a relevance level that no grade has; ``name`` is what the error calls it."""
    if not hasattr(level, "__index__"):
        raise UsageError(f"{name} {level!r} is no whole number; use at least 1")
    if level < 1:
        raise UsageError(f"{name} {level} makes every document relevant; use at least 1")
    if level > HIGHEST_GRADE:
        raise UsageError(f"{name} {level} is beyond {HIGHEST_GRADE:,}, the highest grade; lower it")


def whole_grades(qrels: Mapping[str, Mapping[str, int]]) -> Qrels:
    """Return judgments with Python integers as grades, without the queries that have none; refuse what is no grade."""
    return _plain(qrels, "grade", int, HIGHEST_GRADE, read_grade)


def plain_run(run: Mapping[str, Mapping[str, float]]) -> Run:
    """Return a run with Python floats as scores, without the queries that have none; refuse what is no score."""
    return _plain(run, "score", float, HIGHEST_SCORE, read_score)


def _plain(content: Any, value: str, kind: type[N], most: float, read: Callable[[str], N]) -> dict[str, dict[str, N]]:
    """Return qrels or a run of Python numbers, which pytrec_eval wants; refuse what it would take in silence."""
    what, shape = "qrels" if kind is int else "a run", f"{{document id: {value}}}"
    _refuse_unwritable(content, "query", f"{what} should be; give {{query id: {shape}}}, or read the file first")
    plain = {}
    for query_id, values in content.items():
        where = f"query {query_id!r}"
        _refuse_unwritable(values, "document", f"{what} should be; give {shape}", f"{where}: ")
        if type(values) is not dict or not all(type(x) is kind and abs(x) <= most for x in values.values()):
            # a copy, and only here: a million of them take memory
            values = {key: checked_number(x, read, f"{where}, document {key!r}: {value}") for key, x in values.items()}
        if values:
            plain[query_id] = values
    return plain


def _refuse_unwritable(by_id: Any, what: str, wanted: str, where: str = "") -> None:
    """Refuse what has no ids, and ids that trec_eval, whose texts end at NUL and are UTF-8, takes for others."""
    if not isinstance(by_id, Mapping):
        raise DataError(f"{where}{type(by_id).__name__} where {wanted}")
    with suppress(TypeError):
        if not text_problem("".join(by_id)):
            return
    for found in by_id:
        if not isinstance(found, str):
            raise DataError(f"the id of a {what}, {found!r}, is no text; write {str(found)!r}")
        if problem := text_problem(found):
            raise DataError(f"the id of a {what}, {found!a}, {problem}; rename it")


def _highest(qrels: Mapping[str, Mapping[str, int]]) -> int:
    return max((grade for grades in qrels.values() for grade in grades.values()), default=0)
