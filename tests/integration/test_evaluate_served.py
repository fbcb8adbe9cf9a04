"""``evaluate --model http://...``: a server's model on collections, planned, killed and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.model_server import ModelServer, serve
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.tiny_models import save_tiny_model

import unimoe
from unimoe.models.served.probe import PROBE_PAIRS

pytestmark = [pytest.mark.usefixtures("one_thread")]
COLLECTION = invented(documents=20, queries=5)
PROBES = len(PROBE_PAIRS)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_invented(tmp_path / "data" / "toy", COLLECTION)
    save_tiny_model(tmp_path / "tiny")
    return tmp_path


def evaluate(server: ModelServer, folder: Path, api: str, *more: str, address: str | None = None) -> Done:
    settings = [f"served.api={api}", "served.model=org/tiny", "served.batch=6", "served.retries=1",
                "evaluation.depth=10", "model.max_length=256"]  # fmt: skip
    if api == "vllm":
        settings += [f"model.base={folder / 'tiny'}", "prompt.order=document_first", 'prompt.instruction="Judge it."',
                     "prompt.embedding_suffix=\"\\n\""]  # fmt: skip
    return call_script(
        "evaluate.py", "--model", address or server.base(api), "--dataset", "toy", "--output-dir", folder / "outputs",
        *[word for setting in settings for word in ("--set", setting)], *more,
        UNIMOE_DATA=str(folder / "data"), UNIMOE_CACHE=str(folder / "cache"),
    )  # fmt: skip


def result(folder: Path, name: str, task: str = "reranking") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"outputs/{name}/seed_none/results/{task}/toy.json").read_text())
    return content


def test_a_killed_run_asks_again_for_what_was_in_flight_alone(server: ModelServer, folder: Path) -> None:
    server.latency = 0.2
    environment = {**os.environ, "UNIMOE_DATA": str(folder / "data"), "UNIMOE_CACHE": str(folder / "cache")}
    words = ["--set", "served.requests_in_flight=2", "--set", "served.batch=2"]
    words += ["--set", "served.api=tei", "--set", "served.model=org/tiny", "--set", "evaluation.depth=10"]
    command = [sys.executable, "-m", "unimoe", "evaluate", "--model", server.base("tei"), "--dataset", "toy", *words]
    source = str(Path(unimoe.__file__).parents[1])
    with subprocess.Popen(
        [*command, "--output-dir", folder / "outputs"],
        env={**environment, "PYTHONPATH": source},
        stderr=subprocess.PIPE,
    ) as process:
        deadline = time.monotonic() + 600
        while server.pairs < PROBES + 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert server.pairs < PROBES + 50
    time.sleep(0.5)  # what was in flight is answered to nobody
    before, server.latency = server.pairs, 0.0
    successful(evaluate(server, folder, "tei", *words))
    asked_twice = server.pairs - 2 * PROBES - 50
    assert 0 <= asked_twice <= 2 * 2
    assert before - PROBES >= 20
    assert result(folder, "tiny.tei")["provenance"]["usage"]["requests"] == 25


def test_an_embedder_searches_a_collection(server: ModelServer, folder: Path) -> None:
    settings = ["served.api=openai", "served.model=org/tiny", 'encoder.query_prefix="the "']
    options = ["--encoder", server.base("openai"), *(word for setting in settings for word in ("--set", setting))]
    environment = {"UNIMOE_DATA": str(folder / "data"), "UNIMOE_CACHE": str(folder / "cache")}
    retrieve = ("retrieve", "--dataset", "toy", "--output-dir", str(folder / "outputs"), *options)
    successful(call_unimoe(*retrieve, **environment))
    found = result(folder, "tiny.openai", "retrieval")
    assert found["identity"]["base_model"].startswith("served:openai:")
    sent = [text for _, body in server.asked for text in body["input"]]
    assert {f"the {query}" for query in COLLECTION.queries.values()} < set(sent)
    run = (folder / "outputs/tiny.openai/seed_none/runs/retrieval/toy.trec").read_text("utf-8").splitlines()
    query, _, document, _, score, _ = run[0].split()
    own = server.model.encode([f"the {COLLECTION.queries[query]}", COLLECTION.corpus[document].full_text])
    assert float(score) == pytest.approx(float(own[0] @ own[1]), abs=1e-5)
    successful(call_unimoe(*retrieve, **environment))
    assert len(server.asked) == len({json.dumps(body) for _, body in server.asked}) + 1  # the probe texts alone


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "http://host/v1"), "say what it speaks and what it serves with --set served.api=API"),
        (("--model", "http://me:pw-secret@host/v1"), "put the key into the environment variable"),
        (
            ("--model", "http://host/v1", "--set", "served.api=vllm", "--set", "served.model=tiny"),
            "name the model whose tokenizer makes them with --set model.base=",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = call_script("evaluate.py", *arguments, "--output-dir", tmp_path / "outputs", UNIMOE_CACHE=str(tmp_path))
    assert_refused(done, 2, words)
    assert "pw-secret" not in done.stderr
