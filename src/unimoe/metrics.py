"""Effectiveness measures: pytrec_eval behind one function.

Names are the field's: ``ndcg@10``, ``mrr@10``, ``map``, ``recall@100``. Semantics are those of ``trec_eval -c``: a
judged query that the run lacks counts 0; a query without judgments counts nowhere and is listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytrec_eval

from unimoe.errors import DataError, UsageError
from unimoe.trec import ranked

DEFAULT_METRICS = ("ndcg@10", "mrr@10", "map", "recall@100")
_CUTOFF_MEASURES = {"ndcg": "ndcg_cut", "recall": "recall", "p": "P", "map": "map_cut"}


@dataclass(frozen=True)
class Scores:
    """The measures of one run.

    Attributes:
        per_query: metric name to ``{query id: value}`` over the judged queries.
        aggregate: metric name to the mean over the judged queries.
        unjudged_queries: queries of the run without judgments, in sorted order; part of no mean.
    """

    per_query: dict[str, dict[str, float]]
    aggregate: dict[str, float]
    unjudged_queries: list[str]


def score_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Scores:
    """Score a run against qrels, per query and on average.

    Args:
        qrels: query id to ``{document id: integer grade}``; grades above 0 are relevant, nDCG's gain is the grade.
        run: query id to ``{document id: score}``; higher is better, ties break by document id descending.
        metrics: names such as ``ndcg@10``, ``mrr``, ``mrr@10``, ``map``, ``recall@100``, ``p@5``.

    Raises:
        DataError: a score is not finite, or no query is judged.
        UsageError: an unknown metric.
    """
    judged = {query_id: dict(grades) for query_id, grades in qrels.items() if grades}
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    complete = {query_id: _plain(query_id, run.get(query_id, {})) for query_id in judged}
    per_query = {metric: _one_metric(metric, judged, complete) for metric in metrics}
    return Scores(
        per_query=per_query,
        aggregate={metric: math.fsum(values.values()) / len(values) for metric, values in per_query.items()},
        unjudged_queries=sorted(set(run) - set(judged)),
    )


def _one_metric(metric: str, qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]) -> dict[str, float]:
    match = re.fullmatch(r"(ndcg|mrr|map|recall|p)(?:@([1-9]\d*))?", metric)
    if match is None or (match[2] is None and match[1] in {"recall", "p"}):
        raise UsageError(f"unknown metric {metric!r}; use ndcg@K, mrr, mrr@K, map, recall@K or p@K")
    name, cutoff = match[1], match[2]
    if name == "mrr":
        measure = "recip_rank"
        if cutoff is not None:  # trec_eval has no cut-off reciprocal rank: cut the run instead
            run = {q: {d: scores[d] for d in ranked(scores)[: int(cutoff)]} for q, scores in run.items()}
    elif cutoff is None:
        measure = name
    else:
        measure = f"{_CUTOFF_MEASURES[name]}.{cutoff}"
    evaluated = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(run)
    key = measure.replace(".", "_")
    return {query_id: float(evaluated[query_id][key]) for query_id in qrels}


def _plain(query_id: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Python floats: pytrec_eval refuses numpy's and takes NaN in silence."""
    plain = {document_id: float(score) for document_id, score in scores.items()}
    for document_id, score in plain.items():
        if not math.isfinite(score):
            raise DataError(f"query {query_id!r}, document {document_id!r}: score {score} is not finite")
    return plain
