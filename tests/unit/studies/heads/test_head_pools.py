"""Pools: positives injected in training alone, ties as in trec_eval, lost queries counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.heads import WordEmbedder, topics_folder, toy_config, toy_data

from unimoe.config import BM25Config
from unimoe.core.errors import DataError
from unimoe.data.collection import Collection, Document
from unimoe.metrics import score_run
from unimoe.retrieval.embeddings import Embedded
from unimoe.studies.heads.config import PoolConfig, TrainConfig
from unimoe.studies.heads.data import HeadData, to_device
from unimoe.studies.heads.pools import candidates_of, pool_set

pytestmark = pytest.mark.usefixtures("tmp_cache")


def vectors(rows: dict[str, list[float]]) -> Embedded:
    ids = sorted(rows)
    return Embedded(ids, np.array([rows[key] for key in ids], dtype=np.float32))


DOCUMENTS = vectors({"a": [1, 0], "b": [0.9, 0.1], "c": [0.5, 0.5], "d": [0.1, 0.9], "e": [-1, 0]})
QUERIES = vectors({"q": [1, 0], "r": [0, 1], "s": [1, 0]})
COLLECTION = Collection(
    "tiny",
    "test",
    {key: Document("", key) for key in DOCUMENTS.ids},
    {"q": "q", "r": "r", "s": "s"},
    {"q": {"a": 1, "e": 2, "gone": 1}, "r": {"a": 1, "c": 0}, "s": {"b": 1, "d": -1}},
)
DEPTH_3 = PoolConfig(source="dense", depth=3)


@pytest.fixture
def data(tmp_path: Path) -> HeadData:
    return toy_data(config(tmp_path))


def config(tmp_path: Path, depth: int = 6) -> TrainConfig:
    pools = {"source": "dense", "depth": depth}
    return toy_config(topics_folder(tmp_path / "c"), tmp_path / "out", pools=pools)


class TestCandidates:
    def test_dev_and_test_pools_are_what_the_source_gives(self) -> None:
        run = candidates_of(COLLECTION, DEPTH_3, QUERIES, DOCUMENTS, inject=False)
        assert {query: set(found) for query, found in run.items()} == {
            "q": {"a", "b", "c"}, "r": {"b", "c", "d"}, "s": {"a", "b", "c"},
        }  # fmt: skip

    def test_training_pools_get_positives_that_were_not_found_in_place_of_the_last_negatives(self) -> None:
        run = candidates_of(COLLECTION, DEPTH_3, QUERIES, DOCUMENTS, inject=True)
        assert {query: set(found) for query, found in run.items()} == {
            "q": {"a", "b", "e"}, "r": {"a", "c", "d"}, "s": {"a", "b", "c"},
        }  # fmt: skip

    def test_positives_that_were_not_found_fill_half_of_a_training_pool_at_most(self) -> None:
        many = Collection("tiny", "t", COLLECTION.corpus, {"q": "q"}, {"q": dict.fromkeys("acde", 1)})
        pools = PoolConfig(source="dense", depth=2)
        run = candidates_of(many, pools, QUERIES, DOCUMENTS, inject=True)
        assert set(run["q"]) == {"a", "b"}  # half of it is positive already
        far = vectors({"q": [-1, 0]})
        assert len(candidates_of(many, DEPTH_3, far, DOCUMENTS, inject=True)["q"].keys() & set("acde")) == 3
        few = Collection("tiny", "t", COLLECTION.corpus, {"q": "q"}, {"q": {"d": 1, "e": 1}})
        mixed = candidates_of(few, DEPTH_3, QUERIES, DOCUMENTS, inject=True)["q"]
        assert set(mixed) == {"a", "d", "e"}
        one = candidates_of(few, pools, QUERIES, DOCUMENTS, inject=True)["q"]
        assert len(one) == 2
        assert "a" in one

    def test_bm25_without_a_match_leaves_an_empty_pool(self) -> None:
        pools = PoolConfig(source="bm25", depth=3, bm25=BM25Config())
        run = candidates_of(COLLECTION, pools, QUERIES, DOCUMENTS, inject=False)
        assert run == {"q": {}, "r": {}, "s": {}}


class TestPoolSet:
    def test_places_grades_ranks_and_ideal(self) -> None:
        run = candidates_of(COLLECTION, DEPTH_3, QUERIES, DOCUMENTS, inject=True)
        pools = pool_set("train", COLLECTION, run, QUERIES, DOCUMENTS, training=True)
        assert pools.query_ids == ["q", "r", "s"]
        assert pools.document_ids == [["e", "b", "a"], ["d", "c", "a"], ["c", "b", "a"]]
        assert pools.grades.tolist() == [[2, 0, 1], [0, 0, 1], [0, 1, 0]]
        assert pools.ranks.tolist() == [[3, 2, 1], [1, 2, 3], [3, 2, 1]]
        assert [judged.tolist() for judged in pools.judged] == [[1, 2, 1], [1], [1]]  # also what is not in the corpus
        batch = pools.batch([2, 0])
        assert batch.places == [2, 0]
        assert torch.equal(batch.documents[1, 0], torch.tensor([-1.0, 0.0]))
        assert torch.equal(batch.queries, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))

    def test_queries_without_a_positive_are_listed_and_count_zero_but_train_nothing(self) -> None:
        run = candidates_of(COLLECTION, DEPTH_3, QUERIES, DOCUMENTS, inject=False)
        test = pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)
        assert test.without_positive == ["r"]
        assert test.query_ids == ["q", "r", "s"]
        scores = score_run(test.qrels, test.run(torch.tensor([[3.0, 2, 1]] * 3)), ["ndcg@10"])
        assert scores.per_query["ndcg@10"]["r"] == 0.0
        assert scores.aggregate["ndcg@10"] == pytest.approx(sum(scores.per_query["ndcg@10"].values()) / 3)
        train = pool_set("train", COLLECTION, run, QUERIES, DOCUMENTS, training=True)
        assert train.query_ids == ["q", "s"]
        assert train.without_positive == ["r"]

    @pytest.mark.parametrize("name", ["train", "dev"])
    def test_nothing_to_learn_or_to_choose_by(self, name: str) -> None:
        run = {"q": {"b": 1.0}, "r": {"b": 1.0}, "s": {"a": 1.0}}
        words = rf"tiny, {name}: no query has a relevant document in its pool; raise pools"
        with pytest.raises(DataError, match=words):
            pool_set(name, COLLECTION, run, QUERIES, DOCUMENTS, training=name == "train")
        assert len(pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)) == 3

    def test_pools_of_different_sizes_are_padded(self) -> None:
        run = {"q": {"a": 1.0}, "r": {"a": 1.0, "b": 0.5}, "s": {}}
        pools = pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)
        assert pools.valid.tolist() == [[True, False], [True, True], [False, False]]
        assert pools.run(torch.zeros(3, 2)) == {"q": {"a": 0.0}, "r": {"b": 0.0, "a": 0.0}, "s": {}}

    def test_one_query_is_a_set_too(self) -> None:
        one = Collection("tiny", "t", COLLECTION.corpus, {"q": "q"}, {"q": {"a": 1}})
        pools = pool_set("test", one, {"q": {"a": 1.0, "b": 0.0}}, QUERIES, DOCUMENTS, training=False)
        assert len(pools) == 1
        assert pools.batch([0]).grades.tolist() == [[0.0, 1.0]]


def test_of_two_equal_scores_the_place_in_the_pool_decides_as_trec_eval_does(data: HeadData) -> None:
    """All scores equal: the measure must be that of the pool's own order."""
    pools = data.test
    tied = score_run(pools.qrels, pools.run(torch.zeros(pools.grades.shape)), ["ndcg@10"])
    falling = -torch.arange(pools.grades.shape[1], dtype=torch.float32).expand(pools.grades.shape)
    in_order = score_run(pools.qrels, pools.run(falling), ["ndcg@10"])
    assert tied.per_query == in_order.per_query
    assert tied.aggregate["ndcg@10"] > 0


class TestHeadData:
    def test_positives_are_injected_into_training_pools_alone(self, data: HeadData) -> None:
        assert all(bool((pool > 0).sum() == 3) for pool in data.train.grades)
        assert data.train.without_positive == []
        for pools, run in ((data.dev, data.splits.dev), (data.test, data.splits.test)):
            assert set(pools.query_ids) == set(run.qrels)
            assert all(len(ids) == 6 for ids in pools.document_ids)
        assert {query: set(found) for query, found in data.candidates.items()} == {
            query: set(ids) for query, ids in zip(data.test.query_ids, data.test.document_ids, strict=True)
        }

    def test_what_no_head_can_reach_is_said(self, tmp_path: Path) -> None:
        found = toy_data(config(tmp_path, depth=3))
        assert found.test.without_positive
        notes = [note for note in found.notes if note.startswith("test:")]
        assert f"{len(found.test.without_positive)} queries without a relevant document" in notes[0]
        assert "count 0 whatever the head" in notes[0]

    def test_another_encoder_is_other_data(self, tmp_path: Path) -> None:
        same, other = toy_data(config(tmp_path)), toy_data(config(tmp_path / "x"), WordEmbedder(seed=1))
        assert same.content_hash == toy_data(config(tmp_path / "y")).content_hash != other.content_hash

    def test_moving_to_a_device_keeps_everything(self, data: HeadData) -> None:
        moved = to_device(data.test, torch.device("cpu"))
        assert torch.equal(moved.ranks, data.test.ranks)
        assert moved.query_ids == data.test.query_ids
