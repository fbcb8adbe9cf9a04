"""A server's scores and vectors are those of the same model in this process, and failures end with one line."""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.experiments import tiny_experiment
from support.model_server import PROMPT, Fault, ModelServer, serve, sigmoid
from support.toy_collections import invented

from unimoe.config import Experiment
from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.evaluation.tasks.rerank import rerank_collection
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.reranker import ShardStore
from unimoe.models.served.api import BOTTOM, TOP, Rows, margin, number, vector
from unimoe.models.served.client import Client
from unimoe.models.served.embedder import ServedEmbedder
from unimoe.models.served.probe import PROBE_PAIRS
from unimoe.models.served.reranker import ServedReranker

pytestmark = pytest.mark.usefixtures("tmp_cache")

COLLECTION = invented(documents=12, queries=4, words=6)
CANDIDATES: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}
PAIRS = sum(map(len, CANDIDATES.values()))
TEXTS = [document.full_text for document in COLLECTION.corpus.values()]
EVERY_PAIR = [(query, text) for query in COLLECTION.queries.values() for text in TEXTS]


def settings(api: str, **others: Any) -> ServedConfig:
    """How the tests ask: few retries, and requests of five pairs."""
    return ServedConfig(**{"api": api, "model": "org/tiny", "retries": 2, "batch": 5, "timeout": 20, **others})


def served_experiment(folder: Path) -> Experiment:
    """An experiment with the server's prompt, and its model's tokenizer in ``folder``."""
    return tiny_experiment(folder).model_copy(update={"prompt": PROMPT})


def reranker(server: ModelServer, folder: Path, api: str = "vllm", **others: Any) -> ServedReranker:
    """A reranker of the server."""
    return ServedReranker(server.base(api), settings(api, **others), served_experiment(folder))


def embedder(server: ModelServer, folder: Path, api: str = "openai", **others: Any) -> ServedEmbedder:
    """An embedder of the server."""
    return ServedEmbedder(server.base(api), settings(api, **others))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve(layers=2) as running:
        yield running


def test_a_single_answer_is_refused_whose_logit_no_server_gives(server: ModelServer, tmp_path: Path) -> None:
    experiment = served_experiment(tmp_path)
    alone = experiment.model_copy(update={"prompt": experiment.prompt.model_copy(update={"answers": ["yes"]})})
    with pytest.raises(UsageError, match=r"served\.api vllm: scores two answers.*give two in prompt\.answers"):
        ServedReranker(server.base("vllm"), settings("vllm"), alone)


def test_a_run_has_the_scores_of_the_model_in_this_process(server: ModelServer, tmp_path: Path) -> None:
    local = rerank_collection(PairModelReranker(server.model), COLLECTION, CANDIDATES)
    for api in ("vllm", "vllm-score", "vllm-rerank", "tei", "cohere", "jina"):
        found = rerank_collection(reranker(server, tmp_path, api), COLLECTION, CANDIDATES)
        for query, scores in local.run.items():
            expected = {document: sigmoid(s) if api == "cohere" else s for document, s in scores.items()}
            assert found.run[query] == pytest.approx(expected, abs=1e-4), api
        assert found.scores.aggregate == local.scores.aggregate
        assert found.items == PAIRS
        if api == "vllm":  # the prompts are ours to the token
            sent = {tuple(body["query"] + item) for _, body in server.asked for item in body["items"]}
            assert set(map(tuple, server.model.pair_ids(EVERY_PAIR))) <= sent
            firsts = [[item[0] for item in body["items"]] for _, body in server.asked]
            assert all(len(set(first)) > 1 for first in firsts if len(first) > 1)  # what all share is sent once


def test_a_model_that_mteb_knows_by_the_servers_name_is_asked_with_its_prompts(
    server: ModelServer, tmp_path: Path
) -> None:
    e5, other = (embedder(server, tmp_path, model=name) for name in ("intfloat/e5-small-v2", "org/tiny"))
    assert e5.said == 'prompts query "query: ", document "passage: " of mteb\'s registry'
    for kind, prefix in (("query", "query: "), ("document", "passage: "), ("plain", "")):
        expected = server.model.encode([prefix + "cat"])
        np.testing.assert_allclose(e5.encode(["cat"], kind=kind), expected, atol=1e-5)  # type: ignore[arg-type]
    assert other.said == (
        "no prompts: mteb's registry knows none of served.model org/tiny, so texts are sent as they are"
    )
    np.testing.assert_allclose(other.encode(["cat"], kind="query"), server.model.encode(["cat"]), atol=1e-5)
    assert other.prompt_name == f"server@{hash_json({})}" != e5.prompt_name
    given = ServedEmbedder(server.base("openai"), settings("openai", model="intfloat/e5-small-v2"), {"query": ""})
    np.testing.assert_allclose(given.encode(["cat"], kind="query"), server.model.encode(["cat"]), atol=1e-5)
    assert given.said == 'prompts document "passage: " of mteb\'s registry and the config (query)'
    qwen3 = embedder(server, tmp_path, model="Qwen/Qwen3-Embedding-8B")
    card = SimpleNamespace(name="AnySTS", type="STS", prompt="Retrieve semantically similar text.")
    assert qwen3.own_prompts.of(card, None) == "Instruct: Retrieve semantically similar text.\nQuery:"


@pytest.mark.parametrize("api", ["tei-embed", "openai"])
def test_vectors_are_those_of_the_model_in_this_process(api: str, server: ModelServer, tmp_path: Path) -> None:
    done: list[int] = []
    model = embedder(server, tmp_path, api)
    found = model.encode(TEXTS, advance=done.append)
    np.testing.assert_allclose(found, server.model.encode(TEXTS), atol=1e-5)
    assert (sorted(done), len(server.asked), model.usage["requests"]) == ([2, 5, 5], 3, 3)
    np.testing.assert_array_equal(model.encode(["cat"], prefix="the "), model.encode(["the cat"]))
    assert (str(found.dtype), model.encode([]).shape) == ("float32", (0, 0))
    blank = model.encode(["", " \n", ".", "a"])  # as a full stop, since servers refuse blank texts
    np.testing.assert_array_equal(blank[:2], blank[[2, 2]])
    assert (blank[3] != blank[2]).any()
    with pytest.raises(UsageError, match=r"leave retrieval\.query_length and retrieval\.document_length null"):
        model.encode(["cat"], max_length=8)


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
        found = reranker(server, tmp_path, "jina", price_per_million_tokens=2.0).asked(COLLECTION, CANDIDATES)
        assert [found.requests, found.price] == pytest.approx([12, found.tokens * 2 / 1e6])
        cohere = reranker(server, tmp_path, "cohere", batch=None, price_per_thousand_searches=2.0)
        found = cohere.asked(COLLECTION, CANDIDATES)
        assert (found.requests, found.price) == (4, 0.008)
        exact = sum(map(len, server.model.pair_ids(EVERY_PAIR)))
        assert reranker(server, tmp_path).asked(COLLECTION, CANDIDATES).tokens == exact
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
        self, server: ModelServer, tmp_path: Path, tmp_cache: Path
    ) -> None:
        known(server, tmp_path).encode(TEXTS)
        old, *_ = files = [*tmp_cache.glob("served/vectors/*/*.npy")]
        assert len(files) == 4
        os.utime(old, (time.time() - 15 * 24 * 3600,) * 2)
        known(server, tmp_path).encode(TEXTS)
        assert len(server.asked) == 1
        server.change_model()
        next(tmp_cache.glob("served/*.json")).unlink()
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
        np.testing.assert_allclose(found, embedder(server, tmp_path).encode([*TEXTS[:6], sent]), atol=1e-5)
        assert again.prompt_name != embedder(server, tmp_path).prompt_name


KEY = "sk-very-secret-0123456789"


def test_passing_failures_change_no_score(server: ModelServer, tmp_path: Path) -> None:
    expected = rerank_collection(reranker(server, tmp_path, "tei"), COLLECTION, CANDIDATES).run
    server.faults = ["429", "500", "cut connection"]
    assert rerank_collection(reranker(server, tmp_path, "tei", retries=3), COLLECTION, CANDIDATES).run == expected
    assert not server.faults


@pytest.mark.parametrize(
    ("fault", "words"),
    [("cut JSON", "an answer that is no JSON, or not all of it"), ("NaN", "answered nan in place of a finite number")],
)
def test_a_wrong_answer_names_server_and_remedy(fault: Fault, words: str, server: ModelServer, tmp_path: Path) -> None:
    scorer = reranker(server, tmp_path, "tei", requests_in_flight=1)
    server.faults = [fault]
    with pytest.raises(DataError) as caught:
        rerank_collection(scorer, COLLECTION, CANDIDATES)
    message = str(caught.value)
    assert message.startswith("invented, query 'q")
    assert f"{server.base('tei')} (org/tiny): {words}" in message
    assert "server's log" in message
    assert "\n" not in message


ROW = {"index": 0, "score": 0.5}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, "in place of a list"),
        ("<html>busy</html>", "<html>busy</html>.* in place of a list"),
        ([ROW], "answered 1 rows for the 2 of a request"),
        ([ROW, ROW], "answered two rows for it"),
        ([ROW, ROW | {"index": 2}], "answered a row with index 2 of 2"),
        ([ROW, {"score": 0.5}], "answered a row with index nothing of 2"),
    ],
)
def test_rows_that_are_not_those_of_the_request_are_refused(rows: Any, words: str) -> None:
    for key, answer in ((None, rows), ("results", {"results": rows})):
        with pytest.raises(InputError, match=words):
            Rows(key, "score").values(answer, 2)


@pytest.mark.parametrize("value", [None, "high", math.inf, 10**400])
def test_a_score_that_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="in place of a finite number"):
        number(value, 0)


@pytest.mark.parametrize(
    ("fault", "words", "requests"),
    [
        ("401", "401.*no such key.*; put a key that it takes into the environment variable UNIMOE_API_KEY", 1),
        ("429 for long", "429.*; lower served.requests_per_minute or served.requests_in_flight, then run again", None),
        ("redirect", "307", 1),
        ("500", "500.*look at the server's log, then run again: what was answered is kept", 2),
        ("drips", r"no answer within 0.5 s \(tries: 2\); raise served\.timeout", 2),
    ],
)
def test_a_failure_that_stays_is_named_with_its_remedy(
    fault: Fault, words: str, requests: int | None, server: ModelServer, tmp_path: Path
) -> None:
    server.fails = lambda _: fault
    with pytest.raises(InputError, match=words):
        embedder(server, tmp_path, timeout=0.5, retries=1).encode(["a cat"])
    assert requests in (None, len(server.received))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (None, r"404.*check the address \(with /v1 or /v2"),
        ("http://127.0.0.1:9", r"^http://127.0.0.1:9/v1 \(org/tiny\): no connection \(.*check the address"),
    ],
)
def test_another_address_is_named(place: str | None, words: str, server: ModelServer, tmp_path: Path) -> None:
    url, asked = f"{place or server.url}/v1", settings("jina", retries=0)
    with pytest.raises(DataError, match=words):
        _ = ServedReranker(url, asked, served_experiment(tmp_path)).identity


def test_a_request_that_the_api_does_not_take_is_refused(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"served\.batch 33: tei takes 32 at most; lower it"):
        reranker(server, tmp_path, "tei", batch=33)
    with pytest.raises(UsageError, match=r"served\.api openai: it does not rerank"):
        reranker(server, tmp_path, "openai")
    with pytest.raises(UsageError, match=r"served\.api cohere: it does not embed"):
        embedder(server, tmp_path, "cohere")


class TestSecrets:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("HTTP_PROXY", "what://me:secret@host", "HTTP_PROXY.*; write .*, and correct or unset them"),
            ("ALL_PROXY", "socks5://me:secret@host", "ALL_PROXY.*; write .*, and correct or unset them"),
            ("SSL_CERT_FILE", "/no/such/secret", "SSL_CERT_FILE.*; write .*, and correct or unset them"),
            ("UNIMOE_API_KEY", "one secret", "UNIMOE_API_KEY holds more than a key; set it again"),
            ("UNIMOE_API_KEY", "ключ", "UNIMOE_API_KEY holds more than a key; set it again"),
        ],
    )
    def test_an_environment_that_means_nothing_is_named_unseen(
        self, name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=words) as caught:
            Client("https://host/v1", settings("jina"))
        assert "secret" not in str(caught.value)
        assert value not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("https://me:secret@host/v1", "put the key into the environment variable UNIMOE_API_KEY"),
            ("https://host/v1?key=secret", "put the key into the environment variable UNIMOE_API_KEY"),
            ("ftp://host", "no address of a server; write https://HOST/v1"),
            ("http://[::1/v1", "no address of a server; write https://HOST/v1"),
            ("http://host:port/v1", "no address of a server; write https://HOST/v1"),
            ("http://256.1.1.1/v1", "http://256.1.1.1/v1: no address of a server, or .*; write https://HOST/v1"),
        ],
    )
    def test_an_address_that_is_none_or_more_is_refused(self, url: str, words: str) -> None:
        with pytest.raises(UsageError, match=words) as caught:
            Client(url, settings("jina"))
        assert "secret" not in str(caught.value)

    def test_the_key_goes_to_the_server_and_nowhere_else(
        self, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        monkeypatch.setenv("UNIMOE_API_KEY", f"{KEY}\n")
        server.key = KEY
        scorer = reranker(server, tmp_path, "tei")
        rerank_collection(scorer, COLLECTION, CANDIDATES, store=ShardStore(tmp_path / "shards", scorer.identity))
        said = []
        echoes: list[tuple[Fault, str]] = [
            ("echoes the key", r"400.*bad key Bearer \*\*\*"),
            ("tells the key", r"\(org/tiny\): answered .*\*\*\*.*; check served.api"),
        ]
        for fault, words in echoes:
            server.faults = [fault]
            with pytest.raises(InputError, match=words) as caught:
                embedder(server, tmp_path).encode(["a cat"])
            said.append(str(caught.value))
        written = [file.read_text("utf-8") for file in tmp_path.rglob("*.json")]
        assert len(written) > 10
        assert not any(KEY[:4] in text for text in [*written, caplog.text, *said, scorer.identity])

    def test_the_variable_is_a_setting_and_those_of_openai_go_to_no_other_server(
        self, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
            monkeypatch.setenv(name, KEY)
        embedder(server, tmp_path).encode(["a cat"])
        assert "authorization" not in {name.lower() for name in server.received[0]}
        assert KEY not in str(server.received)
        with pytest.raises(UsageError, match=r"the environment variable OTHER_KEY is not set; put the server's key"):
            embedder(server, tmp_path, key_variable="OTHER_KEY")
        monkeypatch.setenv("OTHER_KEY", KEY)
        server.key = KEY
        assert len(embedder(server, tmp_path, key_variable="OTHER_KEY").encode(["a dog"])) == 1


@contextmanager
def answering(content: bytes, status: int = 200, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """A server with one answer to everything; yields its address, and the encodings that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Stay silent."""

        def do_POST(self) -> None:
            """Answer."""
            asked.append(self.headers["Accept-Encoding"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(content)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1", asked
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def bomb(mebibytes: int, begin: bytes = b"[") -> bytes:
    """JSON that is small when packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    parts = [packer.compress(begin)] + [packer.compress(b" " * 2**20) for _ in range(mebibytes)]
    return b"".join([*parts, packer.compress(b"]"), packer.flush()])


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("api", ["openai", "tei-embed", "cohere", "vllm-score"])
def test_an_answer_has_a_limit_that_counts_what_it_unpacks_to(api: str, status: int, tmp_path: Path) -> None:
    import mteb  # noqa: F401 - what the first call of a process loads is no part of an answer
    import openai  # noqa: F401

    embeds, one = api in ("openai", "tei-embed"), settings(api, batch=32)  # so that the probe is one request

    def ask(url: str) -> str:
        model = ServedEmbedder(url, one) if embeds else ServedReranker(url, one, served_experiment(tmp_path))
        return model.base_identity if isinstance(model, ServedEmbedder) else model.identity

    words = rf"an answer of more than {'13.0' if embeds else '1.1'} MiB, which no answer .*served\.batch"
    with answering(bomb(400), status, Content_Encoding="gzip") as (url, asked):
        tracemalloc.start()
        try:
            with pytest.raises(DataError, match=words):
                ask(url)
            assert tracemalloc.get_traced_memory()[1] < 60e6
        finally:
            tracemalloc.stop()
    assert asked == ["gzip"], "neither another encoding nor a second time"


def test_an_answer_that_is_not_packed_or_packed_otherwise_has_a_limit_too() -> None:
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (b" " * 20_000_000, {}, r"more than 13\.0 MiB"),
        (bomb(400), {"Content_Encoding": "gzip, gzip"}, "packed by gzip, gzip, which was not asked for"),
        (bomb(1), {"Content_Encoding": "br"}, "packed by br, which was not asked for"),
    ]
    for content, headers, words in cases:
        with answering(content, **headers) as (url, asked), pytest.raises(DataError, match=words):
            _ = ServedEmbedder(url, settings("openai", batch=32)).base_identity
        assert len(asked) == 1


def test_an_answer_as_long_as_the_widest_vectors_is_read() -> None:
    row = [-1.2345678901234567e-05] * 16_000
    answer = {"data": [{"index": index, "embedding": row} for index in range(5)]}
    cases: list[tuple[bytes, dict[str, Any]]] = [
        (json.dumps(answer).encode(), {}),
        (gzip.compress(json.dumps(answer).encode()), {"Content_Encoding": "gzip"}),
    ]
    for content, headers in cases:
        with answering(content, **headers) as (url, _):
            client = Client(url, settings("openai"))
            embed = APIS["openai"].embed
            assert client.ask(embed, vector, 5, ["a"] * 5)[0] == [row] * 5
