"""Every type of task in MTEB(eng, v2) runs through ``mteb.evaluate``; main scores are those of plain arithmetic."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import pytrec_eval
import torch
from scipy.stats import spearmanr
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, v_measure_score
from support import mteb_tasks
from support.mteb_runs import INSTRUCTED, PLAIN, cosines, evaluate, make_model
from support.mteb_tasks import ALL_TYPES, CANDIDATES, PARTS, RANKED, SYMMETRIC, loaded

from unimoe.core.errors import DataError
from unimoe.data.collection import Collection
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.run import evaluate_task
from unimoe.evaluation.reranking.rerankers import PairModelReranker
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


def data_of(kind: type[Any]) -> Any:
    """What a task has loaded, by split."""
    return loaded(kind).dataset


def measured(collection: Collection, run: Mapping[str, Mapping[str, float]], measure: str) -> dict[str, float]:
    found = pytrec_eval.RelevanceEvaluator(collection.qrels, {measure}).evaluate(run)
    return {query: values[measure.replace(".", "_")] for query, values in found.items()}


class TestSymmetricTasks:
    """By default their texts carry no prefix; with ``task_instruction`` all of them carry that of the type."""

    @pytest.fixture(params=["plain", "instructed"])
    def prompts(self, request: pytest.FixtureRequest) -> TaskPrompts:
        return PLAIN if request.param == "plain" else INSTRUCTED

    def embed(self, model: UnimodelForExp1, kind: type[Any], prompts: TaskPrompts, texts: Sequence[str]) -> Any:
        instructed = f"Instruct: {kind.abstask_prompt}\nQuery:"
        prefix = "" if prompts is PLAIN else instructed
        return model.encode(texts, prefix=prefix).astype(float)

    def test_sts_is_the_rank_correlation_of_cosines(self, model: UnimodelForExp1, prompts: TaskPrompts) -> None:
        kind = mteb_tasks.InventedSTS
        rows = data_of(kind)["test"]
        left, right = (self.embed(model, kind, prompts, rows[column]) for column in ("sentence1", "sentence2"))
        outcome = evaluate(model, kind, prompts)
        assert outcome.main_metric == "cosine_spearman"
        assert outcome.main_score == pytest.approx(spearmanr((left * right).sum(1), rows["score"])[0], abs=1e-5)
        assert outcome.items == 28

    def test_pair_classification_is_the_average_precision_of_cosines(
        self, model: UnimodelForExp1, prompts: TaskPrompts
    ) -> None:
        kind = mteb_tasks.InventedPairs
        rows = data_of(kind)["test"]
        left, right = (self.embed(model, kind, prompts, rows[column]) for column in ("sentence1", "sentence2"))
        outcome = evaluate(model, kind, prompts)
        (scores,) = outcome.mteb_json["scores"]["test"]
        expected = average_precision_score(rows["labels"], (left * right).sum(1))
        assert scores["cosine_ap"] == scores["similarity_ap"] == pytest.approx(expected, abs=1e-5)
        manhattan = average_precision_score(rows["labels"], -np.abs(left - right).sum(1))
        assert outcome.main_score == pytest.approx(max(expected, manhattan), abs=1e-5)  # max_ap is over distances

    def test_classification_is_the_accuracy_of_a_logistic_regression(
        self, model: UnimodelForExp1, prompts: TaskPrompts
    ) -> None:
        kind = mteb_tasks.InventedClassification
        data = data_of(kind)
        learnt, asked = (self.embed(model, kind, prompts, data[split]["text"]) for split in ("train", "test"))
        fitted = LogisticRegression(max_iter=100, random_state=42).fit(learnt, data["train"]["label"])
        outcome = evaluate(model, kind, prompts)
        assert outcome.main_metric == "accuracy"
        assert outcome.main_score == pytest.approx(fitted.score(asked, data["test"]["label"]), abs=1 / 30 / 2)
        assert outcome.items == 24 + 30

    def test_clustering_is_the_v_measure_of_k_means(self, model: UnimodelForExp1, prompts: TaskPrompts) -> None:
        kind = mteb_tasks.InventedClustering
        rows = data_of(kind)["test"]
        vectors, labels = self.embed(model, kind, prompts, rows["sentences"]), np.array(rows["labels"])
        draws, means = random.Random(42), MiniBatchKMeans(3, batch_size=512, n_init=1, random_state=42)
        drawn = [draws.choices(range(40), k=30) for _ in range(4)]
        expected = [v_measure_score(labels[rows], means.fit_predict(vectors[rows].astype("float32"))) for rows in drawn]
        assert evaluate(model, kind, prompts).main_score == pytest.approx(np.mean(expected), abs=1e-5)

    def test_summarization_is_the_rank_correlation_with_the_nearest_human_summary(
        self, model: UnimodelForExp1, prompts: TaskPrompts
    ) -> None:
        kind = mteb_tasks.InventedSummarization
        expected = []
        for row in data_of(kind)["test"]:
            human, machine = (self.embed(model, kind, prompts, row[f"{who}_summaries"]) for who in ("human", "machine"))
            expected.append(spearmanr((machine @ human.T).max(1), row["relevance"])[0])
        assert evaluate(model, kind, prompts).main_score == pytest.approx(np.mean(expected), abs=1e-5)

    @pytest.mark.parametrize("kind", SYMMETRIC, ids=lambda kind: kind.__name__)
    def test_they_have_no_queries(self, model: UnimodelForExp1, kind: type[Any]) -> None:
        outcome = evaluate(model, kind)
        assert (outcome.run, outcome.qrels, outcome.queries, outcome.scores.per_query) == ({}, {}, {}, {})
        assert outcome.aggregate == {outcome.main_metric: outcome.main_score}

    def test_an_instruction_changes_the_score(self, model: UnimodelForExp1) -> None:
        one, other = (evaluate(model, mteb_tasks.InventedSTS, prompts) for prompts in (PLAIN, INSTRUCTED))
        assert one.main_score != other.main_score


class TestRankingTasks:
    def test_retrieval_ranks_the_corpus_by_cosine(self, model: UnimodelForExp1) -> None:
        expected = cosines(model, RANKED)
        outcome = evaluate(model, mteb_tasks.InventedRetrieval)
        per_query = measured(RANKED, expected, "ndcg_cut.10")
        assert outcome.main_metric == "ndcg@10"
        assert outcome.scores.per_query["ndcg@10"] == pytest.approx(per_query)
        assert outcome.main_score == pytest.approx(np.mean([*per_query.values()]), abs=1e-5)
        for query, found in expected.items():
            assert outcome.run[query] == pytest.approx(found, abs=1e-5)
        assert outcome.queries == RANKED.queries
        assert outcome.qrels == RANKED.qrels

    def test_queries_get_the_tasks_own_instruction_and_documents_none(self, model: UnimodelForExp1) -> None:
        kind = mteb_tasks.InventedRetrieval
        outcome = evaluate(model, kind, INSTRUCTED)
        expected = cosines(model, RANKED, f"Instruct: {kind.instruction}\nQuery:")
        for query, found in expected.items():
            assert outcome.run[query] == pytest.approx(found, abs=1e-5)

    def test_reranking_ranks_the_candidates_alone(self, model: UnimodelForExp1) -> None:
        all_cosines = cosines(model, RANKED)
        expected = {query: {d: all_cosines[query][d] for d in found} for query, found in CANDIDATES.items()}
        outcome = evaluate(model, mteb_tasks.InventedReranking)
        for query, found in expected.items():
            assert outcome.run[query] == pytest.approx(found, abs=1e-5)
        per_query = measured(RANKED, expected, "map")
        assert outcome.main_metric == "map"
        assert outcome.scores.per_query["map"] == pytest.approx(per_query)
        assert outcome.main_score == pytest.approx(np.mean([*per_query.values()]), abs=1e-5)

    def test_splits_and_subsets_are_told_apart(self, model: UnimodelForExp1) -> None:
        outcome = evaluate(model, mteb_tasks.InventedParts)
        expected, texts, means = dict[str, float](), dict[str, str](), []
        for (split, subset), collection in PARTS.items():
            per_query = measured(collection, cosines(model, collection), "ndcg_cut.10")
            means.append(np.mean([*per_query.values()]))
            expected |= {f"{split}/{subset}/{query}": value for query, value in per_query.items()}
            texts |= {f"{split}/{subset}/{query}": collection.queries[query] for query in per_query}
        assert outcome.scores.per_query["ndcg@10"] == pytest.approx(expected)
        assert outcome.scores.aggregate["ndcg@10"] == pytest.approx(np.mean([*expected.values()]))
        assert outcome.main_score == pytest.approx(np.mean(means), abs=1e-5)  # MTEB's, over parts
        assert outcome.queries == texts
        assert outcome.run.keys() == outcome.qrels.keys() == expected.keys()


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
def test_the_same_task_twice_gives_the_same(model: UnimodelForExp1, kind: type[Any]) -> None:
    wrapped, task = MTEBEncoderWrapper(model), loaded(kind)
    one, two = evaluate_task(wrapped, task), evaluate_task(wrapped, task)
    assert one.main_score == two.main_score
    assert one.run == two.run
    assert one.mteb_json["scores"] == two.mteb_json["scores"]
    assert "task_specific_scores" not in vars(task)


class TestCrossEncoder:
    def test_it_agrees_with_our_own_reranker(self, model: UnimodelForExp1) -> None:
        theirs = evaluate_task(MTEBCrossEncoderWrapper(model), loaded(mteb_tasks.InventedReranking))
        ours = rerank_collection(PairModelReranker(model), RANKED, CANDIDATES, ordered=False)
        assert theirs.run.keys() == ours.run.keys()
        for query, gaps in ours.run.items():
            assert theirs.run[query] == pytest.approx(gaps, abs=1e-5, rel=1e-5)
        assert theirs.scores == ours.scores
        assert theirs.main_score == pytest.approx(ours.scores.aggregate["map"], abs=1e-5)
        assert theirs.items == ours.items == sum(map(len, CANDIDATES.values()))


class TestRefused:
    @pytest.mark.filterwarnings("ignore:An input array is constant")
    def test_scores_that_are_no_number(self, model: UnimodelForExp1, monkeypatch: pytest.MonkeyPatch) -> None:
        alike = np.full((1, 4), 0.5, dtype=np.float32)
        monkeypatch.setattr(model, "encode", lambda texts, **_: alike.repeat(len(texts), axis=0))
        with pytest.raises(DataError, match=r"^InventedSTS: cosine_spearman is not a number"):
            evaluate(model, mteb_tasks.InventedSTS)

    @pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
    def test_an_embedding_that_is_not_finite_is_named(self, kind: type[Any]) -> None:
        model = make_model()
        with torch.no_grad():
            model.model.model.norm.weight[0] = torch.nan
        with pytest.raises(DataError, match=rf"^{kind.__name__}, (text 1|query 'q0'): the score is not finite"):
            evaluate(model, kind)
