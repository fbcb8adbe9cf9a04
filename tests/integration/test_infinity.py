"""A server of other people's: ``infinity``, which speaks Jina's and OpenAI's formats.

It wants older libraries than ours, so it runs in an environment of its own (``uv tool install "infinity-emb[all]"``);
UNIMOE_INFINITY names its command where it is not on the PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from support.experiments import tiny_experiment
from support.reranking import invented
from support.tiny_encoders import load
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.rerankers.cross_encoder import load_cross_encoder, score_pairs
from unimoe.models.served.embedder import ServedEmbedder

COMMAND = os.environ.get("UNIMOE_INFINITY") or shutil.which("infinity_emb")
COLLECTION = invented(documents=10, queries=3, words=6)
CANDIDATES: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}

pytestmark = pytest.mark.skipif(
    COMMAND is None, reason='needs infinity: uv tool install "infinity-emb[all]", or its command in UNIMOE_INFINITY'
)


@pytest.fixture(scope="module")
def reranking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_cross_encoder(tmp_path_factory.mktemp("infinity") / "tiny")


@pytest.fixture(scope="module")
def url(reranking_model: Path) -> Iterator[str]:
    try:
        encoder = bundled_encoder_folder("bundled:all-minilm-l6-v2")
    except DataError as error:
        pytest.skip(str(error))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(COMMAND), "v2", "--port", str(port), "--host", "127.0.0.1", "--url-prefix", "/v1", "--device", "cpu"]
    for folder, name in ((encoder, "minilm"), (reranking_model, "tiny")):
        command += ["--model-id", str(folder), "--served-model-name", name]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "DO_NOT_TRACK": "1",
        "INFINITY_DTYPE": "float32;float32",
        "INFINITY_ENGINE": "torch;torch",
        "INFINITY_BETTERTRANSFORMER": "false;false",
        "INFINITY_MODEL_WARMUP": "false;false",
    }
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            _await(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _await(address: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(address, timeout=1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"infinity did not start: {process.stdout.read()[-2000:] if process.stdout else ''}")


def test_it_reranks_as_the_model_in_this_process(url: str, reranking_model: Path, tmp_path: Path) -> None:
    settings = ServedConfig(api="jina", model="tiny", batch=4)
    model = ServedReranker(url, settings, tiny_experiment(tmp_path), record=tmp_path / "probe.json")
    found = rerank_collection(model, COLLECTION, CANDIDATES)
    texts = [(COLLECTION.queries[query], COLLECTION.corpus[document].full_text)
             for query, documents in CANDIDATES.items() for document in documents]  # fmt: skip
    local = score_pairs(load_cross_encoder(reranking_model, torch.device("cpu"), torch.float32), texts, 8)
    answered = np.array([score for documents in found.run.values() for score in documents.values()])
    np.testing.assert_allclose(answered, 1 / (1 + np.exp(-np.array(local))), atol=1e-5)
    assert found.usage["requests"] == 9
    assert found.usage["tokens"] > 0


def test_it_embeds_as_the_model_in_this_process(url: str, tmp_path: Path) -> None:
    texts = [document.full_text for document in COLLECTION.corpus.values()]
    model = ServedEmbedder(url, ServedConfig(api="openai", model="minilm", batch=4), record=tmp_path / "probe.json")
    own = load("bundled:all-minilm-l6-v2").encode(texts)
    assert np.sum(model.encode(texts) * own, axis=1).min() > 0.9999
