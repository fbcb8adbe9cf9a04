"""Score a run against judgments, average over a suite, and say from which grade on a document is relevant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from unimoe.core.errors import DataError, UsageError
from unimoe.core.limits import HIGHEST_GRADE, HIGHEST_SCORE, MOST, grade_problem, text_problem
from unimoe.core.trec import Qrels, Run, ranked
from unimoe.metrics.names import (
    FunctionMetric,
    Metric,
    OtherMetric,
    TrecEvalMetric,
    canonical_metric,
    is_binary,
    parse_metric,
)
from unimoe.metrics.trec_eval import trec_eval_scores

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
    wanted = _wanted(metrics, relevance_level)
    judged = whole_grades(qrels)
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    _refuse_unwritable(_held(run, "a run"), "query")
    if run and judged.keys().isdisjoint(run):
        raise DataError(
            f"none of the run's {len(run):,} queries is judged (the first is {next(iter(run))!r}); give the qrels of "
            "this collection and split"
        )
    complete = {query_id: _plain(query_id, run.get(query_id, {})) for query_id in judged}
    per_query = _by_query(judged, complete, wanted, relevance_level)
    return Scores(
        per_query=per_query,
        aggregate={metric.name: _aggregate(metric, per_query[metric.name]) for metric in wanted},
        unjudged_queries=sorted(set(run) - set(judged)),
    )


def computable_metrics(metrics: Sequence[str], relevance_level: int = 1) -> tuple[str, ...]:
    """Return the canonical names of metrics, each once.

    Raises:
        UsageError: as in ``score_run``.
    """
    return tuple(metric.name for metric in _wanted(metrics, relevance_level))


def dataset_group(dataset: str) -> str:
    """Return what counts once in an average: CQADupStack for its twelve subforums, else the dataset itself."""
    return "cqadupstack" if "cqadupstack" in dataset.lower() else dataset


def suite_averages(main_metrics: Mapping[str, str], scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average over a suite of datasets, once for each main metric: MRR@10 is never mixed with nDCG@10.

    Args:
        main_metrics: dataset to its main metric.
        scores: dataset to ``{metric: value}``.

    Returns:
        Metric to the mean over the datasets whose main metric it is, the parts of one set averaged first. Without the
        metrics that a dataset lacks: an average over fewer datasets would pass for one over all.
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
    """Name the binary metrics whose relevance level looks wrong for these judgments.

    They count grade 1 as relevant though grades go higher and no level was stated, or count nothing, because no grade
    reaches the stated level.

    Args:
        metrics: those that are computed.
        qrels: the judgments.
        stated: the relevance level that data, option or convention states, 1 among them; None where nothing does.
        where: what holds the judgments, as the note names it.
        mend: how to state a level.

    Returns:
        One line, or None where there is nothing to note.
    """
    binary = [canonical_metric(metric) for metric in metrics if is_binary(metric)]
    if not binary:
        return None
    highest = _highest(qrels)
    if highest < (stated or 1):
        return (
            f"no grade in {where} reaches relevance level {stated or 1}, the highest is {highest}: {', '.join(binary)} "
            "find nothing relevant; lower the level, or check the judgments"
        )
    if stated is not None or highest < 2:
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
        if isinstance(metric, OtherMetric):
            from unimoe.metrics.providers import provider_of  # the library takes long to import

            provider_of(metric, relevance_level)
    return wanted


def _by_query(qrels: Qrels, run: Run, metrics: Sequence[Metric], level: int) -> dict[str, dict[str, float]]:
    plain = [metric for metric in metrics if isinstance(metric, TrecEvalMetric)]
    found = trec_eval_scores(_without_negative(qrels), run, plain, level)
    for metric in metrics:
        if isinstance(metric, OtherMetric):
            from unimoe.metrics.providers import provided_scores

            values = provided_scores(qrels, run, metric, level)
            found[metric.name] = {query_id: values[query_id] for query_id in qrels}
        elif isinstance(metric, FunctionMetric):
            found[metric.name] = {query_id: _own_value(metric, query_id, qrels[query_id], run) for query_id in qrels}
    return {metric.name: found[metric.name] for metric in metrics}


def _own_value(metric: FunctionMetric, query_id: str, grades: Mapping[str, int], run: Run) -> float:
    """Return what a registered function says of a query; refuse what is no finite number."""
    value: Any = metric.function(grades, ranked(run[query_id]))
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= MOST:
        raise DataError(
            f"metric {metric.name!r}: {value!r} for query {query_id!r} is no finite number; mend its function"
        )
    return number


def _aggregate(metric: Metric, values: Mapping[str, float]) -> float:
    total = math.fsum(values.values())
    if isinstance(metric, OtherMetric):
        from unimoe.metrics.providers import is_summed

        return total if is_summed(metric) else total / len(values)
    return total / len(values)


def whole_grades(qrels: Mapping[str, Mapping[str, int]]) -> Qrels:
    """Return judgments with Python integers as grades, without the queries that have none.

    Raises:
        DataError: a grade is no whole number, or too high; names query and document. Or an id cannot be written, or
            the judgments have another shape.
    """
    for query_id, grades in _held(qrels, "qrels").items():
        for document_id, grade in _held(grades, "qrels", query_id).items():
            try:
                whole = abs(grade) <= HIGHEST_GRADE and grade == int(grade)
            except TypeError:
                raise DataError(f"query {query_id!r}, document {document_id!r}: grade {grade!r} is no number") from None
            if not whole:
                raise DataError(f"query {query_id!r}, document {document_id!r}: grade {grade} {grade_problem(grade)}")
    _refuse_unwritable(qrels, "query")
    judged = {query_id: grades for query_id, grades in qrels.items() if grades}
    for grades in judged.values():
        _refuse_unwritable(grades, "document")
    return {query_id: _all(grades, int) for query_id, grades in judged.items()}


def _without_negative(qrels: Qrels) -> Qrels:
    """Return negative grades as 0: that is what they count, and a query with nothing else crashes trec_eval."""
    return {
        query_id: grades if min(grades.values()) >= 0 else {key: max(0, grade) for key, grade in grades.items()}
        for query_id, grades in qrels.items()
    }


def plain_run(run: Mapping[str, Mapping[str, float]]) -> Run:
    """Return a run with Python floats as scores, without the queries that have none.

    Raises:
        DataError: the run has another shape, an id cannot be written, or a score is not finite or beyond float32.
    """
    _refuse_unwritable(_held(run, "a run"), "query")
    return {query_id: plain for query_id, scores in run.items() if (plain := _plain(query_id, scores))}


def _plain(query_id: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Return Python floats: pytrec_eval refuses numpy's and takes NaN in silence."""
    try:
        plain = _all(_held(scores, "a run", query_id), float)
    except (TypeError, ValueError):
        raise DataError(f"query {query_id!r}: a score is no number; give {{document id: score}}") from None
    if not all(abs(score) <= HIGHEST_SCORE for score in plain.values()):
        document_id, score = next((key, score) for key, score in plain.items() if not abs(score) <= HIGHEST_SCORE)
        state = "beyond float32" if math.isfinite(score) else "not finite"
        raise DataError(f"query {query_id!r}, document {document_id!r}: score {score} is {state}")
    _refuse_unwritable(scores, "document")
    return plain


def _all(values: Mapping[str, Any], kind: type[N]) -> dict[str, N]:
    """Return a dictionary of values of one kind: the same where it is one, since a million copies take memory."""
    if type(values) is dict and all(type(value) is kind for value in values.values()):
        return values
    return {key: kind(value) for key, value in values.items()}


def _held(content: Any, what: str, query_id: str | None = None) -> Mapping[str, Any]:
    """Return a run or qrels, or those of one query; refuse what is no dictionary, such as a path."""
    if isinstance(content, Mapping):
        return content
    inner = f"{{document id: {'grade' if what == 'qrels' else 'score'}}}"
    where, shape = ("", f"{{query id: {inner}}}") if query_id is None else (f"query {query_id!r}: ", inner)
    raise DataError(f"{where}{type(content).__name__} where {what} should be; give {shape}, or read the file first")


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
