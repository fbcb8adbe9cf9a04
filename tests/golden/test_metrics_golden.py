"""Exact values: by hand on tiny rankings, and equal to pytrec_eval on six real systems of TREC DL 2019."""

from __future__ import annotations

from math import log2
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from unimoe.metrics import score_run
from unimoe.trec import Run, read_qrels, read_run

# Ranking:   d3 (grade 0), d1 (grade 3), d5 (not judged), d4 (grade 1); d2 (grade 2) was not found.
GRADES = {"d1": 3, "d2": 2, "d3": 0, "d4": 1}
RANKING = {"d3": 0.9, "d1": 0.8, "d5": 0.7, "d4": 0.6}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # DCG 3/log2(3) + 1/log2(5) = 1.892789 + 0.430677 = 2.323466
        # ideal 3/log2(2) + 2/log2(3) + 1/log2(4) = 3 + 1.261860 + 0.5 = 4.761860
        ("ndcg@10", 0.4879325),
        # DCG 3/log2(3) = 1.892789 over the ideal of two places, 3 + 1.261860 = 4.261860
        ("ndcg@2", 0.4441229),
        ("mrr@10", 1 / 2),
        ("mrr@1", 0.0),
        # precision 1/2 at d1 and 2/4 at d4, none for d2: (1/2 + 1/2) / 3
        ("map", 1 / 3),
        ("recall@100", 2 / 3),
        ("recall@2", 1 / 3),
        ("p@5", 2 / 5),
    ],
)
def test_one_query_by_hand(metric: str, expected: float) -> None:
    scores = score_run({"q": GRADES}, {"q": RANKING}, [metric])
    assert scores.per_query[metric]["q"] == pytest.approx(expected, abs=1e-7)


def test_the_gain_is_linear_in_the_grade() -> None:
    # Grades 3 and 1 in the wrong order: (1 + 3/log2(3)) / (3 + 1/log2(3)).
    # With a gain of 2^grade - 1 it would be .7098.
    scores = score_run({"q": {"a": 3, "b": 1}}, {"q": {"b": 2.0, "a": 1.0}}, ["ndcg@10"])
    assert scores.aggregate["ndcg@10"] == pytest.approx((1 + 3 / log2(3)) / (3 + 1 / log2(3)), abs=1e-12)
    assert scores.aggregate["ndcg@10"] == pytest.approx(0.7967075809905066, abs=1e-12)


def test_means_over_three_judged_queries_by_hand() -> None:
    qrels = {"found": {"a": 1}, "second": {"a": 1}, "absent": {"a": 1}}
    run = {"found": {"a": 1.0}, "second": {"b": 2.0, "a": 1.0}, "unjudged": {"a": 1.0}}
    scores = score_run(qrels, run)
    assert scores.aggregate == pytest.approx(
        {
            "ndcg@10": (1 + 1 / log2(3) + 0) / 3,  # 0.543643
            "mrr@10": (1 + 1 / 2 + 0) / 3,
            "map": (1 + 1 / 2 + 0) / 3,
            "recall@100": (1 + 1 + 0) / 3,
        },
        abs=1e-12,
    )
    assert scores.unjudged_queries == ["unjudged"]


# nDCG@10 and MRR@10 over the 43 queries and all official judgments.
SYSTEMS = {
    "bm25": (0.5058, 0.8233),
    "bm25_rm3": (0.5216, 0.8070),
    "d_bert_kd_tasb": (0.7210, 0.9510),
    "open_ai_ada2": (0.7035, 0.9186),
    "rep_llama": (0.7384, 0.9884),
    "splade_p_p_ensemble_distil": (0.7308, 0.9729),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_real_systems_score_what_pytrec_eval_says(system: str, unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    qrels, run = read_qrels(pool / "qrels" / "full.tsv"), read_run(pool / "runs" / f"{system}.trec")
    scores = score_run(qrels, run)
    ndcg, mrr = SYSTEMS[system]
    assert scores.aggregate["ndcg@10"] == pytest.approx(ndcg, abs=5e-5)
    assert scores.aggregate["mrr@10"] == pytest.approx(mrr, abs=5e-5)

    peer = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map", "recall.100"}).evaluate(run)
    cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_ten(run))
    assert len(peer) == 43
    for metric, key, values in (
        ("ndcg@10", "ndcg_cut_10", peer),
        ("map", "map", peer),
        ("recall@100", "recall_100", peer),
        ("mrr@10", "recip_rank", cut),
    ):
        expected = {query_id: value[key] for query_id, value in values.items()}
        assert scores.per_query[metric] == pytest.approx(expected, abs=1e-12)
        assert scores.aggregate[metric] == pytest.approx(np.mean(list(expected.values())), abs=1e-12)


def first_ten(run: Run) -> Run:
    """The cut written once more, without the code under test."""
    cut = {}
    for query_id, scores in run.items():
        best = sorted(scores, key=lambda document: (np.float32(scores[document]), document), reverse=True)
        cut[query_id] = {document: scores[document] for document in best[:10]}
    return cut
