"""Collections evaluated through MTEB give the numbers that plain arithmetic gives, without network or stale scores."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import pytrec_eval
import torch
from support.tiny_models import tiny_base

from unimoe.config import PromptConfig
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.embedding_eval import evaluate_embedding_collection
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.spec import Outcome
from unimoe.models.unimodel import UnimodelForExp1

TOPICS = ("cats", "sorting", "rain", "old houses", "pivots")


def make_model(seed: int = 0) -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(seed=seed), PromptConfig(), 256, first_layer=2)


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


@pytest.fixture(scope="module")
def collection() -> Collection:
    """20 documents, some without title; 8 judged queries, one of them with zero grades only; one more unjudged."""
    documents = [
        (f"d{n}", Document("" if n % 3 == 0 else f"Title {n}", f"  On {TOPICS[n % 5]}, part {n}.")) for n in range(20)
    ]
    queries = [(f"q{n}", f"What of {TOPICS[n % 5]} {n}?") for n in range(9)]
    qrels = {f"q{n}": {f"d{n}": 2, f"d{n + 5}": 1, f"d{n + 1}": 0} for n in range(7)} | {"q7": {"d7": 0}}
    return assemble("topics", "dev", documents, queries, qrels)


def evaluate(model: UnimodelForExp1, collection: Collection, **settings: Any) -> Outcome:
    return evaluate_embedding_collection(MTEBEncoderWrapper(model, identity={}, **settings), collection)


@pytest.fixture(scope="module")
def outcome(model: UnimodelForExp1, collection: Collection) -> Outcome:
    return evaluate(model, collection)


def brute_force(collection: Collection) -> dict[str, dict[str, float]]:
    """Cosines of the judged queries with all documents: each text alone through the bare transformers model."""
    base, prompt = tiny_base(), PromptConfig()

    @torch.no_grad()
    def embed(text: str) -> torch.Tensor:
        ids = base.tokenizer(text + prompt.embedding_suffix, add_special_tokens=False, return_tensors="pt")["input_ids"]
        state = base.model.model(input_ids=ids).last_hidden_state[0, -1].double()
        return torch.nn.functional.normalize(state, dim=0)

    vectors = {key: embed(prompt.document_prefix + document.full_text) for key, document in collection.corpus.items()}
    run: dict[str, dict[str, float]] = {}
    for query in collection.qrels:
        asked = embed(prompt.query_prefix + collection.queries[query])
        run[query] = {key: float(asked @ vector) for key, vector in vectors.items()}
    return run


class TestScores:
    def test_run_and_scores_equal_brute_force(self, collection: Collection, outcome: Outcome) -> None:
        expected = brute_force(collection)
        assert outcome.run.keys() == expected.keys() == collection.qrels.keys()
        assert (outcome.scores.per_query["ndcg@10"]["q7"], outcome.scores.unjudged_queries) == (0, ["q8"])
        for query, cosines in expected.items():
            assert outcome.run[query] == pytest.approx(cosines, abs=1e-5)
        measures = {"ndcg_cut.10", "map", "recall.100"}
        evaluated = pytrec_eval.RelevanceEvaluator(collection.qrels, measures).evaluate(expected)
        for ours, theirs in (("ndcg@10", "ndcg_cut_10"), ("map", "map"), ("recall@100", "recall_100")):
            per_query = {query: values[theirs] for query, values in evaluated.items()}
            assert outcome.scores.per_query[ours] == pytest.approx(per_query, abs=1e-6)
            assert outcome.scores.aggregate[ours] == pytest.approx(sum(per_query.values()) / 8, abs=1e-6)


def test_it_says_what_was_encoded_and_for_how_long(
    model: UnimodelForExp1, collection: Collection, outcome: Outcome
) -> None:
    done: list[int] = []
    again = evaluate(model, collection, batch_size=6, advance=done.append)
    assert outcome.mteb_json["task_name"] == "topics"
    assert sum(done) == again.items == outcome.items == 20 + 8
    assert outcome.seconds > 0


class TestSideEffects:
    def test_the_random_generators_of_a_training_are_left_alone(
        self, model: UnimodelForExp1, collection: Collection
    ) -> None:
        def draws() -> tuple[float, float, float]:
            return float(torch.rand(1)), random.random(), float(np.random.random())

        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(11)
        expected = draws()
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(11)
        evaluate(model, collection)
        assert draws() == expected

    def test_nothing_is_printed_and_nothing_logged(
        self,
        model: UnimodelForExp1,
        collection: Collection,
        capfd: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
        recwarn: pytest.WarningsRecorder,
    ) -> None:
        with caplog.at_level(logging.INFO):
            evaluate(model, collection)
        assert capfd.readouterr() == ("", "")
        assert caplog.messages == []
        # Files that earlier tests left open may be closed at any moment.
        assert [str(one.message) for one in recwarn if not issubclass(one.category, ResourceWarning)] == []
