"""Effectiveness measures: pytrec_eval behind one function.

Names are the field's: ``ndcg@10``, ``mrr@10``, ``map``, ``recall@100``. Semantics are those of ``trec_eval -c``: a
judged query that the run lacks counts 0, as does one without a relevant document; a query without judgments counts
nowhere and is listed.

``recall_cap@K`` is not trec_eval's: the relevant documents among a query's first K, over the most that could be there,
``min(relevant, retrieved)``, where retrieved are the documents the run holds among its first K. So 1 can be reached
where more than K documents are relevant. BEIR's capped recall divides by ``min(relevant, K)``, which is the same but
for queries with fewer than K documents in the run: there BEIR counts what was not retrieved as missed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytrec_eval

from unimoe.errors import DataError, UsageError, did_you_mean
from unimoe.trec import Qrels, head

DEFAULT_METRICS = ("ndcg@10", "mrr@10", "map", "recall@100")
_CUTOFF = r"[1-9]\d{0,6}"
_CUTOFF_MEASURES = {"ndcg": "ndcg_cut", "recall": "recall", "p": "P", "map": "map_cut", "recall_cap": "P"}
_ONLY_CUT = ("recall", "p", "recall_cap")
_USABLE = "ndcg@K, mrr, mrr@K, map, recall@K, recall_cap@K or p@K"


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
        metrics: names such as ``ndcg@10``, ``mrr``, ``mrr@10``, ``map``, ``recall@100``, ``recall_cap@10``,
            ``p@5``.

    Raises:
        DataError: a score is not finite, a grade no whole number, or no query is judged.
        UsageError: an unknown metric.
    """
    measures = {metric: trec_eval_measure(metric) for metric in metrics}
    judged = {query_id: _grades(query_id, grades) for query_id, grades in qrels.items() if grades}
    if not judged:
        raise DataError("qrels hold no judgments: nothing can be scored")
    complete = {query_id: _plain(query_id, run.get(query_id, {})) for query_id in judged}
    per_query = _evaluate(judged, complete, measures)
    return Scores(
        per_query=per_query,
        aggregate={metric: math.fsum(values.values()) / len(values) for metric, values in per_query.items()},
        unjudged_queries=sorted(set(run) - set(judged)),
    )


def from_grade(qrels: Mapping[str, Mapping[str, int]], lowest: int) -> Qrels:
    """Judgments in which grades below ``lowest`` are 0: what is not relevant enough is not relevant.

    Every judgment stays, so the same queries are judged, and one that loses all its relevant documents counts 0.

    Raises:
        DataError: no grade is that high, so that every query would count 0.
    """
    highest = max((grade for grades in qrels.values() for grade in grades.values()), default=0)
    if highest < lowest:
        raise DataError(
            f"no judgment reaches grade {lowest}, the highest is {highest}, so nothing would be relevant; "
            "lower relevance_threshold, or check the judgments"
        )
    return {
        query_id: {document_id: grade if grade >= lowest else 0 for document_id, grade in grades.items()}
        for query_id, grades in qrels.items()
    }


def dataset_group(dataset: str) -> str:
    """What counts once in an average: CQADupStack for its twelve subforums, whatever their source; else the dataset."""
    return "cqadupstack" if "cqadupstack" in dataset.lower() else dataset


def suite_averages(main_metrics: Mapping[str, str], scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Averages over a suite of datasets, one for each main metric: MRR@10 is never mixed with nDCG@10.

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


def trec_eval_measure(metric: str) -> tuple[str, int | None]:
    """The name trec_eval has for a metric, and the depth to cut the run to beforehand.

    For ``recall_cap@K``, which it has no name for, it is precision at K, of which ``score_run`` makes the other.

    Raises:
        UsageError: an unknown metric; names the closest known one.
    """
    match = re.fullmatch(rf"(ndcg|mrr|map|recall|recall_cap|p)(?:@({_CUTOFF}))?", metric)
    if match is None or (match[2] is None and match[1] in _ONLY_CUT):
        hint = did_you_mean(metric.lower(), _names_like(metric))
        raise UsageError(f"unknown metric {metric!r}{hint}; use {_USABLE}")
    name, cutoff = match[1], match[2]
    if name == "mrr":  # trec_eval has no cut-off reciprocal rank: cut the run instead
        return "recip_rank", None if cutoff is None else int(cutoff)
    return (name if cutoff is None else f"{_CUTOFF_MEASURES[name]}.{cutoff}"), None


def _names_like(metric: str) -> list[str]:
    """Known names, with the cut-off of an unknown one where it has any."""
    cutoff = re.search(rf"(?<!\d){_CUTOFF}$", metric)
    names = ("mrr", *_CUTOFF_MEASURES)
    return ["mrr", "map", *(f"{name}@{cutoff[0] if cutoff else 10}" for name in names)]


def _evaluate(
    qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]], measures: dict[str, tuple[str, int | None]]
) -> dict[str, dict[str, float]]:
    """Per-query values by metric, with one pass of trec_eval per depth."""
    per_query: dict[str, dict[str, float]] = {metric: {} for metric in measures}
    for depth in {depth for _, depth in measures.values()}:
        names = {metric: name for metric, (name, cut) in measures.items() if cut == depth}
        cut_run = run if depth is None else {q: head(scores, depth) for q, scores in run.items()}
        evaluated = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(cut_run)
        for metric, name in names.items():
            key = name.replace(".", "_")
            per_query[metric] = {query_id: float(evaluated[query_id][key]) for query_id in qrels}
            if metric.startswith("recall_cap@"):
                per_query[metric] = _capped(per_query[metric], int(metric.rpartition("@")[2]), qrels, run)
    return per_query


def _capped(
    precision: dict[str, float], cutoff: int, qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]
) -> dict[str, float]:
    """Capped recall from precision at the same cut-off; 0 where nothing is relevant, or nothing was retrieved."""
    capped = {}
    for query_id, value in precision.items():
        relevant = sum(grade > 0 for grade in qrels[query_id].values())
        reachable = min(relevant, len(run[query_id]), cutoff)
        capped[query_id] = round(value * cutoff) / reachable if reachable else 0.0
    return capped


def _grades(query_id: str, grades: Mapping[str, int]) -> dict[str, int]:
    """Python integers, negative ones as 0: that is what they count, and a query with nothing else crashes trec_eval."""
    for document_id, grade in grades.items():
        if grade != int(grade):
            raise DataError(f"query {query_id!r}, document {document_id!r}: grade {grade} is not a whole number")
    return {document_id: max(0, int(grade)) for document_id, grade in grades.items()}


def _plain(query_id: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Python floats: pytrec_eval refuses numpy's and takes NaN in silence."""
    plain = {document_id: float(score) for document_id, score in scores.items()}
    for document_id, score in plain.items():
        if not math.isfinite(score):
            raise DataError(f"query {query_id!r}, document {document_id!r}: score {score} is not finite")
    return plain
