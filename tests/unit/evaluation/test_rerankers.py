"""Rerankers of a user's own, what is refused as no model, and shards found again to the last bit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment
from support.reranking import invented, write_invented
from support.tiny_models import tiny_base

from unimoe.config import Experiment, PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import write_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.embedding_eval import evaluate_mteb
from unimoe.evaluation.reranking import shards
from unimoe.evaluation.reranking.rerankers import FunctionReranker, PairModelReranker, as_reranker
from unimoe.evaluation.reranking.shards import Pair, Reranker, ShardScores, ShardStore, cut_pairs, read_shard
from unimoe.evaluation.reranking_eval import evaluate_beir, evaluate_reranking_suite, rerank_collection
from unimoe.models.embedder import Advance
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")


COLLECTION = invented(documents=12, queries=4, unjudged=1)
EVERY: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}


def shared_words(pairs: list[tuple[str, str]]) -> list[float]:
    """A user's own reranker: how often the words of the query are in the document."""
    return [sum(document.split().count(word) / 7 for word in query.split()) for query, document in pairs]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("rerankers"))


@pytest.fixture
def folder(tmp_path: Path, tmp_cache: Path) -> Path:
    return write_invented(tmp_path / "toy", COLLECTION)


class TestFunction:
    def test_evaluate_beir_and_a_suite_rank_by_its_scores(self, config: Experiment, folder: Path) -> None:
        found = evaluate_beir(shared_words, None, config, f"path:{folder}")
        assert found.items == sum(map(len, found.run.values())) > 20
        for query, scores in found.run.items():
            texts = [(COLLECTION.queries[query], COLLECTION.corpus[document].full_text) for document in scores]
            assert list(scores.values()) == shared_words(texts)
        suite = evaluate_reranking_suite(shared_words, None, config, [f"path:{folder}"], max_queries=2)
        (outcome,) = suite.datasets.values()
        assert len(outcome.run) == 2
        assert suite.averages == {"ndcg@10": outcome.aggregate["ndcg@10"]}


def test_shards_are_sized_by_the_device_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 1)
    unimodel = UnimodelForExp1(tiny_base(), PromptConfig(order="query_first"), 256)
    assert len(PairModelReranker(unimodel).cut(COLLECTION, EVERY)) == len(EVERY)
    monkeypatch.setattr(UnimodelForExp1, "device", torch.device("cuda"))
    assert len(PairModelReranker(unimodel).cut(COLLECTION, EVERY)) == 1


class CountingReranker(Reranker):
    """A user's class: one shard a query, and the pairs scored so far; an interrupt after so many."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.scored, self._limit = 0, interrupt_after

    def score(self, prepared: Sequence[tuple[str, str]], advance: Advance | None = None) -> list[float]:
        if self._limit is not None and self.scored >= self._limit:
            raise KeyboardInterrupt
        self.scored += len(prepared)
        return shared_words(list(prepared))


@pytest.mark.parametrize("at_once", [1, 2])
def test_any_reranker_is_resumed_at_the_shard_it_was_killed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(CountingReranker, "at_once", at_once)
    store, per_query, done = ShardStore(tmp_path, "one"), len(COLLECTION.corpus), list[int]()
    with pytest.raises(KeyboardInterrupt):
        rerank_collection(CountingReranker(2 * per_query), COLLECTION, EVERY, store=store)
    again = CountingReranker()
    found = rerank_collection(again, COLLECTION, EVERY, store=store, advance=done.append)
    assert again.scored == 3 * per_query  # of five queries
    assert sum(done) == (2 if at_once == 1 else 5) * per_query  # the reranker itself reports none
    assert found.run == rerank_collection(FunctionReranker(shared_words), COLLECTION, EVERY).run


class TestWhatIsGiven:
    def test_an_object_with_score_alone_gets_the_pairs_of_one_query_at_a_time(
        self, config: Experiment, folder: Path
    ) -> None:
        class Overlap:
            def score(self, pairs: list[tuple[str, str]]) -> list[float]:
                assert len({query for query, _ in pairs}) == 1
                return shared_words(pairs)

        found = evaluate_beir(Overlap(), None, config, f"path:{folder}")
        assert found.run == evaluate_beir(shared_words, None, config, f"path:{folder}").run
        own = CountingReranker()
        assert as_reranker(own, None, config) is own

    @pytest.mark.parametrize(
        ("model", "what"),
        [(7, "an int"), ("scifact", "a str"), (None, "a NoneType"), (CountingReranker, "the class CountingReranker")],
    )
    def test_anything_else_is_refused(self, config: Experiment, folder: Path, model: Any, what: str) -> None:
        line = f"^{what} is no model; give a causal language model, or, to rerank, a function from"
        with pytest.raises(UsageError, match=line):
            evaluate_beir(model, None, config, f"path:{folder}")
        with pytest.raises(UsageError, match=r"^a function is no model; give a causal language model"):
            evaluate_mteb(shared_words, None, config, ["STS12"])  # a function does not embed


ORDERS = ("query_first", "document_first")
SMALL = 400  # characters of a shard, several of them for this collection

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
