"""Computes metrics by query: trec_eval's in passes of pytrec_eval, others by ir_measures, and registered functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytrec_eval

from unimoe.core.errors import DataError, UsageError
from unimoe.core.limits import MOST
from unimoe.core.trec import Qrels, Run, head, ranked
from unimoe.metrics.names import CAPPED, Metric

_CUT = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "p": "P"} | dict.fromkeys(CAPPED, "P")
_UNCUT = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank"}
_HIGHEST_OF_ERR = 4
"""ERR comes from gdeval, a Perl script that prints five decimals and counts with a highest grade of 4."""


def scores_by_query(qrels: Qrels, run: Run, metrics: Sequence[Metric], level: int) -> dict[str, dict[str, float]]:
    """Return metric name to ``{query id: value}``, for every judged query; the run holds each, be it empty."""
    found = _by_trec_eval(qrels, run, [metric for metric in metrics if metric.family], level)
    for metric in metrics:
        if metric.measure is not None:
            found[metric.name] = _by_ir_measures(qrels, run, metric, level)
        elif metric.function is not None:
            found[metric.name] = {
                query_id: _finite(metric, query_id, metric.function(grades, ranked(run[query_id])))
                for query_id, grades in qrels.items()
            }
    return {metric.name: found[metric.name] for metric in metrics}


def aggregate(metric: Metric, values: Mapping[str, float]) -> float:
    """Return the mean over queries; of a count, such as NumRet, the sum."""
    total = math.fsum(values.values())
    if metric.measure is not None:
        from ir_measures import SumAgg

        if isinstance(metric.measure.aggregator(), SumAgg):
            return total
    return total / len(values)


def provider_of(metric: Metric, level: int) -> tuple[Any, Any]:
    """Find the library that computes a metric of ir_measures, and the measure at this relevance level.

    Raises:
        UsageError: none does, or the one that does is not installed.
    """
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
    passes: dict[tuple[int | None, int], list[Metric]] = {}
    for metric in metrics:
        # trec_eval has no cut-off reciprocal rank, so the run is cut.
        depth = metric.cutoff if metric.family == "mrr" else None
        passes.setdefault((depth, metric.level or level), []).append(metric)
    found: dict[str, dict[str, float]] = {}
    for (depth, lowest), members in passes.items():
        cut = run if depth is None else {query_id: head(scores, depth) for query_id, scores in run.items()}
        names = {metric.name: _trec_eval_name(metric) for metric in members}
        evaluated = pytrec_eval.RelevanceEvaluator(qrels, set(names.values()), relevance_level=lowest).evaluate(cut)
        for metric in members:
            key = names[metric.name].replace(".", "_")
            found[metric.name] = {query_id: float(evaluated[query_id][key]) for query_id in qrels}
            if metric.family in CAPPED:
                found[metric.name] = _capped(found[metric.name], metric, lowest, qrels, run)
    return found


def _trec_eval_name(metric: Metric) -> str:
    """Return trec_eval's name of a metric; of capped recall, that of the precision it is made from."""
    if metric.cutoff is None or metric.family == "mrr":
        return _UNCUT[metric.family or ""]
    return f"{_CUT[metric.family or '']}.{metric.cutoff}"


def _capped(precision: Mapping[str, float], metric: Metric, level: int, qrels: Qrels, run: Run) -> dict[str, float]:
    """Return capped recall from precision at the same cut-off; 0 where nothing is relevant or retrieved."""
    cutoff, capped = metric.cutoff or 0, {}
    for query_id, value in precision.items():
        relevant = sum(grade >= level for grade in qrels[query_id].values())
        places = cutoff if metric.family == "recall_cap" else min(cutoff, len(run[query_id]))
        reachable = min(relevant, places)
        capped[query_id] = round(value * cutoff) / reachable if reachable else 0.0
    return capped


def _by_ir_measures(qrels: Qrels, run: Run, metric: Metric, level: int) -> dict[str, float]:
    import ir_measures

    provider, measure = provider_of(metric, level)
    if provider is ir_measures.gdeval:
        highest, query_id = max((max(grades.values()), query_id) for query_id, grades in qrels.items())
        if highest > _HIGHEST_OF_ERR:
            raise DataError(
                f"metric {metric.name!r} is defined for grades up to {_HIGHEST_OF_ERR}, and query {query_id!r} has "
                f"grade {highest}; use another metric"
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


def _finite(metric: Metric, query_id: str, value: Any) -> float:
    """Return what a registered function says of a query; refuse what is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= MOST:
        raise DataError(
            f"metric {metric.name!r}: {value!r} for query {query_id!r} is no finite number; mend its function"
        )
    return number
