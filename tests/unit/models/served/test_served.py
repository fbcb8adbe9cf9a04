"""Scores and vectors of a server: those of the same model in this process, whatever the API, at a known price."""

from __future__ import annotations

import json
import math
import os
import time
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

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.trec import read_run
from unimoe.evaluation.reranking.rerankers import PairModelReranker
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.systems.named import Naming, stated_system
from unimoe.models.served.api import BOTTOM, TOP, margin, vllm_prompts
from unimoe.models.served.embedder import ServedEmbedder
from unimoe.models.served.probe import PROBE_PAIRS

TEXTS = [document.full_text for document in COLLECTION.corpus.values()]
EVERY_PAIR = [(query, text) for query in COLLECTION.queries.values() for text in TEXTS]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.fixture(autouse=True)
def cache(tmp_cache: Path) -> Path:
    return tmp_cache


@pytest.mark.parametrize("api", RERANKING)
def test_a_run_has_the_scores_of_the_model_in_this_process(api: str, server: ModelServer, tmp_path: Path) -> None:
    local = rerank_collection(PairModelReranker(server.model), COLLECTION, CANDIDATES)
    found = rerank_collection(reranker(server, tmp_path, api), COLLECTION, CANDIDATES)
    for query, scores in local.run.items():
        expected = {document: sigmoid(s) if api == "cohere" else s for document, s in scores.items()}
        assert found.run[query] == pytest.approx(expected, abs=2e-5)
    assert found.scores.aggregate == local.scores.aggregate
    assert found.items == PAIRS
    if api == "vllm":  # the prompts are ours to the token
        sent = {tuple(body["query"] + item) for _, body in server.asked for item in body["items"]}
        assert set(map(tuple, server.model.pair_ids(EVERY_PAIR))) <= sent


@pytest.mark.parametrize("api", EMBEDDING)
def test_vectors_are_those_of_the_model_in_this_process(api: str, server: ModelServer, tmp_path: Path) -> None:
    done: list[int] = []
    model = embedder(server, tmp_path, api)
    found = model.encode(TEXTS, advance=done.append)
    np.testing.assert_allclose(found, server.model.encode(TEXTS), atol=1e-6)
    assert (sorted(done), len(server.asked), model.usage["requests"]) == ([2, 5, 5], 3, 3)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(model.encode(["cat"], prefix="the "), model.encode(["the cat"]))
    assert model.encode([]).shape == (0, 0)
    blank = model.encode(["", " \n", ".", "a"])  # as a full stop, since servers refuse blank texts
    np.testing.assert_array_equal(blank[:2], blank[[2, 2]])
    assert (blank[3] != blank[2]).any()
    with pytest.raises(UsageError, match=r"leave retrieval\.query_length and retrieval\.document_length null"):
        model.encode(["cat"], max_length=8)


def test_the_shared_beginning_of_prompts_is_sent_once_and_every_item_keeps_a_token() -> None:
    body = vllm_prompts(settings("vllm"), [[1, 2, 3, 4], [1, 2, 3], [1, 2, 9, 9]], (7, 8))
    assert (body["query"], body["items"], body["label_token_ids"]) == ([1, 2], [[3, 4], [3], [9, 9]], [7, 8])
    equal = vllm_prompts(settings("vllm"), [[1, 2], [1, 2]], (7, 8))
    assert (equal["query"], equal["items"]) == ([1], [[2], [2]])


class TestProbability:
    @pytest.mark.parametrize("logit", [-700.0, -20.0, -1e-3, 0.0, 0.5, 16.0])
    def test_the_margin_is_its_logit(self, logit: float) -> None:
        assert margin(math.exp(logit) / (1 + math.exp(logit)), 0) == pytest.approx(logit, rel=1e-6, abs=1e-12)
        assert margin(1.0, 0) == TOP > margin(math.nextafter(1, 0), 0)
        assert margin(0, 0) == BOTTOM < margin(math.nextafter(0, 1), 0)

    def test_pairs_that_tie_at_the_ends_are_named(self, server: ModelServer, tmp_path: Path) -> None:
        run = {"q0": {"d1": TOP, "d2": 1.0}, "q1": {"d3": BOTTOM}}
        notes = "\n".join(reranker(server, tmp_path).notes(run, {}))
        assert "P(yes) saturates at 0 or 1, so that these pairs tie: 2 (q0/d1, q1/d3)" in notes
        assert "saturates" not in "\n".join(reranker(server, tmp_path).notes({"q0": {"d1": 1.0}}, {}))
        assert "saturates" not in "\n".join(reranker(server, tmp_path, "tei").notes(run, {}))


class TestPrice:
    def test_what_was_paid_is_in_the_outcome(self, server: ModelServer, tmp_path: Path) -> None:
        prices = {"price_per_million_tokens": 2.0, "price_per_thousand_searches": 3.0}
        tokens = rerank_collection(reranker(server, tmp_path, "jina", **prices), COLLECTION, CANDIDATES)
        sent = sum(len(text) for _, body in server.asked[:12] for text in body["documents"])
        assert tokens.usage == pytest.approx({"requests": 12, "tokens": sent, "price": sent * 2 / 1e6})
        searches = rerank_collection(reranker(server, tmp_path, "cohere", **prices), COLLECTION, CANDIDATES)
        assert searches.usage == pytest.approx({"requests": 12, "searches": 12, "price": 12 * 3 / 1e3})
        (paid,) = (note for note in searches.notes if note.startswith("scored by served:cohere:"))
        assert paid.endswith("12 requests, 12 searches, price 0.036")

    def test_an_estimate_has_the_requests_and_the_price(self, server: ModelServer, tmp_path: Path) -> None:
        found = reranker(server, tmp_path, "jina", price_per_million_tokens=2.0).estimate(COLLECTION, CANDIDATES)
        assert found.requests == 12
        assert found.price == pytest.approx(found.tokens * 2 / 1e6)
        cohere = reranker(server, tmp_path, "cohere", batch=None, price_per_thousand_searches=2.0)
        found = cohere.estimate(COLLECTION, CANDIDATES)
        assert (found.requests, found.price) == (4, 0.008)
        exact = sum(map(len, server.model.pair_ids(EVERY_PAIR)))
        assert reranker(server, tmp_path).estimate(COLLECTION, CANDIDATES).tokens == exact
        assert not server.asked

    def test_an_interrupted_run_keeps_what_is_under_way(self, server: ModelServer, tmp_path: Path) -> None:
        store = ShardStore(tmp_path / "shards", "one")

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        scorer = reranker(server, tmp_path, "jina", requests_in_flight=2)
        with pytest.raises(KeyboardInterrupt):
            rerank_collection(scorer, COLLECTION, CANDIDATES, store=store, advance=interrupt)
        paid = server.pairs
        assert 0 < paid < PAIRS
        kept = [json.loads(file.read_text("utf-8"))["scores"] for file in (tmp_path / "shards").iterdir()]
        assert sum(map(len, kept)) == paid
        rerank_collection(reranker(server, tmp_path, "jina"), COLLECTION, CANDIDATES, store=store)
        assert server.pairs == PAIRS + len(PROBE_PAIRS)


class TestIdentity:
    def test_it_names_what_answers_and_last_bits_may_move(self, server: ModelServer, tmp_path: Path) -> None:
        scorer = reranker(server, tmp_path, "vllm", revision="v2")
        host = server.url.removeprefix("http://")
        assert scorer.identity.startswith(f"served:vllm:{host}/vllm/v1:org/tiny:v2@")
        assert scorer.name == "tiny.vllm"
        weight = server.model.model.get_output_embeddings().weight
        weight.add_(1e-4 * weight)
        assert reranker(server, tmp_path, "vllm", revision="v2").identity == scorer.identity
        assert embedder(server, tmp_path).base_identity.startswith(f"served:openai:{host}/openai/v1:org/tiny:revision-")

    @pytest.mark.parametrize("api", ["vllm", "tei"])
    def test_a_changed_model_is_refused(self, api: str, server: ModelServer, tmp_path: Path) -> None:
        assert reranker(server, tmp_path, api).identity
        server.change_model()
        with pytest.raises(DataError, match="another model answers under this name than before: the scores of the"):
            _ = reranker(server, tmp_path, api).identity

    def test_another_prompt_is_no_other_model(self, server: ModelServer, tmp_path: Path) -> None:
        before = reranker(server, tmp_path)
        other = served_experiment(tmp_path).model_copy(update={"prompt": PromptConfig(template="plain")})
        changed = ServedReranker(server.base("vllm"), settings("vllm"), other, record=tmp_path / "vllm.json")
        assert changed.identity == before.identity
        assert changed.prompt_name != before.prompt_name

    def test_a_server_that_does_not_answer_the_probe_is_named(self, server: ModelServer, tmp_path: Path) -> None:
        server.faults = ["NaN"]
        with pytest.raises(DataError, match=r"^http://127.*answered nan in place of a finite number"):
            _ = reranker(server, tmp_path, "tei").identity


def known(server: ModelServer, tmp_path: Path, **others: Any) -> ServedEmbedder:
    """An embedder whose model has answered about the probe texts, as in every evaluation."""
    found = embedder(server, tmp_path, batch=3, **others)
    assert found.base_identity
    server.asked.clear()
    return found


def asked(server: ModelServer) -> list[str]:
    return [text for _, body in server.asked for text in body["input"]]


class TestKeptVectors:
    def test_a_stopped_embedding_pays_for_no_text_twice(self, server: ModelServer, tmp_path: Path) -> None:
        expected = embedder(server, tmp_path, batch=3).encode(TEXTS)
        first = known(server, tmp_path, requests_in_flight=3)
        server.fails = lambda body: "NaN" if TEXTS[7] in body else None
        with pytest.raises(InputError) as refused:
            first.encode(TEXTS)
        assert 6 <= refused.value.index <= 8
        paid = asked(server)
        assert len(paid) >= 6
        server.fails = lambda body: None
        again = known(server, tmp_path)
        np.testing.assert_array_equal(again.encode(TEXTS), expected)
        assert sorted(paid + asked(server)) == sorted(TEXTS)
        assert again.usage["requests"] == 3 + len(server.asked)  # three about the probe texts

    def test_they_are_kept_for_two_weeks_and_for_their_model(
        self, server: ModelServer, tmp_path: Path, cache: Path
    ) -> None:
        known(server, tmp_path).encode(TEXTS)
        old, *_ = files = [*cache.glob("served/vectors/*/*.npy")]
        assert len(files) == 4
        os.utime(old, (time.time() - 15 * 24 * 3600,) * 2)
        known(server, tmp_path).encode(TEXTS)
        assert len(server.asked) == 1
        server.change_model()
        (tmp_path / "openai-embed.json").unlink()
        known(server, tmp_path).encode(TEXTS)
        assert len(server.asked) == 4

    def test_a_text_that_is_too_long_for_openai_is_cut(self, server: ModelServer, tmp_path: Path) -> None:
        long = "naïve " * 100
        server.fails = lambda body: "too long" if body.count("ve na") > 40 else None
        with pytest.raises(InputError, match=r"400.*maximum context.*set a lower .* or served\.max_length"):
            known(server, tmp_path, requests_in_flight=1).encode([*TEXTS[:6], long])
        assert len(asked(server)) == 6
        again = known(server, tmp_path, max_length=60)
        found = again.encode([*TEXTS[:6], long])
        (sent,) = asked(server)  # no other is paid for twice
        assert long.startswith(sent)
        assert 179 <= len(sent.encode()) <= 180
        np.testing.assert_allclose(found, embedder(server, tmp_path).encode([*TEXTS[:6], sent]), atol=1e-6)
        assert again.prompt_name != embedder(server, tmp_path).prompt_name


def test_a_reranking_task_of_mteb(server: ModelServer, tmp_path: Path) -> None:
    model = reranker(server, tmp_path, "tei")
    naming = Naming(served_experiment(tmp_path), torch.device("cpu"), torch.float32)
    suite = Suite(tmp_path, stated_system(model, naming, ("reranking",)), ("reranking",))
    (found,) = suite.run([mteb_tasks.InventedReranking()])
    run = read_run(tmp_path / "tiny.tei/seed_none/runs/reranking/InventedReranking.trec")
    texts = [(RANKED.queries[query], RANKED.corpus[document].full_text)
             for query, documents in run.items() for document in documents]  # fmt: skip
    answered = [score for documents in run.values() for score in documents.values()]
    assert answered == pytest.approx(server.model.rerank(texts, output="margin").tolist(), abs=1e-5)
    assert found.identity.base_model == model.identity
    assert found.provenance.usage["requests"] == len(server.asked) - 2  # the first two ask about the probe pairs
