"""Computes metrics by query: trec_eval's in passes of pytrec_eval, others by ir_measures, and registered functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytrec_eval

from unimoe.core.errors import DataError, UsageError
from unimoe.core.grouping import gathered
from unimoe.core.limits import read_score
from unimoe.core.trec import Qrels, Run, head, ranked
from unimoe.metrics.names import CAPPED, TREC_EVAL, Metric

N = TypeVar("N", int, float)


def scores_by_query(qrels: Qrels, run: Run, metrics: Sequence[Metric], level: int) -> dict[str, dict[str, float]]:
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
                where = f"metric {metric.name!r}, query {query_id!r}: its function's value"
                value = metric.function(grades, ranked(run[query_id]))
                found[metric.name][query_id] = checked_number(value, read_score, where)
    return {metric.name: found[metric.name] for metric in metrics}


def checked_number(value: Any, read: Callable[[str], N], where: str) -> N:
    """Return any kind of number as Python's, if ``read`` takes it from a file; a DataError otherwise."""
    try:
        math.isfinite(value)  # unlike float, it takes no text
        return read(repr(float(value)))
    except (TypeError, OverflowError):
        raise DataError(f"{where} {value!r} is no number") from None
    except ValueError as error:
        raise DataError(f"{where} {error}") from None


def provider_of(metric: Metric, level: int) -> tuple[Any, Any]:
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


def _by_ir_measures(qrels: Qrels, run: Run, metric: Metric, level: int) -> dict[str, float]:
    import ir_measures

    provider, measure = provider_of(metric, level)
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
