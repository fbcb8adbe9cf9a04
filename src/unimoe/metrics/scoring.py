"""Score a run against judgments, average over a suite, and say from which grade on a document is relevant.

trec_eval's measures are computed in passes of pytrec_eval, others by ir_measures, and registered functions are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Any, cast

import pytrec_eval

from unimoe.checks import Check
from unimoe.core.errors import DataError, UsageError, users_code
from unimoe.core.grouping import gathered
from unimoe.core.limits import HIGHEST_GRADE, checked_number, read_score
from unimoe.core.shown import Shown
from unimoe.core.trec import Grades, Qrels, Run, Subtopics, plain_grades, plain_run, ranked
from unimoe.metrics.names import TREC_EVAL, MeasureFunction, Metric, MetricLike, canonical_metrics, parse_metric

DEFAULT_METRICS = ("ndcg@10", "mrr@10", "map", "recall@100")


@dataclass(frozen=True, repr=False)
class Scores(Shown):
    """The measures of one run.

    Attributes:
        per_query: metric name to ``{query id: value}`` over the judged queries.
        aggregate: metric name to the mean over the judged queries; of counts such as NumRet to their sum, of
            ``gm_map``, which has logarithms by query, to the geometric mean.
        unjudged_queries: queries of the run without judgments, in sorted order; part of no mean.
        checks: what was found in judgments and run.
    """

    per_query: dict[str, dict[str, float]]
    aggregate: dict[str, float]
    unjudged_queries: list[str]
    checks: tuple[Check, ...] = ()


def score_run(
    qrels: Grades,
    run: Mapping[str, Mapping[str, float]],
    metrics: MetricLike | Sequence[MetricLike] = DEFAULT_METRICS,
    relevance_level: int = 1,
    subtopics: Subtopics | None = None,
) -> Scores:
    """Score a run against qrels, per query and on average.

    Args:
        qrels: query id to ``{document id: grade}``; nDCG's gain is the grade, a whole or a real number.
        run: query id to ``{document id: score}``; higher is better, ties break by document id descending.
        metrics: in any spelling that ``canonical_metric`` knows, or objects of ir_measures; the scores
            hold each once, by its canonical name.
        relevance_level: the lowest grade that counts as relevant, in binary metrics that fix none in their name.
        subtopics: query id to ``{document id: {subtopic: grade}}``, for alpha-nDCG and its kin.

    Raises:
        DataError: run or qrels have another shape, a score is not finite, a grade too high, an id is no text, no query
            of the run is judged, or a metric does not take real-valued grades, or needs subtopics and there are none.
        UsageError: an unknown metric, one that cannot be computed here, or a level below 1.
    """
    level, judged, found = checked_level(relevance_level), plain_grades(qrels), plain_run(run)
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    if run and judged.keys().isdisjoint(run):
        raise DataError(
            f"none of the run's {len(run):,} queries is judged (the first is {next(iter(run))!r}); give the qrels of "
            "this collection and split"
        )
    scores = score_plain(judged, found, metrics, level, subtopics)
    return replace(scores, unjudged_queries=sorted(set(run) - set(judged)))  # those without documents too


class Order(dict[str, list[str]]):
    """The documents of each query of a run, best first; a query is sorted when it is first asked for."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __missing__(self, query_id: str) -> list[str]:
        """Sort the documents of a query; one that the run lacks has none."""
        self[query_id] = found = ranked(self._run.get(query_id, {}))
        return found


def score_plain(
    qrels: Grades,
    run: Run,
    metrics: MetricLike | Sequence[MetricLike],
    level: int,
    subtopics: Subtopics | None = None,
    order: Order | None = None,
) -> Scores:
    """Do what ``score_run`` does, for judgments and a run that ``plain_grades`` and ``plain_run`` made."""
    wanted = [parse_metric(name) for name in computable_metrics(metrics, level)]
    if not subtopics and (lacking := next((metric.name for metric in wanted if metric.of_subtopics), None)):
        raise DataError(
            f"metric {lacking!r} needs judgments by subtopic, and there are none: give qrels whose second column names "
            "the subtopic, with documents judged for two or more, or use another metric"
        )
    checks = _real_grades(qrels, wanted, level)
    whole = {key: run.get(key, {}) for key in qrels}
    per_query = _scores_by_query(
        qrels, whole, wanted, level, subtopics or {}, Order(whole) if order is None else order, is_real=bool(checks)
    )
    aggregate = {metric.name: metric.of_run(per_query[metric.name].values()) for metric in wanted}
    return Scores(per_query, aggregate, sorted(set(run) - set(qrels)), checks)


def computable_metrics(metrics: MetricLike | Sequence[MetricLike], relevance_level: int = 1) -> tuple[str, ...]:
    """Return the canonical names of metrics, each once; refuse those that ``score_run`` would refuse."""
    level = checked_level(relevance_level)
    names = canonical_metrics(metrics)
    for metric in map(parse_metric, names):
        if metric.measure is not None:
            _provider_of(metric, level)
    return names


def _scores_by_query(
    grades: Grades,
    run: Run,
    metrics: Sequence[Metric],
    level: int,
    subtopics: Subtopics,
    order: Order,
    *,
    is_real: bool,
) -> dict[str, dict[str, float]]:
    """Return metric name to ``{query id: value}``, for every judged query; the run holds each, be it empty."""
    qrels = whole_grades(grades) if is_real else cast(Qrels, grades)
    by_trec_eval = [m for m in metrics if m.family in TREC_EVAL and not (is_real and m.is_linear)]
    found = _by_trec_eval(qrels, run, by_trec_eval, level, order)
    for metric in metrics:
        if metric.name in found:
            continue
        if metric.function is not None:
            found[metric.name] = _by_function(grades, order, metric, metric.function)
        elif is_real and metric.is_linear:
            found[metric.name] = {key: _ndcg(metric, of, order[key]) for key, of in grades.items()}
        elif metric.measure is not None:
            found[metric.name] = _by_ir_measures(qrels, order, metric, level, subtopics)
        else:
            found[metric.name] = _by_formula(qrels, order, metric, level)
    return {metric.name: found[metric.name] for metric in metrics}


def _by_trec_eval(
    qrels: Qrels, run: Run, metrics: Sequence[Metric], level: int, order: Order
) -> dict[str, dict[str, float]]:
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
        cut = run
        if depth is not None:
            cut = {query_id: {key: of[key] for key in order[query_id][:depth]} for query_id, of in run.items()}
        names = {metric.name: _trec_eval_name(metric) for metric in members}
        evaluated = pytrec_eval.RelevanceEvaluator(qrels, set(names.values()), relevance_level=lowest).evaluate(cut)
        for metric, name in names.items():
            values = {query_id: float(evaluated[query_id][name.replace(".", "_")]) for query_id in qrels}
            # NaN where 0 of 0 relevant documents were found.
            found[metric] = {query_id: 0.0 if math.isnan(value) else value for query_id, value in values.items()}
    return found


def _trec_eval_name(metric: Metric) -> str:
    name = TREC_EVAL[metric.family or ""]
    return name.removesuffix("_cut") if metric.cutoff is None or metric.family == "mrr" else f"{name}.{metric.cutoff}"


def _by_function(grades: Grades, order: Order, metric: Metric, function: MeasureFunction) -> dict[str, float]:
    found = {}
    for query_id, of_query in grades.items():
        where = f"metric {metric.name!r}, query {query_id!r}: its function"
        with users_code(f"{where} raised"):
            value = function(of_query, order[query_id])
        found[query_id] = checked_number(value, read_score, f"{where}'s value")
    return found


def _by_formula(qrels: Qrels, order: Order, metric: Metric, level: int) -> dict[str, float]:
    formula, lowest, found = _FORMULAS[metric.family or ""], metric.level or level, {}
    for query_id, grades in qrels.items():
        first = [grades.get(key, 0) >= lowest for key in order[query_id][: metric.cutoff]]
        found[query_id] = formula(first, metric.cutoff, sum(grade >= lowest for grade in grades.values()))
    return found


def _ndcg(metric: Metric, grades: Mapping[str, float], ranking: Sequence[str]) -> float:
    """Return trec_eval's nDCG, which takes whole grades alone, of real-valued ones."""
    if metric.measure is not None and metric.measure.params.get("judged_only"):
        ranking = [key for key in ranking if grades.get(key, -1) >= 0]
    orders = [grades.get(key, 0) for key in ranking], sorted(grades.values(), reverse=True)
    found, best = (
        math.fsum(max(0, grade) / math.log2(rank + 1) for rank, grade in enumerate(order[: metric.cutoff], start=1))
        for order in orders
    )
    return found / best if best else 0.0


def _recall_cap(found: Sequence[bool], cutoff: int | None, relevant: int) -> float:
    reachable = min(relevant, cutoff or 0)
    return sum(found) / reachable if reachable else 0.0


def _recall_of_retrieved(found: Sequence[bool], cutoff: int | None, relevant: int) -> float:
    reachable = min(relevant, len(found))
    return sum(found) / reachable if reachable else 0.0


def _pair_accuracy(found: Sequence[bool], cutoff: int | None, relevant: int) -> float:
    """Return the share of pairs of a relevant document and another, both ranked, in which the relevant one is first.

    Without such a pair it is 1 where all that was ranked is relevant, and 0 where nothing is.
    """
    others_before = accumulate(not relevant for relevant in found)
    reversed_pairs = sum(others for others, is_relevant in zip(others_before, found, strict=True) if is_relevant)
    pairs = sum(found) * (len(found) - sum(found))
    return 1 - reversed_pairs / pairs if pairs else float(any(found))


_FORMULAS = {"recall_cap": _recall_cap, "recall_of_retrieved": _recall_of_retrieved, "Accuracy": _pair_accuracy}
"""From whether each of the first ranked documents is relevant, the cut-off, and how many there are, to a value."""


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
    and_judgments = ", and qrels whose second column names the subtopic" if metric.of_subtopics else ""
    raise UsageError(f"metric {metric.name!r} needs what is not installed: {advice}{and_judgments}")


def _by_ir_measures(qrels: Qrels, order: Order, metric: Metric, level: int, subtopics: Subtopics) -> dict[str, float]:
    import ir_measures

    provider, measure = _provider_of(metric, level)
    highest, query_id = max((max(grades.values()), query_id) for query_id, grades in qrels.items())
    if provider is ir_measures.gdeval and highest > 4:  # a Perl script with 4 as its highest grade, and five decimals
        raise DataError(
            f"metric {metric.name!r} is defined for grades up to 4, and query {query_id!r} has grade {highest}; "
            "use another metric"
        )
    numbers = {query_id: str(number) for number, query_id in enumerate(qrels)}  # gdeval reads no other query ids
    judged: Any
    # A query with negative grades alone crashes trec_eval; among others they are no judgments to some measures.
    judged = {
        numbers[query_id]: grades if max(grades.values()) >= 0 else dict.fromkeys(grades, 0)
        for query_id, grades in qrels.items()
    }
    if metric.of_subtopics:
        judged = [
            ir_measures.Qrel(numbers[query_id], document_id, max(0, math.floor(grade)), subtopic)
            for query_id in numbers.keys() & subtopics.keys()
            for document_id, of_document in subtopics[query_id].items()
            for subtopic, grade in of_document.items()
        ]
    # Without ties, which each library breaks in its own way. trec_eval alone takes queries without documents.
    ordered = {
        numbers[query_id]: {key: float(len(best_first) - rank) for rank, key in enumerate(best_first)}
        for query_id in qrels
        if (best_first := order[query_id]) or provider is ir_measures.pytrec_eval
    }
    values = {found.query_id: float(found.value) for found in provider.iter_calc([measure], judged, ordered)}
    # NaN where 0 of 0 relevant documents were found; a query without subtopics has no value.
    found = {query_id: values.get(number, math.nan) for query_id, number in numbers.items()}
    return {query_id: 0.0 if math.isnan(value) else value for query_id, value in found.items()}


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


def level_note(metrics: Iterable[str], qrels: Grades, stated: int | None, *, where: str, remedy: str) -> str | None:
    """Return a line on binary metrics with a relevance level that looks wrong for some judgments; None where none does.

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


def whole_grades(grades: Grades) -> Qrels:
    """Return judgments with grades rounded down: they reach the same relevance levels, which are whole numbers."""
    return {key: {document: math.floor(grade) for document, grade in of.items()} for key, of in grades.items()}


def _real_grades(grades: Grades, metrics: Sequence[Metric], level: int) -> tuple[Check, ...]:
    """Say which metrics take real-valued grades, where there are some; refuse a metric that does not."""
    real = [key for key, of in grades.items() if float in set(map(type, of.values()))]
    if not real:
        return ()
    document, grade = next((d, grade) for d, grade in grades[real[0]].items() if isinstance(grade, float))
    example = f"{grade:g} of document {document!r} for query {real[0]!r}"
    linear, binary = [m.name for m in metrics if m.is_linear], [m.name for m in metrics if m.binary]
    for metric in metrics:
        if not (metric.is_linear or metric.is_of_level):
            raise DataError(
                f"metric {metric.name!r} takes whole grades, and there is {example}; use ndcg@K, which takes them as "
                "they are, or a metric that counts relevant documents, such as map or recall@K"
            )
    taken = [f"{', '.join(linear)} {'takes' if len(linear) == 1 else 'take'} them as they are"] if linear else []
    if binary:
        short = "" if _highest(grades) >= level else ", which none does"
        count = "counts" if len(binary) == 1 else "count"
        taken.append(f"{', '.join(binary)} {count} a document as relevant where its grade reaches {level}{short}")
    line = "; ".join([f"grades of {len(real):,} of {len(grades):,} queries are real numbers ({example})", *taken])
    data = {"queries": len(real), "as_they_are": linear, "from_level": binary, "level": level}
    return (Check("grades", "note", line, data),)


def _highest(qrels: Grades) -> float:
    return max((grade for grades in qrels.values() for grade in grades.values()), default=0)
