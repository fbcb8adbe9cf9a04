"""Scores and vectors of a server: those of the same model in this process, whatever the API."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import mteb_tasks
from support.model_server import ModelServer, serve, sigmoid
from support.mteb_runs import Suite
from support.mteb_tasks import RANKED
from support.served import (
    CANDIDATES,
    COLLECTION,
    EMBEDDING,
    PAIRS,
    RERANKING,
    embedder,
    reranker,
    served_experiment,
    settings,
)

from unimoe.core.errors import UsageError
from unimoe.core.trec import read_run
from unimoe.evaluation.reranking.rerankers import PairModelReranker
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.systems.named import Naming, stated_system
from unimoe.models.served.api import BOTTOM, TOP, margin, vllm_prompts
from unimoe.results import Task


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.fixture(autouse=True)
def forget(server: ModelServer) -> None:
    server.asked.clear()
    server.received.clear()


@pytest.mark.parametrize("api", RERANKING)
def test_a_run_has_the_scores_of_the_model_in_this_process(api: str, server: ModelServer, tmp_path: Path) -> None:
    local = rerank_collection(PairModelReranker(server.model), COLLECTION, CANDIDATES)
    found = rerank_collection(reranker(server, tmp_path, api), COLLECTION, CANDIDATES)
    for query, scores in local.run.items():
        expected = {document: sigmoid(s) if api == "cohere" else s for document, s in scores.items()}
        assert found.run[query] == pytest.approx(expected, abs=2e-5)
    assert found.scores.aggregate == local.scores.aggregate
    assert found.items == PAIRS


@pytest.mark.parametrize("api", EMBEDDING)
def test_vectors_are_those_of_the_model_in_this_process(api: str, server: ModelServer, tmp_path: Path) -> None:
    texts = [document.full_text for document in COLLECTION.corpus.values()]
    done: list[int] = []
    model = embedder(server, tmp_path, api)
    found = model.encode(texts, advance=done.append)
    np.testing.assert_allclose(found, server.model.encode(texts), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert sorted(done) == [2, 5, 5]
    assert len(server.asked) == 3
    assert model.usage["requests"] == 3
    assert found.dtype == np.float32


def test_a_prefix_goes_before_a_text(server: ModelServer, tmp_path: Path) -> None:
    model = embedder(server, tmp_path)
    np.testing.assert_array_equal(model.encode(["cat"], prefix="the "), model.encode(["the cat"]))
    assert model.encode([]).shape == (0, 0)
    with pytest.raises(UsageError, match=r"leave retrieval\.query_length and retrieval\.document_length null"):
        model.encode(["cat"], max_length=8)


class TestPrompts:
    def test_the_shared_beginning_is_sent_once_and_every_item_keeps_a_token(
        self,
    ) -> None:
        asked = settings("vllm")
        body = vllm_prompts(asked, [[1, 2, 3, 4], [1, 2, 3], [1, 2, 9, 9]], (7, 8))
        assert body["query"] == [1, 2]
        assert body["items"] == [[3, 4], [3], [9, 9]]
        assert body["label_token_ids"] == [7, 8]
        equal = vllm_prompts(asked, [[1, 2], [1, 2]], (7, 8))
        assert (equal["query"], equal["items"]) == ([1], [[2], [2]])

    def test_prompts_are_ours_to_the_token(self, server: ModelServer, tmp_path: Path) -> None:
        scorer = reranker(server, tmp_path)
        rerank_collection(scorer, COLLECTION, CANDIDATES)
        sent = {tuple(body["query"] + item) for _, body in server.asked for item in body["items"]}
        texts = [(query, document.full_text) for query in COLLECTION.queries.values()
                 for document in COLLECTION.corpus.values()]  # fmt: skip
        assert set(map(tuple, server.model.pair_ids(texts))) <= sent


class TestProbability:
    @pytest.mark.parametrize("logit", [-700.0, -20.0, -1e-3, 0.0, 0.5, 16.0])
    def test_the_margin_is_its_logit(self, logit: float) -> None:
        probability = math.exp(logit) / (1 + math.exp(logit))
        assert margin(probability, 0) == pytest.approx(logit, rel=1e-6, abs=1e-12)

    def test_ends_are_beyond_every_other_number(self) -> None:
        assert margin(1.0, 0) == TOP > margin(math.nextafter(1, 0), 0)
        assert margin(0, 0) == BOTTOM < margin(math.nextafter(0, 1), 0)

    def test_pairs_that_tie_at_the_ends_are_named(self, server: ModelServer, tmp_path: Path) -> None:
        scorer = reranker(server, tmp_path)
        notes = scorer.notes({"q0": {"d1": TOP, "d2": 1.0}, "q1": {"d3": BOTTOM}}, {})
        assert any("P(yes) saturates at 0 or 1, so that these pairs tie: 2 (q0/d1, q1/d3)" in note for note in notes)
        assert not any("saturates" in note for note in scorer.notes({"q0": {"d1": 1.0}}, {}))
        raw = reranker(server, tmp_path, "tei")
        assert not any("saturates" in note for note in raw.notes({"q0": {"d1": TOP}}, {}))


def test_what_was_paid_is_in_the_outcome(server: ModelServer, tmp_path: Path) -> None:
    prices = {"price_per_million_tokens": 2.0, "price_per_thousand_searches": 3.0}
    tokens = rerank_collection(reranker(server, tmp_path, "jina", **prices), COLLECTION, CANDIDATES)
    sent = sum(len(text) for _, body in server.asked[:12] for text in body["documents"])
    assert tokens.usage == pytest.approx({"requests": 12, "tokens": sent, "price": sent * 2 / 1e6})
    searches = rerank_collection(reranker(server, tmp_path, "cohere", **prices), COLLECTION, CANDIDATES)
    assert searches.usage == pytest.approx({"requests": 12, "searches": 12, "price": 12 * 3 / 1e3})
    (paid,) = (note for note in searches.notes if note.startswith("scored by served:cohere:"))
    assert paid.endswith("12 requests, 12 searches, price 0.036")


def test_an_estimate_has_the_requests_and_the_price(server: ModelServer, tmp_path: Path) -> None:
    jina = reranker(server, tmp_path, "jina", price_per_million_tokens=2.0)
    found = jina.estimate(COLLECTION, CANDIDATES)
    assert found.requests == 12
    assert found.price == pytest.approx(found.tokens * 2 / 1e6)
    cohere = reranker(server, tmp_path, "cohere", batch=None, price_per_thousand_searches=2.0)
    assert (cohere.estimate(COLLECTION, CANDIDATES).requests, cohere.estimate(COLLECTION, CANDIDATES).price) == (
        4,
        0.008,
    )
    ours = reranker(server, tmp_path)
    exact = [(query, document.full_text) for query in COLLECTION.queries.values()
             for document in COLLECTION.corpus.values()]  # fmt: skip
    assert ours.estimate(COLLECTION, CANDIDATES).tokens == sum(map(len, server.model.pair_ids(exact)))
    assert not server.asked


class TestMTEB:
    """Tasks of MTEB, by the suite that ``evaluate --mteb`` runs."""

    def suite(self, output_dir: Path, model: Any, task: Task) -> Suite:
        naming = Naming(served_experiment(output_dir), torch.device("cpu"), torch.float32)
        return Suite(output_dir, stated_system(model, naming, (task,)), (task,))

    def test_a_reranking_task(self, server: ModelServer, tmp_path: Path) -> None:
        model = reranker(server, tmp_path, "tei")
        (found,) = self.suite(tmp_path, model, "reranking").run([mteb_tasks.InventedReranking()])
        run = read_run(tmp_path / "tiny.tei/seed_none/runs/reranking/InventedReranking.trec")
        texts = [(RANKED.queries[query], RANKED.corpus[document].full_text)
                 for query, documents in run.items() for document in documents]  # fmt: skip
        answered = [score for documents in run.values() for score in documents.values()]
        assert answered == pytest.approx(server.model.rerank(texts, output="margin").tolist(), abs=1e-5)
        assert found.identity.base_model == model.identity
        assert found.provenance.usage["requests"] == len(server.asked) - 2  # the first two ask about the probe pairs
