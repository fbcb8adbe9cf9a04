"""A model folder that somebody edits is another model: no result and no vector of the old one stands for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from support import scripts, tiny_models
from support.toy_collections import invented, write_invented

import unimoe
from unimoe.config.base import EncoderConfig

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A collection, and models."""
    folder = tmp_path_factory.mktemp("models")
    write_invented(folder / "toy", invented(documents=12, queries=4))
    tiny_models.save_tiny_model(folder / "causal")
    tiny_models.save_tiny_encoder(folder / "encoder")
    tiny_models.save_library_lora(folder / "encoder", folder / "encoder-lora")
    tiny_models.save_tiny_cross_encoder(folder / "ce")
    tiny_models.save_library_lora(folder / "ce", folder / "ce-lora", CrossEncoder, "SEQ_CLS")
    tiny_models.save_tiny_lora(folder / "causal", folder / "causal-lora")
    tiny_models.save_tiny_score_adapter(folder / "base", folder / "score-lora")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # models are named by relative paths
        yield folder


def evaluate(data: Path, model: str, out: Path, task: str, cache: str) -> scripts.Done:
    options = ["--dataset", "toy", "--task", task, "--set", "model.dtype=float32"]
    return scripts.evaluate(data, "--model", model, "--output-dir", out, *options, cache=cache)


def edit(folder: Path, file: str, text: str, changed: str) -> None:
    before = (folder / file).read_text("utf-8")
    assert text in before
    (folder / file).write_text(before.replace(text, changed), "utf-8")


def other_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: 1.3 * weight for name, weight in load_file(path).items()}, path, {"format": "pt"})


def edits(text: str, changed: str, file: str = "config.json", folder: str = "causal") -> Callable[[Path], None]:
    return lambda models: edit(models / folder, file, text, changed)


EDITS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "norms": ("causal", "", edits('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.5')),
    "act": ("causal", "", edits('"hidden_act": "silu"', '"hidden_act": "relu"')),
    "YaRN": ("causal", "", edits('"rope_type": "default"', '"rope_type": "yarn", "factor": 4.0')),
    "base of a LoRA": ("causal-lora", "", lambda models: other_weights(models / "causal")),
    "base of an encoder's LoRA": ("encoder-lora", "encoder:", lambda models: other_weights(models / "encoder")),
    "encoder": ("encoder", "encoder:", edits('"gelu"', '"relu"', folder="encoder")),
}
"""Models, their prefix, and what happens to them."""


@pytest.mark.parametrize("case", EDITS)
def test_an_edited_model_is_evaluated_anew_and_never_from_what_the_old_one_left(
    data: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, kind, change = EDITS[case]
    here = tmp_path / "models"
    for folder in ("toy", "causal", "causal-lora", "encoder", "encoder-lora"):
        shutil.copytree(data / folder, here / folder)
    for lora, base in (("causal-lora", "causal"), ("encoder-lora", "encoder")):
        edit(here / lora, "adapter_config.json", str(data / base), base)  # from the current folder
    monkeypatch.chdir(here)
    for task in ("embedding",) if kind else ("reranking", "embedding"):
        scripts.successful(evaluate(here, kind + name, tmp_path / "out", task, "cache"))
    before = scripts.run_of(tmp_path / "out", name, task="embedding")
    change(here)
    done = evaluate(here, kind + name, tmp_path / "out", "embedding", "cache")
    scripts.assert_refused(done, 3, f"holds another evaluation (base_model '{name}@", silent=False)
    scripts.successful(evaluate(here, kind + name, tmp_path / "again", "embedding", "cache"))
    scripts.successful(evaluate(here, kind + name, tmp_path / "fresh", "embedding", "empty"))
    again, fresh = (scripts.run_of(tmp_path / out, name, task="embedding") for out in ("again", "fresh"))
    assert again == fresh != before


def test_another_chat_template_is_another_reranker(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data / "toy", tmp_path / "toy")
    folder = shutil.copytree(data / "causal", tmp_path / "causal")
    monkeypatch.chdir(tmp_path)
    scripts.successful(evaluate(tmp_path, "causal", tmp_path / "out", "reranking", "cache"))
    edit(folder, "chat_template.jinja", "message['role']", "message['role'] + '!'")
    done = evaluate(tmp_path, "causal", tmp_path / "out", "reranking", "cache")
    scripts.assert_refused(done, 3, "holds another evaluation (base_model 'causal@", silent=False)
    scripts.successful(evaluate(tmp_path, "causal", tmp_path / "again", "reranking", "cache"))
    assert scripts.run_of(tmp_path / "again", "causal") != scripts.run_of(tmp_path / "out", "causal")


def test_python_functions_know_an_edited_encoder_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(data / "encoder", tmp_path / "encoder")
    monkeypatch.setenv("UNIMOE_DATA", str(data))

    def found(cache: str) -> Any:
        monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path / cache))
        return unimoe.evaluate_encoder(unimoe.load_encoder(EncoderConfig(base=str(folder))), "path:toy")

    first = found("cache")
    edit(folder, "config.json", '"gelu"', '"relu"')
    again, fresh = found("cache"), found("empty")
    assert again.run == fresh.run != first.run
    assert again.identity == fresh.identity != first.identity


def test_python_functions_know_the_adapter_too(data: Path) -> None:
    whole, adapted = unimoe.load_model("causal"), unimoe.load_model("causal", adapter="causal-lora")
    assert whole.base_identity.startswith("causal@")
    assert adapted.base_identity.startswith("causal-lora@")


@pytest.mark.parametrize(
    ("name", "task", "identity"),
    [
        ("causal-lora", "reranking", "causal-lora@"),
        ("causal-lora", "embedding", "causal-lora@"),
        ("ce-lora", "reranking", "cross-encoder:ce-lora@"),
        ("cross-encoder:ce-lora", "reranking", "cross-encoder:ce-lora@"),
        ("encoder-lora", "embedding", "encoder-lora@"),
        ("score-lora", "reranking", "rankllama:score-lora@"),
    ],
)
def test_a_lora_folder_is_evaluated_with_its_base(
    data: Path, tmp_path: Path, name: str, task: str, identity: str
) -> None:
    scripts.successful(evaluate(data, name, tmp_path, task, "cache"))
    arm = name.rpartition(":")[2]
    assert str(scripts.result_of(tmp_path, arm, task=task).identity.base_model).startswith(identity)


@pytest.mark.parametrize("name", ["rankllama:score-lora", "score-lora", "causal-lora", "cross-encoder:ce-lora"])
def test_a_lora_whose_keys_do_not_fit_is_refused_by_name(data: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(data / name.rpartition(":")[2], tmp_path / "lora")
    weights = load_file(folder / "adapter_model.safetensors")
    renamed = {key.replace("layer", "block"): weight for key, weight in weights.items()}
    save_file(renamed, folder / "adapter_model.safetensors", {"format": "pt"})
    done = evaluate(data, name.rpartition(":")[0] + ":" * (":" in name) + str(folder), tmp_path, "reranking", "cache")
    scripts.assert_refused(done, 3, "lora: the adapter does not fit", "lora_A.weight", "on one side only", silent=False)


def test_an_encoders_lora_embeds_as_the_library_does(data: Path) -> None:
    theirs = SentenceTransformer("encoder-lora", device="cpu")
    ours = unimoe.load_encoder(EncoderConfig(base="encoder-lora", dtype="float32"))
    texts = ["the cat", "a dog on the mat"]
    assert ours.encode(texts) == pytest.approx(theirs.encode(texts, normalize_embeddings=True), abs=1e-6)
