"""The metrics that trec_eval computes, through pytrec_eval."""

from __future__ import annotations

from collections.abc import Sequence

import pytrec_eval

from unimoe.core.trec import Qrels, Run, head
from unimoe.metrics.names import CAPPED, TrecEvalMetric

_CUT = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "p": "P"} | dict.fromkeys(CAPPED, "P")
_UNCUT = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank"}


def trec_eval_scores(
    qrels: Qrels, run: Run, metrics: Sequence[TrecEvalMetric], relevance_level: int
) -> dict[str, dict[str, float]]:
    """Compute metrics by query, with one pass of trec_eval for each depth and level.

    Args:
        qrels: the judgments, without negative grades.
        run: every judged query, be it without documents.
        metrics: each once.
        relevance_level: the lowest relevant grade of metrics whose name fixes none.

    Returns:
        Metric name to ``{query id: value}``.
    """
    passes: dict[tuple[int | None, int], list[TrecEvalMetric]] = {}
    for metric in metrics:
        passes.setdefault((_depth(metric), metric.level or relevance_level), []).append(metric)
    per_query: dict[str, dict[str, float]] = {}
    for (depth, level), members in passes.items():
        cut_run = {
            query_id: scores if depth is None or len(scores) <= depth else head(scores, depth)
            for query_id, scores in run.items()
        }
        names = {metric.name: _name(metric) for metric in members}
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(names.values()), relevance_level=level)
        evaluated = evaluator.evaluate(cut_run)
        for metric in members:
            key = names[metric.name].replace(".", "_")
            values = {query_id: float(evaluated[query_id][key]) for query_id in qrels}
            if metric.family in CAPPED:
                values = _capped(values, metric, level, qrels, run)
            per_query[metric.name] = values
    return per_query


def _name(metric: TrecEvalMetric) -> str:
    """Return trec_eval's name of a metric; of capped recall, that of the precision it is made from."""
    if metric.cutoff is None or metric.family == "mrr":
        return _UNCUT[metric.family]
    return f"{_CUT[metric.family]}.{metric.cutoff}"


def _depth(metric: TrecEvalMetric) -> int | None:
    """Return the depth to cut the run to beforehand: trec_eval has no cut-off reciprocal rank."""
    return metric.cutoff if metric.family == "mrr" else None


def _capped(
    precision: dict[str, float], metric: TrecEvalMetric, level: int, qrels: Qrels, run: Run
) -> dict[str, float]:
    """Return capped recall from precision at the same cut-off; 0 where nothing is relevant or retrieved."""
    cutoff, capped = metric.cutoff or 0, {}
    for query_id, value in precision.items():
        relevant = sum(grade >= level for grade in qrels[query_id].values())
        places = cutoff if metric.family == "recall_cap" else min(cutoff, len(run[query_id]))
        reachable = min(relevant, places)
        capped[query_id] = round(value * cutoff) / reachable if reachable else 0.0
    return capped
