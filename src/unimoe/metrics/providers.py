"""The metrics that ir_measures computes, each by the first of its libraries that is installed.

ERR comes from gdeval, a Perl script that prints five decimals and counts with a highest grade of 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

import ir_measures
from ir_measures import Measure, SumAgg

from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Qrels, Run, ranked
from unimoe.metrics.names import OtherMetric

_GDEVAL_HIGHEST = 4


def provider_of(metric: OtherMetric, relevance_level: int) -> Any:
    """Find the library that computes a metric at a relevance level.

    Raises:
        UsageError: none does, or the one that does is not installed.
    """
    measure = _at_level(metric, relevance_level)
    providers = [provider for provider in ir_measures.DefaultPipeline.providers if provider.supports(measure)]
    if not providers:
        raise UsageError(
            f"metric {metric.name!r}: nothing computes it at relevance level {relevance_level}; leave it out"
        )
    available = next((provider for provider in providers if provider.is_available()), None)
    if available is None:
        advice = " or ".join(f"{p.NAME} ({p.install_instructions()})" for p in providers)
        raise UsageError(f"metric {metric.name!r} needs what is not installed: {advice}")
    return available


def provided_scores(qrels: Qrels, run: Run, metric: OtherMetric, relevance_level: int) -> dict[str, float]:
    """Compute one metric by query.

    Args:
        qrels: the judgments, negative grades among them.
        run: every judged query, be it without documents.
        metric: of ir_measures.
        relevance_level: the lowest relevant grade, where the metric's name fixes none.

    Returns:
        Query id to value, for every judged query.

    Raises:
        UsageError: as in ``provider_of``.
        DataError: a grade is too high for the library.
    """
    provider, measure = provider_of(metric, relevance_level), _at_level(metric, relevance_level)
    if provider is ir_measures.pytrec_eval:
        return _by_query(provider, measure, _with_a_grade(qrels), run)
    if provider is ir_measures.gdeval:
        _refuse_high_grades(metric, qrels)
    numbers = {query_id: str(number) for number, query_id in enumerate(qrels)}  # gdeval reads no other query ids
    found = _by_query(
        provider,
        measure,
        {numbers[query_id]: grades for query_id, grades in qrels.items()},
        {numbers[query_id]: _places(scores) for query_id, scores in run.items() if scores},
    )
    return {query_id: found[number] for query_id, number in numbers.items()}


def is_summed(metric: OtherMetric) -> bool:
    """Return whether a metric is a count, which is summed over the queries and not averaged."""
    return isinstance(metric.measure.aggregator(), SumAgg)


def _at_level(metric: OtherMetric, relevance_level: int) -> Measure:
    measure: Measure = metric.measure(rel=relevance_level) if metric.binary else metric.measure
    return measure


def _by_query(provider: Any, measure: Measure, qrels: Qrels, run: Run) -> dict[str, float]:
    values = {found.query_id: float(found.value) for found in provider.iter_calc([measure], qrels, run)}
    return {query_id: 0.0 if isnan(value) else value for query_id, value in values.items()}  # 0 of 0 relevant found


def _places(scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores without ties that rank as trec_eval would: each library breaks ties in its own way."""
    order = ranked(scores)
    return {document_id: float(len(order) - place) for place, document_id in enumerate(order)}


def _with_a_grade(qrels: Qrels) -> Qrels:
    """Return judgments in which queries with negative grades alone have 0: they crash trec_eval."""
    return {
        query_id: grades if max(grades.values()) >= 0 else dict.fromkeys(grades, 0)
        for query_id, grades in qrels.items()
    }


def _refuse_high_grades(metric: OtherMetric, qrels: Qrels) -> None:
    highest, query_id = max((max(grades.values()), query_id) for query_id, grades in qrels.items())
    if highest > _GDEVAL_HIGHEST:
        raise DataError(
            f"metric {metric.name!r} is defined for grades up to {_GDEVAL_HIGHEST}, and query {query_id!r} has grade "
            f"{highest}; use another metric"
        )
