"""A server that fails: passing failures are waited out, the others end with one line that names server and pair."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.model_server import Fault, ModelServer, serve
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
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.models.served.client import Client
from unimoe.models.served.probe import PROBE_PAIRS

KEY = "sk-very-secret-0123456789"
PROBES = len(PROBE_PAIRS)
TEXTS = [document.full_text for document in COLLECTION.corpus.values()]

PASSING: list[Fault] = ["429", "500", "cut connection"]
WRONG: list[tuple[Fault, str]] = [
    ("cut JSON", "an answer that is no JSON, or not all of it"),
    ("nothing", "an answer that is no JSON, or not all of it"),
    ("null", "answered nothing in place of a list"),
    ("text", "answered '<html>busy</html>' in place of a list"),
    ("too few", "rows for the 5 of a request"),
    ("too many", "answered 6 rows for the 5 of a request"),
    ("NaN", "answered nan in place of a finite number"),
    ("word", "answered 'high' in place of a finite number"),
    ("huge", "in place of a finite number"),
]
WRONG_INDEX: list[tuple[Fault, str]] = [
    ("twice", "answered two rows for it"),
    ("beyond", "answered a row with index 5 of 5"),
    ("no index", "answered a row with index nothing of 5"),
    ("no rows", "answered {} in place of a list"),
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("api", ["vllm", "tei", "cohere"])
def test_a_passing_failure_changes_no_score(api: str, fault: Fault, server: ModelServer, tmp_path: Path) -> None:
    expected = rerank_collection(reranker(server, tmp_path, api), COLLECTION, CANDIDATES).run
    server.faults = [fault, fault]
    assert rerank_collection(reranker(server, tmp_path, api), COLLECTION, CANDIDATES).run == expected
    assert not server.faults


@pytest.mark.parametrize("api", RERANKING)
@pytest.mark.parametrize(("fault", "words"), WRONG)
def test_a_wrong_answer_names_server_pair_and_mend(
    api: str, fault: Fault, words: str, server: ModelServer, tmp_path: Path
) -> None:
    scorer = reranker(server, tmp_path, api, requests_in_flight=1)
    server.faults = [fault]
    with pytest.raises(DataError) as caught:
        rerank_collection(scorer, COLLECTION, CANDIDATES)
    assert caught.value.exit_code == 3
    message = str(caught.value)
    assert message.startswith("invented, query 'q")
    assert f"{server.base(api)} (org/tiny): " in message
    assert words in message
    assert "server's log" in message
    assert "\n" not in message


@pytest.mark.parametrize("api", RERANKING)
@pytest.mark.parametrize(("fault", "words"), WRONG_INDEX)
def test_a_wrong_index_is_refused(api: str, fault: Fault, words: str, server: ModelServer, tmp_path: Path) -> None:
    server.faults = [fault]
    with pytest.raises(DataError, match=words):
        rerank_collection(reranker(server, tmp_path, api, requests_in_flight=1), COLLECTION, CANDIDATES)


@pytest.mark.parametrize("api", EMBEDDING)
@pytest.mark.parametrize(("fault", "words"), WRONG)
def test_a_wrong_vector_is_refused(api: str, fault: Fault, words: str, server: ModelServer, tmp_path: Path) -> None:
    if (api, fault) == ("tei-embed", "word"):
        words = "in place of a finite number"
    server.faults = [fault]
    with pytest.raises(InputError, match=words) as caught:
        embedder(server, tmp_path, api, requests_in_flight=1).encode(TEXTS)
    assert caught.value.index < 5
    assert f"{server.base(api)} (org/tiny): " in caught.value.reason


class TestWhatWasPaidFor:
    def test_an_interrupted_run_keeps_what_is_under_way(self, server: ModelServer, tmp_path: Path) -> None:
        store = ShardStore(tmp_path / "shards", "one")

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            rerank_collection(reranker(server, tmp_path, "jina", requests_in_flight=2), COLLECTION, CANDIDATES,
                              store=store, advance=interrupt)  # fmt: skip
        paid = server.pairs
        assert 0 < paid < PAIRS
        runs = [json.loads(file.read_text("utf-8"))["run"] for file in (tmp_path / "shards").iterdir()]
        assert sum(len(row) for run in runs for row in run.values()) == paid
        rerank_collection(reranker(server, tmp_path, "jina"), COLLECTION, CANDIDATES, store=store)
        assert server.pairs == PAIRS + PROBES


class TestRefusals:
    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("401", "401.*no such key.*; put a key that it takes into the environment variable UNIMOE_API_KEY"),
            ("429 for long", "429.*; lower served.requests_per_minute or served.requests_in_flight, then run again"),
            ("redirect", "307"),
        ],
    )
    def test_the_status_and_its_mend_are_named(
        self, fault: Fault, words: str, server: ModelServer, tmp_path: Path
    ) -> None:
        server.faults = [fault]
        with pytest.raises(InputError, match=words):
            embedder(server, tmp_path).encode(["a cat"])

    def test_failures_that_stay_end_after_the_retries(self, server: ModelServer, tmp_path: Path) -> None:
        server.fails = lambda _: "500"
        with pytest.raises(
            InputError, match=r"500.*look at the server's log, then run again: what was answered is kept"
        ):
            embedder(server, tmp_path).encode(["a cat"])
        assert len(server.received) == 3

    def test_another_address_is_named(self, server: ModelServer, tmp_path: Path) -> None:
        scorer = ServedReranker(
            f"{server.url}/v1", settings("jina"), served_experiment(tmp_path), record=tmp_path / "a"
        )
        with pytest.raises(DataError, match=r"404.*check the address \(with /v1 or /v2"):
            _ = scorer.identity

    def test_a_server_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        url, asked = "http://127.0.0.1:9/v1", settings("jina", retries=0)
        scorer = ServedReranker(url, asked, served_experiment(tmp_path), record=tmp_path / "a")
        with pytest.raises(DataError, match=rf"^{url} \(org/tiny\): no connection \(.*check the address"):
            _ = scorer.identity

    def test_a_batch_that_the_api_does_not_take(self, server: ModelServer, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"served\.batch 33: tei takes 32 at most; lower it"):
            reranker(server, tmp_path, "tei", batch=33)

    def test_an_api_that_does_not_do_it(self, server: ModelServer, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"served\.api openai: it does not rerank"):
            reranker(server, tmp_path, "openai")
        with pytest.raises(UsageError, match=r"served\.api cohere: it does not embed"):
            embedder(server, tmp_path, "cohere")


class TestBounds:
    @pytest.mark.parametrize("fault", ["drips headers", "drips its body"])
    def test_an_answer_that_drips_is_out_of_time_and_asked_for_again(
        self, fault: Fault, server: ModelServer, tmp_path: Path
    ) -> None:
        server.fails = lambda _: fault
        with pytest.raises(InputError, match=r"no answer within 1 s \(tries: 2\); raise served\.timeout"):
            embedder(server, tmp_path, timeout=1, retries=1).encode(["a cat"])
        assert len(server.received) == 2


class TestEnvironment:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("HTTP_PROXY", "what://me:pw-secret@host"),
            ("https_proxy", "http://me:pw-secret/@host"),
            ("ALL_PROXY", "socks5://me:pw-secret@host"),
            ("SSL_CERT_FILE", "/no/such/file"),
        ],
    )
    def test_a_setting_that_means_nothing_is_named(
        self, name: str, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=f"{name.upper()}.*; correct or unset them") as caught:
            Client("https://host/v1", settings("jina"))
        assert "pw-secret" not in str(caught.value)

    @pytest.mark.parametrize("url", ["http://256.1.1.1/v1", "http://[::1]x/v1"])
    def test_a_host_that_no_client_takes_is_named(self, url: str) -> None:
        with pytest.raises(UsageError, match=r"no address of a server \(.*\); write https://HOST/v1"):
            Client(url, settings("jina"))


class TestKey:
    def test_it_goes_to_the_server_and_nowhere_else(
        self,
        server: ModelServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        monkeypatch.setenv("UNIMOE_API_KEY", f"{KEY}\n")
        server.key = KEY
        scorer = reranker(server, tmp_path, "tei")
        rerank_collection(scorer, COLLECTION, CANDIDATES, store=ShardStore(tmp_path / "shards", scorer.identity))
        server.faults = ["echoes the key"]
        with pytest.raises(InputError, match=r"400.*bad key Bearer \*\*\*") as caught:
            embedder(server, tmp_path).encode(["a cat"])
        written = [file.read_text("utf-8") for file in tmp_path.rglob("*.json")]
        assert len(written) > 10
        assert not any(KEY in text for text in [*written, caplog.text, str(caught.value), scorer.identity])

    def test_the_variable_is_named_by_a_setting(
        self, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(UsageError, match=r"the environment variable OTHER_KEY is not set; put the server's key"):
            embedder(server, tmp_path, key_variable="OTHER_KEY")
        monkeypatch.setenv("OTHER_KEY", KEY)
        server.key = KEY
        assert len(embedder(server, tmp_path, key_variable="OTHER_KEY").encode(["a cat"])) == 1

    def test_the_settings_of_openai_go_to_no_other_server(
        self, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
            monkeypatch.setenv(name, KEY)
        embedder(server, tmp_path).encode(["a cat"])
        (headers,) = server.received
        assert "authorization" not in {name.lower() for name in headers}
        assert KEY not in str(headers)

    @pytest.mark.parametrize(
        "url", ["https://me:pw-secret@host/v1", "https://host/v1?key=pw-secret", "https://host/v1#pw-secret"]
    )
    def test_an_address_with_a_secret_is_refused_without_it(self, url: str) -> None:
        with pytest.raises(UsageError, match="put the key into the environment variable UNIMOE_API_KEY") as caught:
            Client(url, settings("jina"))
        assert "pw-secret" not in str(caught.value)

    @pytest.mark.parametrize("url", ["ftp://host", "host/v1", "http://", "http://[::1/v1", "http://host:port/v1"])
    def test_an_address_of_another_kind_is_refused(self, url: str) -> None:
        with pytest.raises(UsageError, match="no address of a server; write https://HOST/v1"):
            Client(url, settings("jina"))

    @pytest.mark.parametrize("key", ["one two", "ключ"])
    def test_what_is_no_key_is_refused_unseen(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UNIMOE_API_KEY", key)
        with pytest.raises(UsageError, match="UNIMOE_API_KEY holds more than a key; set it again") as caught:
            Client("http://host/v1", settings("jina"))
        assert key not in str(caught.value)

    def test_an_answer_that_tells_the_key_is_not_shown(
        self, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UNIMOE_API_KEY", KEY)
        server.faults = ["tells the key"]
        with pytest.raises(InputError, match=r"\(org/tiny\): answered .*\*\*\*.*; check served.api") as caught:
            embedder(server, tmp_path).encode(["a cat"])
        assert KEY[:4] not in str(caught.value)


class TestIdentity:
    def test_it_names_what_answers(self, server: ModelServer, tmp_path: Path) -> None:
        scorer = reranker(server, tmp_path, "vllm", revision="v2")
        host = server.url.removeprefix("http://")
        assert scorer.identity.startswith(f"served:vllm:{host}/vllm/v1:org/tiny:v2@")
        assert scorer.name == "tiny.vllm"
        assert reranker(server, tmp_path, "vllm", revision="v2").identity == scorer.identity
        assert embedder(server, tmp_path).base_identity.startswith(f"served:openai:{host}/openai/v1:org/tiny:revision-")

    @pytest.mark.parametrize("api", RERANKING)
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
        cut = reranker(server, tmp_path, "vllm-score", max_length=100)
        assert cut.prompt_name != reranker(server, tmp_path, "vllm-score").prompt_name

    def test_a_damaged_record_is_named(self, server: ModelServer, tmp_path: Path) -> None:
        (tmp_path / "tei.json").write_text('{"answers": ["a"]}', encoding="utf-8")
        with pytest.raises(DataError, match=r"tei\.json: answers.*; delete it"):
            _ = reranker(server, tmp_path, "tei").identity

    def test_last_bits_may_move(self, server: ModelServer, tmp_path: Path) -> None:
        before = reranker(server, tmp_path, "tei").identity
        weight = server.model.model.get_output_embeddings().weight
        weight.add_(1e-4 * weight)
        assert reranker(server, tmp_path, "tei").identity == before

    def test_a_server_that_does_not_answer_the_probe_is_named(self, server: ModelServer, tmp_path: Path) -> None:
        server.faults = ["NaN"]
        with pytest.raises(DataError, match=r"^http://127.*answered nan in place of a finite number"):
            _ = reranker(server, tmp_path, "tei").identity
