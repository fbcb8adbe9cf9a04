"""Score a run against judgments, average over a suite, and say from which grade on a document is relevant.

trec_eval's measures are computed in passes of pytrec_eval, others by ir_measures, and registered functions are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pytrec_eval

from unimoe.core.errors import DataError, UsageError, users_code
from unimoe.core.grouping import gathered
from unimoe.core.limits import HIGHEST_GRADE, checked_number, read_score
from unimoe.core.trec import Qrels, Run, head, plain_run, ranked, whole_grades
from unimoe.metrics.names import CAPPED, TREC_EVAL, Metric, MetricLike, canonical_metrics, parse_metric

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
            no text, or no query of the run is judged.
        UsageError: an unknown metric, one that cannot be computed here, or a level below 1.
    """
    level = checked_level(relevance_level)
    wanted = [parse_metric(name) for name in computable_metrics(metrics, level)]
    judged, found = whole_grades(qrels), plain_run(run)
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    if run and judged.keys().isdisjoint(run):
        raise DataError(
            f"none of the run's {len(run):,} queries is judged (the first is {next(iter(run))!r}); give the qrels of "
            "this collection and split"
        )
    per_query = _scores_by_query(judged, {key: found.get(key, {}) for key in judged}, wanted, level)
    aggregate = {}
    for metric in wanted:
        total, is_count = math.fsum(per_query[metric.name].values()), str(metric.measure).startswith("Num")
        aggregate[metric.name] = total if is_count else total / len(judged)
    return Scores(per_query, aggregate, unjudged_queries=sorted(set(run) - set(judged)))


def computable_metrics(metrics: MetricLike | Sequence[MetricLike], relevance_level: int = 1) -> tuple[str, ...]:
    """Return the canonical names of metrics, each once; refuse those that ``score_run`` would refuse."""
    level = checked_level(relevance_level)
    names = canonical_metrics(metrics)
    for metric in map(parse_metric, names):
        if metric.measure is not None:
            _provider_of(metric, level)
    return names


def _scores_by_query(qrels: Qrels, run: Run, metrics: Sequence[Metric], level: int) -> dict[str, dict[str, float]]:
    """Return metric name to ``{query id: value}``, for every judged query; the run holds each, be it empty."""
    found = _by_trec_eval(qrels, run, [metric for metric in metrics if metric.family not in (None, *CAPPED)], level)
    for metric in metrics:
        if metric.measure is not None:
            found[metric.name] = _by_ir_measures(qrels, run, metric, level)
        elif metric.family in CAPPED:
            found[metric.name] = {
                query_id: _capped_recall(metric, grades, ranked(run[query_id]), level)
                for query_id, grades in qrels.items()
            }
        elif metric.function is not None:
            found[metric.name] = {}
            for query_id, grades in qrels.items():
                where = f"metric {metric.name!r}, query {query_id!r}: its function"
                with users_code(f"{where} raised"):
                    value = metric.function(grades, ranked(run[query_id]))
                found[metric.name][query_id] = checked_number(value, read_score, f"{where}'s value")
    return {metric.name: found[metric.name] for metric in metrics}


def _by_trec_eval(qrels: Qrels, run: Run, metrics: Sequence[Metric], level: int) -> dict[str, dict[str, float]]:
    """Compute metrics with one pass of trec_eval for each depth and level."""
    # Negative grades count 0, and a query with nothing else crashes trec_eval.
    qrels = {
        query_id: grades if min(grades.values()) >= 0 else {key: max(0, grade) for key, grade in grades.items()}
        for query_id, grades in qrels.items()
    }
    # trec_eval has no cut-off reciprocal rank, so the run is cut.
    passes = gathered(((m.cutoff if m.family == "mrr" else None, m.level or level), m) for m in metrics)
    found: dict[str, dict[str, float]] = {}
    for (depth, lowest), members in passes.items():
        cut = run if depth is None else {query_id: head(scores, depth) for query_id, scores in run.items()}
        names = {metric.name: _trec_eval_name(metric) for metric in members}
        evaluated = pytrec_eval.RelevanceEvaluator(qrels, set(names.values()), relevance_level=lowest).evaluate(cut)
        for metric, name in names.items():
            found[metric] = {query_id: float(evaluated[query_id][name.replace(".", "_")]) for query_id in qrels}
    return found


def _trec_eval_name(metric: Metric) -> str:
    name = TREC_EVAL[metric.family or ""]
    return name.removesuffix("_cut") if metric.cutoff is None or metric.family == "mrr" else f"{name}.{metric.cutoff}"


def _capped_recall(metric: Metric, grades: Mapping[str, int], ranking: Sequence[str], level: int) -> float:
    """Return the share of what could be reached of the relevant documents; 0 where nothing is relevant or retrieved."""
    first = ranking[: metric.cutoff]
    places = len(first) if metric.family == "recall_of_retrieved" else metric.cutoff or 0
    reachable = min(sum(grade >= level for grade in grades.values()), places)
    return sum(grades.get(key, 0) >= level for key in first) / reachable if reachable else 0.0


def _provider_of(metric: Metric, level: int) -> tuple[Any, Any]:
    """Return the library that computes a metric of ir_measures, and the measure at this relevance level."""
    import ir_measures  # takes long to import

    measure: Any = metric.measure
    if metric.binary:
        measure = measure(rel=level)
    providers = [provider for provider in ir_measures.DefaultPipeline.providers if provider.supports(measure)]
    if not providers:
        raise UsageError(f"metric {metric.name!r}: nothing computes it at relevance level {level}; leave it out")
    for provider in providers:
        if provider.is_available():
            return provider, measure
    advice = " or ".join(f"{provider.NAME} ({provider.install_instructions()})" for provider in providers)
    raise UsageError(f"metric {metric.name!r} needs what is not installed: {advice}")


def _by_ir_measures(qrels: Qrels, run: Run, metric: Metric, level: int) -> dict[str, float]:
    import ir_measures

    provider, measure = _provider_of(metric, level)
    highest, query_id = max((max(grades.values()), query_id) for query_id, grades in qrels.items())
    if provider is ir_measures.gdeval and highest > 4:  # a Perl script with 4 as its highest grade, and five decimals
        raise DataError(
            f"metric {metric.name!r} is defined for grades up to 4, and query {query_id!r} has grade {highest}; "
            "use another metric"
        )
    numbers = {query_id: str(number) for number, query_id in enumerate(qrels)}  # gdeval reads no other query ids
    # A query with negative grades alone crashes trec_eval; beside others they are no judgments to some measures.
    judged = {
        numbers[query_id]: grades if max(grades.values()) >= 0 else dict.fromkeys(grades, 0)
        for query_id, grades in qrels.items()
    }
    # Without ties, which each library breaks in its own way. trec_eval alone takes queries without documents.
    ordered = {
        numbers[query_id]: {key: float(len(scores) - rank) for rank, key in enumerate(ranked(scores))}
        for query_id, scores in run.items()
        if scores or provider is ir_measures.pytrec_eval
    }
    values = {found.query_id: float(found.value) for found in provider.iter_calc([measure], judged, ordered)}
    # NaN where 0 of 0 relevant documents were found.
    return {query_id: 0.0 if math.isnan(values[number]) else values[number] for query_id, number in numbers.items()}


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


def checked_level(level: int, name: str = "relevance level") -> int:
    """Return a relevance level as Python's number; refuse one that no grade has, or that all have, by its ``name``."""
    if not hasattr(level, "__index__") or not 1 <= level <= HIGHEST_GRADE:
        raise UsageError(f"{name} {level!r} will not do; use a whole number from 1 to {HIGHEST_GRADE:,}")
    return int(level)


def _highest(qrels: Mapping[str, Mapping[str, int]]) -> int:
    return max((grade for grades in qrels.values() for grade in grades.values()), default=0)
