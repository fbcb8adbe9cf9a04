"""Shards: whole prefix groups, found again to the last bit, and never by another measurement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.reranking import invented
from support.tiny_models import tiny_base

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError
from unimoe.core.io import write_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.reranking.rerankers import FunctionReranker, PairModelReranker
from unimoe.evaluation.reranking.shards import Pair, ShardScores, ShardStore, cut_pairs, read_shard
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

ORDERS = ("query_first", "document_first")
SMALL = 400  # characters of a shard, several of them for this collection

COLLECTION = invented(documents=12, queries=4, unjudged=1)
CANDIDATES: Run = {
    query_id: {document_id: float(rank) for rank, document_id in enumerate(list(COLLECTION.corpus)[place:], start=1)}
    for place, query_id in enumerate(COLLECTION.queries)
}
PAIRS = [(query_id, document_id) for query_id, found in CANDIDATES.items() for document_id in found]


def tiny_unimodel(order: str = "document_first") -> UnimodelForExp1:
    prompt = PromptConfig.model_validate({"template": "chat", "order": order, "instruction": "Judge it."})
    return UnimodelForExp1(tiny_base(layers=2), prompt, 128).eval()


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return tiny_unimodel()


@pytest.fixture
def scored(model: UnimodelForExp1, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the shards that the model was asked to score."""
    sizes: list[int] = []
    rerank_ids = model.rerank_ids

    def counted(sequences: list[list[int]], **options: Any) -> Any:
        sizes.append(len(sequences))
        return rerank_ids(sequences, **options)

    monkeypatch.setattr(model, "rerank_ids", counted)
    return sizes


def cut(candidates: Run = CANDIDATES, order: str = "document_first", size: int = SMALL) -> list[list[Pair]]:
    return cut_pairs(COLLECTION, candidates, (order, size))


def score(model: UnimodelForExp1, shards: list[list[Pair]], collection: Collection = COLLECTION, **work: Any) -> Any:
    return PairModelReranker(model).score_shards(collection, shards, **work)


class TestCut:
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("characters", [1, SMALL, 10**9])
    def test_every_pair_once_and_groups_whole(self, order: str, characters: int) -> None:
        shards = cut(order=order, size=characters)
        assert sorted(pair for shard in shards for pair in shard) == sorted(PAIRS)
        groups = [{pair[ORDERS.index(order)] for pair in shard} for shard in shards]
        assert sum(map(len, groups)) == len(set[str]().union(*groups))
        assert len(shards) == {1: len(set[str]().union(*groups)), 10**9: 1}.get(characters, len(shards))

    def test_the_group_that_brings_the_text_to_its_size_ends_a_shard(self) -> None:
        assert len(cut(order="query_first")) == len(CANDIDATES)  # each query's documents alone are longer
        shards = cut()
        assert 3 < len(shards) < len(COLLECTION.corpus)
        for shard in shards[:-1]:
            texts = {COLLECTION.corpus[document].full_text for _, document in shard[:-1]}
            assert sum(map(len, texts)) < 1.5 * SMALL

    def test_a_cross_encoder_cuts_by_falling_length_and_a_function_by_query(self) -> None:
        by_length = cut(order="length", size=7)
        assert [len(shard) for shard in by_length[:-1]] == [7] * (len(by_length) - 1)
        pairs = [pair for shard in by_length for pair in shard]
        lengths = [len(COLLECTION.queries[q]) + len(COLLECTION.corpus[d].full_text) for q, d in pairs]
        assert lengths == sorted(lengths, reverse=True)
        assert sorted(pairs) == sorted(PAIRS)
        by_query = FunctionReranker(lambda _: []).cut(COLLECTION, CANDIDATES)
        assert [{query for query, _ in shard} for shard in by_query] == [{query} for query in CANDIDATES]


class TestStore:
    pairs: tuple[Pair, ...] = (("q0", "d1"), ("q0", "d2"), ("q1", "d1"))
    sequences = ([1, 2], [1, 3], [4])

    def test_scores_come_back_to_the_last_bit_unless_the_file_is_damaged(self, tmp_path: Path) -> None:
        scores = ShardScores(scores=[0.1 + 0.2, -1e-45, 3.4028234663852886e38], seconds=0.1 + 0.7)
        file = ShardStore(tmp_path, "one").file(self.pairs, self.sequences)
        write_json(file, scores.model_dump())
        assert read_shard(file) == scores
        for text in ("", "{", '{"scores": null, "seconds": 1}'):
            file.write_text(text, encoding="utf-8")
            assert read_shard(file) is None

    def test_only_what_they_were_computed_from_finds_them(self, tmp_path: Path) -> None:
        store, pairs, sequences = ShardStore(tmp_path, "one"), self.pairs, self.sequences
        files = {
            store.file(pairs, sequences),
            ShardStore(tmp_path, "another").file(pairs, sequences),
            store.file(pairs, ([1, 2], [1, 3], [5])),
            store.file((*pairs[:2], ("q2", "d1")), sequences),
            store.file((pairs[0], ("q0", "d3"), pairs[2]), sequences),
            store.file(pairs[:2], sequences[:2]),
            store.file((("q0", "d1 7"), *pairs[1:]), sequences),
        }
        assert len(files) == 7


class TestScore:
    @pytest.mark.parametrize("order", ORDERS)
    def test_margins_are_those_of_the_pairs_in_the_order_of_the_shards(self, order: str) -> None:
        model, shards = tiny_unimodel(order), cut(order=order)
        texts = [(COLLECTION.queries[q], COLLECTION.corpus[d].full_text) for shard in shards for q, d in shard]
        found = score(model, shards)
        np.testing.assert_allclose(found.scores, model.rerank(texts, output="margin"), atol=1e-4)
        assert found.seconds > 0
        assert score(model, []).scores == []

    def test_an_interrupted_run_goes_on_where_it_was_and_ends_the_same(
        self, model: UnimodelForExp1, scored: list[int], tmp_path: Path
    ) -> None:
        shards = cut()
        undisturbed = score(model, shards)
        store, done = ShardStore(tmp_path, "one"), list[int]()

        def interrupted(pairs: int) -> None:
            done.append(pairs)
            if len(scored) == len(shards) + 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            score(model, shards, store=store, advance=interrupted)
        scored.clear()
        done.clear()
        resumed = score(model, shards, store=store, advance=done.append)
        assert scored == [len(shard) for shard in shards[2:]]  # the third was under way
        assert resumed.scores == undisturbed.scores
        assert sum(done) == len(PAIRS)
        assert score(model, shards, store=store) == resumed


class TestErrors:
    @pytest.fixture(params=ORDERS)
    def model(self, request: pytest.FixtureRequest) -> UnimodelForExp1:
        return tiny_unimodel(request.param)

    def test_a_score_that_is_not_finite_names_the_pair(self, model: UnimodelForExp1) -> None:
        token = model.tokenizer.convert_tokens_to_ids("<|endoftext|>")
        model.model.model.embed_tokens.weight[token] = torch.nan
        corpus = {**COLLECTION.corpus, "d05": Document("", "a <|endoftext|> b")}
        spoilt = Collection("spoilt", "test", corpus, COLLECTION.queries, COLLECTION.qrels)
        shards = cut_pairs(spoilt, CANDIDATES, (model.pair_ids.order, 10**9))
        with pytest.raises(DataError, match=r"query 'q\d', document 'd05': the score is not finite"):
            score(model, shards, spoilt)

    def test_a_query_that_leaves_no_room_is_named_in_the_outcome(self, model: UnimodelForExp1) -> None:
        queries = {**COLLECTION.queries, "q2": "word " * 200}
        wordy = Collection("wordy", "test", COLLECTION.corpus, queries, COLLECTION.qrels)
        outcome = rerank_collection(PairModelReranker(model), wordy, CANDIDATES)
        plain = rerank_collection(PairModelReranker(model), COLLECTION, CANDIDATES)
        assert (outcome.truncated_queries, plain.truncated_queries) == (["q2"], [])
        note, ties = outcome.notes
        assert "wordy" in ties
        assert re.search(r"^wordy: queries that fill the whole prompt, .* 1 \(q2\); raise model.max_length", note)
        assert plain.notes == []
        assert len(set(outcome.run["q2"].values())) == 1  # each prompt has the same tokens
        for query in queries.keys() - {"q2"}:
            assert outcome.run[query] == pytest.approx(plain.run[query], abs=1e-5)
