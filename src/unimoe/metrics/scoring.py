"""Score a run against judgments, average over a suite, and say from which grade on a document is relevant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from unimoe.core.errors import DataError, UsageError
from unimoe.core.limits import HIGHEST_GRADE, HIGHEST_SCORE, grade_problem, text_problem
from unimoe.core.trec import Qrels, Run
from unimoe.metrics.computing import aggregate, provider_of, scores_by_query
from unimoe.metrics.names import Metric, parse_metric

N = TypeVar("N", int, float)

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
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    relevance_level: int = 1,
) -> Scores:
    """Score a run against qrels, per query and on average.

    Args:
        qrels: query id to ``{document id: integer grade}``; nDCG's gain is the grade.
        run: query id to ``{document id: score}``; higher is better, ties break by document id descending.
        metrics: in any spelling that ``canonical_metric`` knows; the scores hold each once, by its canonical name.
        relevance_level: the lowest grade that counts as relevant, in binary metrics whose name fixes none.

    Raises:
        DataError: run or qrels have another shape, a score is not finite, a grade no whole number or too high, an id is
            no text or holds NUL or half a surrogate pair, or no query of the run is judged.
        UsageError: an unknown metric, one that cannot be computed here, or a level below 1.
    """
    wanted, judged, ranked = _wanted(metrics, relevance_level), whole_grades(qrels), _plain(run, "score", float)
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    if run and judged.keys().isdisjoint(run):
        raise DataError(
            f"none of the run's {len(run):,} queries is judged (the first is {next(iter(run))!r}); give the qrels of "
            "this collection and split"
        )
    complete = {query_id: ranked.get(query_id, {}) for query_id in judged}
    per_query = scores_by_query(judged, complete, wanted, relevance_level)
    return Scores(
        per_query=per_query,
        aggregate={metric.name: aggregate(metric, per_query[metric.name]) for metric in wanted},
        unjudged_queries=sorted(set(run) - set(judged)),
    )


def computable_metrics(metrics: Sequence[str], relevance_level: int = 1) -> tuple[str, ...]:
    """Return the canonical names of metrics, each once; refuse those that ``score_run`` would refuse."""
    return tuple(metric.name for metric in _wanted(metrics, relevance_level))


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
            groups: dict[str, list[float]] = {}
            for dataset in datasets:
                groups.setdefault(dataset_group(dataset), []).append(scores[dataset][metric])
            averages[metric] = math.fsum(math.fsum(part) / len(part) for part in groups.values()) / len(groups)
    return averages


def from_grade(qrels: Mapping[str, Mapping[str, int]], lowest: int) -> Qrels:
    """Return judgments in which grades below ``lowest`` are 0: what is not relevant enough is not relevant.

    Every judgment stays, so the same queries are judged, and one that loses all its relevant documents counts 0.

    Raises:
        DataError: no grade is that high, so that every query would count 0.
    """
    highest = _highest(qrels)
    if highest < lowest:
        raise DataError(
            f"no judgment reaches grade {lowest}, the highest is {highest}, so nothing would be relevant; "
            "lower relevance_threshold, or check the judgments"
        )
    return {
        query_id: {document_id: grade if grade >= lowest else 0 for document_id, grade in grades.items()}
        for query_id, grades in qrels.items()
    }


def level_note(
    metrics: Iterable[str], qrels: Mapping[str, Mapping[str, int]], stated: int | None, *, where: str, mend: str
) -> str | None:
    """Return a line on binary metrics whose relevance level looks wrong for some judgments; None where none does.

    They count grade 1 as relevant though grades go higher and no level was stated, or no grade reaches the level.

    Args:
        metrics: those that are computed.
        qrels: the judgments.
        stated: the relevance level that data, option or convention states, 1 among them; None where nothing does.
        where: what holds the judgments.
        mend: how to state a level.
    """
    binary, highest = [metric.name for metric in map(parse_metric, metrics) if metric.binary], _highest(qrels)
    if binary and highest < (stated or 1):
        return (
            f"no grade in {where} reaches relevance level {stated or 1}, the highest is {highest}: {', '.join(binary)} "
            "find nothing relevant; lower the level, or check the judgments"
        )
    if not binary or stated is not None or highest < 2:
        return None
    verb = "counts" if len(binary) == 1 else "count"
    return (
        f"grades up to {highest} in {where}: {', '.join(binary)} {verb} grade 1 as relevant; "
        f"TREC DL counts from 2: {mend}"
    )


def checked_level(level: int, name: str = "relevance level") -> int:
    """Return a relevance level; raise ``UsageError``, which calls it ``name``, where no grade has it."""
    if not hasattr(level, "__index__"):
        raise UsageError(f"{name} {level!r} is no whole number; use at least 1")
    if level < 1:
        raise UsageError(f"{name} {level} makes every document relevant; use at least 1")
    if level > HIGHEST_GRADE:
        raise UsageError(f"{name} {level} is beyond {HIGHEST_GRADE:,}, the highest grade; lower it")
    return level


def _wanted(metrics: str | Sequence[str], relevance_level: int) -> list[Metric]:
    checked_level(relevance_level)
    names = [metrics] if isinstance(metrics, str) else metrics
    wanted = list({metric.name: metric for metric in map(parse_metric, names)}.values())
    for metric in wanted:
        if metric.measure is not None:
            provider_of(metric, relevance_level)
    return wanted


def whole_grades(qrels: Mapping[str, Mapping[str, int]]) -> Qrels:
    """Return judgments with Python integers as grades, without the queries that have none; refuse what is no grade."""
    return {query_id: grades for query_id, grades in _plain(qrels, "grade", int).items() if grades}


def plain_run(run: Mapping[str, Mapping[str, float]]) -> Run:
    """Return a run with Python floats as scores, without the queries that have none; refuse what is no score."""
    return {query_id: scores for query_id, scores in _plain(run, "score", float).items() if scores}


def _plain(content: Mapping[str, Mapping[str, Any]], value: str, kind: type[N]) -> dict[str, dict[str, N]]:
    """Return qrels or a run of Python numbers, which pytrec_eval wants; refuse what it would take in silence."""
    what, shape = "qrels" if value == "grade" else "a run", f"{{document id: {value}}}"
    if not isinstance(content, Mapping):
        name = type(content).__name__
        raise DataError(f"{name} where {what} should be; give {{query id: {shape}}}, or read the file first")
    _refuse_unwritable(content, "query")
    most, plain = HIGHEST_GRADE if kind is int else HIGHEST_SCORE, {}
    for query_id, values in content.items():
        if not isinstance(values, Mapping):
            raise DataError(f"query {query_id!r}: {type(values).__name__} where {what} should be; give {shape}")
        _refuse_unwritable(values, "document")
        if type(values) is not dict or not all(type(x) is kind and abs(x) <= most for x in values.values()):
            # a copy, and only here: a million of them take memory
            values = {
                key: _number(x, kind, most, f"query {query_id!r}, document {key!r}: {value}")
                for key, x in values.items()
            }
        plain[query_id] = values
    return plain


def _number(value: Any, kind: type[N], most: float, where: str) -> N:
    try:
        finite = math.isfinite(value)
    except (TypeError, OverflowError):
        raise DataError(f"{where} {value!r} is no number") from None
    number = float(value)
    if not (abs(number) <= most and (kind is float or number.is_integer())):
        problem = grade_problem(value) if kind is int else "is beyond float32" if finite else "is not finite"
        raise DataError(f"{where} {value} {problem}")
    return kind(value)


def _refuse_unwritable(ids: Iterable[str], what: str) -> None:
    """Refuse ids that are no text, and those that trec_eval, whose texts end at NUL and are UTF-8, takes for others."""
    try:
        whole = "".join(ids)
    except TypeError:
        found = next(identifier for identifier in ids if not isinstance(identifier, str))
        raise DataError(f"the id of a {what}, {found!r}, is no text; write {str(found)!r}") from None
    if text_problem(whole):
        found = next(identifier for identifier in ids if text_problem(identifier))
        raise DataError(f"the id of a {what}, {found!a}, {text_problem(found)}; rename it")


def _highest(qrels: Mapping[str, Mapping[str, int]]) -> int:
    return max((grade for grades in qrels.values() for grade in grades.values()), default=0)
