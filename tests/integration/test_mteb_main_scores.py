"""A result's main metric is the main score of MTEB's task, with MTEB's own values by query or by group of queries."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import mteb
import pytest
import pytrec_eval
import torch
from mteb._evaluators.retrieval_metrics import (
    evaluate_p_mrr_change,
    max_over_subqueries,
    paired_accuracy,
    robustness_at_10,
)
from mteb.abstasks import AbsTaskRetrieval
from support import mteb_tasks
from support.experiments import tiny_experiment
from support.mteb_runs import Suite
from support.mteb_tasks import split_data
from support.reranking import invented

from unimoe.core.trec import read_qrels, read_run
from unimoe.evaluation.reranking.rerankers import FunctionReranker
from unimoe.evaluation.systems.named import Naming, stated_system
from unimoe.results import EvalResult, read_query_details, read_result, result_path

COLLECTION = invented(documents=18, queries=6)
TREC_EVAL = {
    "ndcg_at_5": ("ndcg@5", "ndcg_cut_5"),
    "ndcg_at_100": ("ndcg@100", "ndcg_cut_100"),
    "map_at_10": ("map@10", "map_cut_10"),
    "map_at_1000": ("map", "map_cut_1000"),
    "mrr_at_5": ("mrr@5", None),
    "recall_at_1": ("recall@1", "recall_1"),
    "accuracy": ("recall@1", "recall_1"),
    "precision_at_1": ("p@1", "P_1"),
    "hit_rate_at_5": ("Success@5", "success_5"),
}
"""MTEB's main scores that are means over queries, the name that results give each, and trec_eval's."""


class Chances(FunctionReranker):
    """A reranker whose scores depend on nothing that is relevant."""

    name, identity = "chances", "chances@1"

    def __init__(self) -> None:
        super().__init__(lambda pairs: [zlib.crc32("|".join(pair).encode()) / 2**24 for pair in pairs])


def task_of(main_score: str, ids: list[str], own: Callable[..., dict[str, Any]] | None = None) -> Any:
    """A reranking task whose queries have these ids, and which computes scores of its own."""
    names = dict(zip(COLLECTION.queries, ids, strict=True))

    class Invented(AbsTaskRetrieval):
        metadata = mteb_tasks.card("InventedScores", "Reranking", main_score)

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            data = split_data(COLLECTION, {query: dict.fromkeys(COLLECTION.corpus, 0.0) for query in names})
            data["queries"] = data["queries"].map(lambda row: {"id": names[row["id"]]})
            for part in ("relevant_docs", "top_ranked"):
                held: Any = data[part]
                data[part] = {names[query]: value for query, value in held.items()}
            self.dataset = {"default": {"test": data}}
            self.data_loaded = True

        def task_specific_scores(self, scores: Any, qrels: Any, results: Any, *places: Any, **named: Any) -> Any:
            return own(self, scores, qrels, results) if own else {}

    return Invented()


def evaluated(folder: Path, task: Any) -> EvalResult:
    naming = Naming(tiny_experiment(folder), torch.device("cpu"), torch.float32)
    suite = Suite(folder, stated_system(Chances(), naming), ("reranking",))
    (found,) = suite.run([task])
    assert suite.reasons == []
    return found


@pytest.mark.parametrize("main_score", TREC_EVAL)
def test_the_main_metric_is_the_main_score_with_the_values_of_trec_eval(main_score: str, tmp_path: Path) -> None:
    found = evaluated(tmp_path, task_of(main_score, list(COLLECTION.queries)))
    name, theirs = TREC_EVAL[main_score]
    assert found.main_metric == name
    assert found.aggregate[name] == fmean(found.per_query.values())
    assert round(found.aggregate[name], 5) == round(found.aggregate["main_score"], 5)
    assert len({*found.per_query.values()}) > 1
    if theirs:
        measure = theirs if theirs == "map" else ".".join(theirs.rsplit("_", 1))
        run = read_run(tmp_path / "chances/seed_none/runs/reranking/InventedScores.trec")
        qrels = read_qrels(tmp_path / "qrels/InventedScores-test.qrels")
        values = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(run)
        assert found.per_query == {query: one[theirs] for query, one in values.items()}
    assert {"ndcg@10", "mrr@10", "map", "recall@100"} <= {name, *found.per_query_metrics}


def merged(self: Any, scores: Any, qrels: Any, results: Any) -> Any:
    return max_over_subqueries(qrels, results, self.k_values)


def pairs(self: Any, scores: Any, qrels: Any, results: Any) -> Any:
    changed = {query: list(qrels[f"{query}-og"]) for query in ("a", "b", "c") if f"{query}-og" in qrels}
    return evaluate_p_mrr_change(qrels, results, changed, self.k_values)


GROUPED: Mapping[str, tuple[list[str], Callable[..., Any]]] = {
    "max_over_subqueries_map_at_1000": ([f"u_{one}_{part}" for one in "abc" for part in "01"], merged),
    "paired_accuracy": (
        [f"{one}_q{part}" for one in "abc" for part in "12"],
        lambda _, scores, qrels, results: {"paired_accuracy": paired_accuracy(qrels, results, scores)},
    ),
    "robustness_at_10": (
        [f"{one}_{part}" for one in "abc" for part in "01"],
        lambda _, scores, qrels, results: {"robustness_at_10": robustness_at_10(qrels, results, scores)},
    ),
    "p-MRR": ([f"{one}-{part}" for one in "abc" for part in ("og", "changed")], pairs),
}
"""Main scores over groups of queries, with ids of three groups and what MTEB's task computes."""


@pytest.mark.parametrize("main_score", GROUPED)
def test_a_main_score_over_groups_of_queries_has_a_value_for_each_group(main_score: str, tmp_path: Path) -> None:
    ids, own = GROUPED[main_score]
    found = evaluated(tmp_path, task_of(main_score, ids, own))
    assert found.main_metric == main_score
    assert len(found.per_query) == 3
    assert found.aggregate[main_score] == pytest.approx(fmean(found.per_query.values()), abs=1e-15)
    rounded = 5 if main_score.startswith("max") else 15  # MTEB rounds the mean
    assert round(found.aggregate[main_score], rounded) == round(found.aggregate["main_score"], rounded)
    assert found.aggregate["ndcg@10"] > 0  # of all queries, beside it
    path = result_path(tmp_path, "chances", None, "reranking", "InventedScores")
    details = read_query_details(path, found.per_query)
    assert all(" | " in detail.text and detail.ranks.keys() == detail.relevant.keys() for detail in details.values())


def test_a_result_of_another_main_metric_is_evaluated_again(tmp_path: Path) -> None:
    """Results that were written before had nDCG@10 in its place."""
    task = task_of("hit_rate_at_5", list(COLLECTION.queries))
    found = evaluated(tmp_path, task)
    path = result_path(tmp_path, "chances", None, "reranking", "InventedScores")
    old = json.loads(path.read_text(encoding="utf-8"))
    old.pop("checksum", None)
    ndcg = dict(zip(sorted(found.per_query), old["per_query_metrics"].pop("ndcg@10"), strict=True))
    path.write_text(json.dumps(old | {"main_metric": "ndcg@10", "per_query": ndcg}), encoding="utf-8")
    assert evaluated(tmp_path, task).main_metric == read_result(path).main_metric == "Success@5"


def test_every_main_score_of_mtebs_tasks_of_text_is_known() -> None:
    from unimoe.evaluation.mteb.main_scores import main_metric

    ranking = (task for task in mteb.get_tasks() if isinstance(task, AbsTaskRetrieval))
    text = [task for task in ranking if list(task.metadata.modalities) == ["text"]]
    names = {task.metadata.main_score: main_metric(task) for task in text}
    assert [main for main, name in names.items() if name == "ndcg@10"] == ["ndcg_at_10"]
    assert names["max_over_subqueries_map_at_1000"] == "max_over_subqueries_map_at_1000"
