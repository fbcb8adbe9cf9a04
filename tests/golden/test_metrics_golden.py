"""Exact values: by hand on tiny rankings, and equal to pytrec_eval on six real systems of TREC DL 2019."""

from __future__ import annotations

import csv
from collections import defaultdict
from math import fsum, log2
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from unimoe.config import BM25Config
from unimoe.core.trec import Qrels, Run, write_qrels, write_run
from unimoe.data.sources.beir_layout import read_beir
from unimoe.metrics import score_run
from unimoe.results.runs.scoring import score_run_file
from unimoe.retrieval.bm25 import bm25_run

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


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        # d3, d1, d5 and d4 as above, and one query that the run lacks: half of what one query has.
        (None, {"ndcg@10": 0.4879325 / 2, "mrr": 1 / 4, "map": 1 / 6, "recall@100": 1 / 3}),
        # d3 and d1 alone: DCG 1.892789 over the ideal of all places, 4.761860; one relevant document of three, second
        (2, {"ndcg@10": 0.3974895 / 2, "mrr": 1 / 4, "map": 1 / 12, "recall@100": 1 / 6}),
        # d3 alone
        (1, {"ndcg@10": 0.0, "mrr": 0.0, "map": 0.0, "recall@100": 0.0}),
    ],
)
def test_a_run_file_whole_and_cut_by_hand(tmp_path: Path, depth: int | None, expected: dict[str, float]) -> None:
    write_run(tmp_path / "some.trec", {"q": RANKING}, tag="some")
    write_qrels(tmp_path / "qrels.txt", {"q": GRADES, "absent": {"d1": 1}})
    scores = score_run_file(tmp_path / "some.trec", tmp_path / "qrels.txt", list(expected), depth)
    assert scores.aggregate == pytest.approx(expected, abs=1e-7)


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
def test_real_systems_score_what_is_known_of_them(system: str, unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    scores = score_run_file(pool / "runs" / f"{system}.trec", pool / "qrels" / "full.tsv", ["ndcg@10", "mrr@10"])
    found = (scores.aggregate["ndcg@10"], scores.aggregate["mrr@10"])
    assert found == pytest.approx(SYSTEMS[system], abs=5e-5)


@pytest.mark.parametrize("split", ["test", "full"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_real_systems_score_what_pytrec_eval_says(system: str, split: str, unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    run_path, qrels_path = pool / "runs" / f"{system}.trec", pool / "qrels" / f"{split}.tsv"
    metrics = ["ndcg@10", "map", "recall@100", "mrr", "mrr@10"]
    scores = score_run_file(run_path, qrels_path, metrics)

    qrels, run = beir_qrels(qrels_path), pytrec_eval.parse_run(run_path.read_text(encoding="utf-8").splitlines())
    whole = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map", "recall.100", "recip_rank"}).evaluate(run)
    cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_ten(run))
    keys = ("ndcg_cut_10", "map", "recall_100", "recip_rank", "recip_rank")
    for metric, key, values in zip(metrics, keys, (whole, whole, whole, whole, cut), strict=True):
        expected = {query_id: value[key] for query_id, value in values.items()}
        assert len(expected) == scores.queries == 43
        assert scores.per_query[metric] == pytest.approx(expected, rel=0, abs=1e-12)
        assert scores.aggregate[metric] == pytest.approx(np.mean(list(expected.values())), rel=0, abs=1e-12)


def test_cisi_is_averaged_over_its_76_judged_queries_and_lists_the_other_36(unimoe_data: Path) -> None:
    collection = read_beir(unimoe_data / "cisi", "test")
    run, judged = bm25_run(collection, 100, BM25Config()), beir_qrels(unimoe_data / "cisi" / "qrels" / "test.tsv")
    scores = score_run(collection.qrels, run, ["ndcg@10"])
    assert (len(run), len(judged)) == (112, 76)
    assert set(scores.unjudged_queries) == run.keys() - judged.keys()
    assert len(scores.unjudged_queries) == 36

    peer = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(run)
    expected = {query_id: peer[query_id]["ndcg_cut_10"] for query_id in judged}
    assert scores.per_query["ndcg@10"] == pytest.approx(expected, rel=0, abs=1e-12)
    assert scores.aggregate["ndcg@10"] == pytest.approx(fsum(expected.values()) / 76, rel=0, abs=1e-12)


def beir_qrels(path: Path) -> Qrels:
    """Qrels in BEIR layout read once more, without the code under test."""
    qrels: Qrels = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            qrels[row["query-id"]][row["corpus-id"]] = int(row["score"])
    return dict(qrels)


def first_ten(run: Run) -> Run:
    """The cut written once more, without the code under test."""
    cut = {}
    for query_id, scores in run.items():
        best = sorted(scores, key=lambda document: (np.float32(scores[document]), document), reverse=True)
        cut[query_id] = {document: scores[document] for document in best[:10]}
    return cut
