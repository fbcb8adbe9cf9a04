"""Rerankers of a user's own: a plain function in the evaluations from Python, and what is refused as no model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.experiments import tiny_experiment
from support.reranking import invented, write_invented
from support.tiny_models import tiny_base

from unimoe.config import Experiment, PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run
from unimoe.evaluation.embedding_eval import evaluate_mteb
from unimoe.evaluation.reranking import shards
from unimoe.evaluation.reranking.rerankers import FunctionReranker, PairModelReranker, as_reranker
from unimoe.evaluation.reranking.shards import Reranker, ShardStore
from unimoe.evaluation.reranking_eval import evaluate_beir, evaluate_reranking_suite, rerank_collection
from unimoe.models.embedder import Advance
from unimoe.models.unimodel import UnimodelForExp1

COLLECTION = invented(documents=12, queries=4, unjudged=1)
CANDIDATES: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}


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

    @pytest.mark.parametrize("wrap", [np.array, torch.tensor, tuple], ids=["array", "tensor", "tuple"])
    def test_scores_may_be_any_sequence_of_numbers_which_stay_apart(self, wrap: Callable[[list[float]], Any]) -> None:
        places = {document.full_text: place for place, document in enumerate(COLLECTION.corpus.values())}
        ranks = FunctionReranker(lambda pairs: wrap([1 + places[document] / 8 for _, document in pairs]))
        expected = {key: 1 + place / 8 for place, key in enumerate(COLLECTION.corpus)}
        assert rerank_collection(ranks, COLLECTION, CANDIDATES).run["q0"] == expected
        ranks = FunctionReranker(lambda pairs: [1 + 1e-12 * places[document] for _, document in pairs])
        assert len(set(rerank_collection(ranks, COLLECTION, CANDIDATES).run["q0"].values())) == len(COLLECTION.corpus)

    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda pairs: [math.nan] * len(pairs), "invented, query 'q0', document 'd00': the score is nan"),
            (lambda pairs: [0.0], "the reranker returned 1 scores for 12 pairs; return one for each"),
            (lambda pairs: None, r"the reranker returned scores of shape \(\); return a number for each pair"),
            (lambda pairs: ["a"] * len(pairs), "the reranker returned list; return a number for each pair"),
            (lambda pairs: [[0.0, 1.0]] * len(pairs), r"the reranker returned scores of shape \(12, 2\)"),
        ],
        ids=["nan", "too few", "nothing", "no numbers", "two each"],
    )
    def test_other_answers_are_refused(self, function: Callable[..., Any], words: str) -> None:
        with pytest.raises(DataError, match=words):
            rerank_collection(FunctionReranker(function), COLLECTION, CANDIDATES)


def test_shards_are_sized_by_the_device_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 1)
    unimodel = UnimodelForExp1(tiny_base(), PromptConfig(order="query_first"), 256)
    assert len(PairModelReranker(unimodel).cut(COLLECTION, CANDIDATES)) == len(CANDIDATES)
    monkeypatch.setattr(UnimodelForExp1, "device", torch.device("cuda"))
    assert len(PairModelReranker(unimodel).cut(COLLECTION, CANDIDATES)) == 1


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
        rerank_collection(CountingReranker(2 * per_query), COLLECTION, CANDIDATES, store=store)
    again = CountingReranker()
    found = rerank_collection(again, COLLECTION, CANDIDATES, store=store, advance=done.append)
    assert again.scored == 3 * per_query  # of five queries
    assert sum(done) == (2 if at_once == 1 else 5) * per_query  # the reranker itself reports none
    assert found.run == rerank_collection(FunctionReranker(shared_words), COLLECTION, CANDIDATES).run


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
