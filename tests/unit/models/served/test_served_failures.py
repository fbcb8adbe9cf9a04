"""A server that fails: passing failures are waited out, the others end with one line that names server and pair."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.model_server import Fault, ModelServer, serve
from support.served import CANDIDATES, COLLECTION, embedder, reranker, served_experiment, settings

from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.models.served.client import Client

KEY = "sk-very-secret-0123456789"
TEXTS = [document.full_text for document in COLLECTION.corpus.values()]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.mark.parametrize("fault", ["429", "500", "cut connection"])
def test_a_passing_failure_changes_no_score(fault: Fault, server: ModelServer, tmp_path: Path) -> None:
    expected = rerank_collection(reranker(server, tmp_path, "tei"), COLLECTION, CANDIDATES).run
    server.faults = [fault, fault]
    assert rerank_collection(reranker(server, tmp_path, "tei"), COLLECTION, CANDIDATES).run == expected
    assert not server.faults


WRONG: list[tuple[Fault, str]] = [
    ("cut JSON", "an answer that is no JSON, or not all of it"),
    ("nothing", "an answer that is no JSON, or not all of it"),
    ("null", "answered nothing in place of a list"),
    ("text", "answered '<html>busy</html>' in place of a list"),
    ("no rows", "answered {} in place of a list"),
    ("too few", "rows for the 5 of a request"),
    ("too many", "answered 6 rows for the 5 of a request"),
    ("twice", "answered two rows for it"),
    ("beyond", "answered a row with index 5 of 5"),
    ("no index", "answered a row with index nothing of 5"),
    ("NaN", "answered nan in place of a finite number"),
    ("word", "answered 'high' in place of a finite number"),
    ("huge", "in place of a finite number"),
]


@pytest.mark.parametrize("api", ["vllm", "tei", "cohere"])
@pytest.mark.parametrize(("fault", "words"), WRONG)
def test_a_wrong_answer_names_server_pair_and_remedy(
    api: str, fault: Fault, words: str, server: ModelServer, tmp_path: Path
) -> None:
    scorer = reranker(server, tmp_path, api, requests_in_flight=1)
    server.faults = [fault]
    with pytest.raises(DataError) as caught:
        rerank_collection(scorer, COLLECTION, CANDIDATES)
    message = str(caught.value)
    assert message.startswith("invented, query 'q")
    assert f"{server.base(api)} (org/tiny): " in message
    assert words in message
    assert "server's log" in message
    assert "\n" not in message


@pytest.mark.parametrize("api", ["openai", "tei-embed"])
@pytest.mark.parametrize(("fault", "words"), [WRONG[0], WRONG[2], WRONG[5], WRONG[10], WRONG[12]])
def test_a_wrong_vector_is_refused(api: str, fault: Fault, words: str, server: ModelServer, tmp_path: Path) -> None:
    server.faults = [fault]
    with pytest.raises(InputError, match=words) as caught:
        embedder(server, tmp_path, api, requests_in_flight=1).encode(TEXTS)
    assert caught.value.index < 5
    assert f"{server.base(api)} (org/tiny): " in caught.value.reason


@pytest.mark.parametrize(
    ("fault", "words", "requests"),
    [
        ("401", "401.*no such key.*; put a key that it takes into the environment variable UNIMOE_API_KEY", 1),
        ("429 for long", "429.*; lower served.requests_per_minute or served.requests_in_flight, then run again", None),
        ("redirect", "307", 1),
        ("500", "500.*look at the server's log, then run again: what was answered is kept", 2),
        ("drips headers", r"no answer within 1 s \(tries: 2\); raise served\.timeout", 2),
        ("drips its body", r"no answer within 1 s \(tries: 2\); raise served\.timeout", 2),
    ],
)
def test_a_failure_that_stays_is_named_with_its_remedy(
    fault: Fault, words: str, requests: int | None, server: ModelServer, tmp_path: Path
) -> None:
    server.fails = lambda _: fault
    with pytest.raises(InputError, match=words):
        embedder(server, tmp_path, timeout=1, retries=1).encode(["a cat"])
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
        _ = ServedReranker(url, asked, served_experiment(tmp_path), record=tmp_path / "a").identity


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
            ("https://host/v1#secret", "put the key into the environment variable UNIMOE_API_KEY"),
            ("ftp://host", "no address of a server; write https://HOST/v1"),
            ("host/v1", "no address of a server; write https://HOST/v1"),
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
