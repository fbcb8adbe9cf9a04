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
from unimoe.studies.heads.config import PoolConfig
from unimoe.studies.heads.data import HeadData
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


def candidates(depth: int = 3, *, inject: bool, relevant: str = "", queries: Embedded = QUERIES) -> dict[str, set[str]]:
    """Return the pools by the encoder; with ``relevant``, those of the query q with other judgments."""
    judged = {"q": dict.fromkeys(relevant, 1)} if relevant else COLLECTION.qrels
    collection = Collection("tiny", "t", COLLECTION.corpus, COLLECTION.queries, judged)
    run = candidates_of(collection, PoolConfig(source="dense", depth=depth), queries, DOCUMENTS, inject=inject)
    return {query: set(found) for query, found in run.items()}


def data(folder: Path, depth: int = 6, seed: int = 0) -> HeadData:
    pools = {"source": "dense", "depth": depth}
    config = toy_config(topics_folder(folder / "c"), folder / "out", pools=pools)
    return toy_data(config, WordEmbedder(seed=seed))


def test_training_pools_alone_get_positives_that_were_not_found_in_place_of_the_last_negatives() -> None:
    assert candidates(inject=False) == {"q": {*"abc"}, "r": {*"bcd"}, "s": {*"abc"}}
    assert candidates(inject=True) == {"q": {*"abe"}, "r": {*"acd"}, "s": {*"abc"}}


def test_positives_that_were_not_found_fill_half_of_a_training_pool_at_most() -> None:
    assert candidates(2, inject=True, relevant="acde")["q"] == {*"ab"}  # half of it is positive already
    far = vectors({"q": [-1, 0]})
    assert len(candidates(inject=True, relevant="acde", queries=far)["q"] & {*"acde"}) == 3
    assert candidates(inject=True, relevant="de")["q"] == {*"ade"}
    one = candidates(2, inject=True, relevant="de")["q"]
    assert len(one) == 2
    assert "a" in one


def test_bm25_without_a_match_leaves_an_empty_pool() -> None:
    pools = PoolConfig(source="bm25", depth=3, bm25=BM25Config())
    assert candidates_of(COLLECTION, pools, QUERIES, DOCUMENTS, inject=False) == {"q": {}, "r": {}, "s": {}}


def test_places_grades_ranks_and_ideal() -> None:
    run = candidates_of(COLLECTION, PoolConfig(source="dense", depth=3), QUERIES, DOCUMENTS, inject=True)
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


def test_queries_without_a_positive_are_listed_and_count_zero_but_train_nothing() -> None:
    run = candidates_of(COLLECTION, PoolConfig(source="dense", depth=3), QUERIES, DOCUMENTS, inject=False)
    test = pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)
    assert (test.without_positive, test.query_ids) == (["r"], ["q", "r", "s"])
    scores = score_run(test.qrels, test.run(torch.tensor([[3.0, 2, 1]] * 3)), ["ndcg@10"])
    assert scores.per_query["ndcg@10"]["r"] == 0.0
    assert scores.aggregate["ndcg@10"] == pytest.approx(sum(scores.per_query["ndcg@10"].values()) / 3)
    train = pool_set("train", COLLECTION, run, QUERIES, DOCUMENTS, training=True)
    assert (train.without_positive, train.query_ids) == (["r"], ["q", "s"])


@pytest.mark.parametrize("name", ["train", "dev"])
def test_nothing_to_learn_or_to_choose_by_is_refused(name: str) -> None:
    run = {"q": {"b": 1.0}, "r": {"b": 1.0}, "s": {"a": 1.0}}
    words = rf"tiny, {name}: no query has a relevant document in its pool; raise pools"
    with pytest.raises(DataError, match=words):
        pool_set(name, COLLECTION, run, QUERIES, DOCUMENTS, training=name == "train")
    assert len(pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)) == 3


def test_pools_of_different_sizes_are_padded() -> None:
    run = {"q": {"a": 1.0}, "r": {"a": 1.0, "b": 0.5}, "s": {}}
    pools = pool_set("test", COLLECTION, run, QUERIES, DOCUMENTS, training=False)
    assert pools.valid.tolist() == [[True, False], [True, True], [False, False]]
    assert pools.run(torch.zeros(3, 2)) == {"q": {"a": 0.0}, "r": {"b": 0.0, "a": 0.0}, "s": {}}


def test_of_two_equal_scores_the_place_in_the_pool_decides_as_trec_eval_does(tmp_path: Path) -> None:
    """All scores equal: the measure must be that of the pool's own order."""
    pools = data(tmp_path).test
    tied = score_run(pools.qrels, pools.run(torch.zeros(pools.grades.shape)), ["ndcg@10"])
    falling = -torch.arange(pools.grades.shape[1], dtype=torch.float32).expand(pools.grades.shape)
    in_order = score_run(pools.qrels, pools.run(falling), ["ndcg@10"])
    assert tied.per_query == in_order.per_query
    assert tied.aggregate["ndcg@10"] > 0


def test_what_no_head_can_reach_is_said_and_another_encoder_is_other_data(tmp_path: Path) -> None:
    found = data(tmp_path / "a", depth=3)
    assert all(bool((pool > 0).any()) for pool in found.train.grades)
    assert found.test.without_positive
    assert {query: set(ids) for query, ids in found.candidates.items()} == {
        query: set(ids) for query, ids in zip(found.test.query_ids, found.test.document_ids, strict=True)
    }
    (note,) = (note for note in found.notes if note.startswith("test:"))
    assert f"{len(found.test.without_positive)} queries without a relevant document" in note
    assert "count 0 whatever the head" in note
    assert found.content_hash == data(tmp_path / "b", depth=3).content_hash
    assert found.content_hash != data(tmp_path / "c", depth=3, seed=1).content_hash
