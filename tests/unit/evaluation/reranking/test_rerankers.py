"""Rerankers of a user's own: a plain function in the evaluations from Python, and what is refused as no model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from unimoe.data.collection import Collection
from unimoe.evaluation.embedding_eval import evaluate_mteb
from unimoe.evaluation.reranking import shards
from unimoe.evaluation.reranking.rerankers import FunctionReranker, PairModelReranker, as_reranker
from unimoe.evaluation.reranking.shards import ShardStore, cut_shards
from unimoe.evaluation.reranking_eval import evaluate_beir, evaluate_reranking_suite, rerank_collection
from unimoe.metrics import score_run
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
    def test_evaluate_beir_ranks_by_its_scores(self, config: Experiment, folder: Path) -> None:
        found = evaluate_beir(shared_words, None, config, f"path:{folder}")
        assert found.items == sum(map(len, found.run.values())) > 20
        for query, scores in found.run.items():
            texts = [(COLLECTION.queries[query], COLLECTION.corpus[document].full_text) for document in scores]
            assert list(scores.values()) == shared_words(texts)
        assert found.scores == score_run(COLLECTION.qrels, found.run)
        assert found.first_stage is not None
        assert found.delta.keys() == found.scores.aggregate.keys()
        assert found.token_budget is None

    def test_a_suite_takes_it_too(self, config: Experiment, folder: Path) -> None:
        found = evaluate_reranking_suite(shared_words, None, config, [f"path:{folder}"], max_queries=2)
        (outcome,) = found.datasets.values()
        assert len(outcome.run) == 2
        assert found.averages == {"ndcg@10": outcome.aggregate["ndcg@10"]}

    @pytest.mark.parametrize("wrap", [np.array, torch.tensor, tuple], ids=["array", "tensor", "tuple"])
    def test_scores_may_be_any_sequence_of_numbers(self, wrap: Callable[[list[float]], Any]) -> None:
        ranks = FunctionReranker(lambda pairs: wrap([float(len(document)) for _, document in pairs]))
        expected = {key: float(len(document.full_text)) for key, document in COLLECTION.corpus.items()}
        assert rerank_collection(ranks, COLLECTION, CANDIDATES).run["q0"] == expected

    def test_scores_that_float32_would_tie_stay_apart(self) -> None:
        places = {document.full_text: place for place, document in enumerate(COLLECTION.corpus.values())}
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


class CountingReranker:
    """A user's class: one shard a query, and the pairs scored so far; an interrupt after so many."""

    token_budget, cut_by = None, None

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.scored, self._limit = 0, interrupt_after

    def cut(self, collection: Collection, candidates: Any) -> list[list[tuple[str, str]]]:
        return cut_shards(collection, candidates, "query_first", characters=1)

    def prepare(self, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        return pairs

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        return []

    def score(self, prepared: Sequence[tuple[str, str]], advance: Advance | None = None) -> list[float]:
        if self._limit is not None and self.scored >= self._limit:
            raise KeyboardInterrupt
        self.scored += len(prepared)
        return shared_words(list(prepared))


def test_any_reranker_is_resumed_at_the_shard_it_was_killed_at(tmp_path: Path) -> None:
    store, per_query = ShardStore(tmp_path, "one"), len(COLLECTION.corpus)
    with pytest.raises(KeyboardInterrupt):
        rerank_collection(CountingReranker(2 * per_query), COLLECTION, CANDIDATES, store=store)
    again = CountingReranker()
    found = rerank_collection(again, COLLECTION, CANDIDATES, store=store)
    assert again.scored == 3 * per_query  # of five queries
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

    def test_a_reranker_stays_as_it_is(self, config: Experiment) -> None:
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
        with pytest.raises(UsageError, match=line):
            evaluate_reranking_suite(model, None, config, [f"path:{folder}"])

    def test_a_function_does_not_embed(self, config: Experiment) -> None:
        with pytest.raises(UsageError, match=r"^a function is no model; give a causal language model"):
            evaluate_mteb(shared_words, None, config, ["STS12"])
