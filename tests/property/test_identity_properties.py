"""An identity covers whatever a load reads: a file that is changed changes it, or no score moves by a bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from support import tiny_models
from support.tiny_models import CPU, FLOAT, PAIRS

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.base import EncoderConfig
from unimoe.models.base import base_identity, load_base
from unimoe.models.folder import find_folder
from unimoe.models.matcher import LateModel, SparseModel, find_matcher, load_matcher
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5
from unimoe.models.rerankers.score_head import load_score_head
from unimoe.models.unimodel import UnimodelForExp1

TEXTS = ["the cat sat on the mat", "a quick sort", "rain"]
PROMPTS = PromptConfig(template="chat", instruction="Judge it.")


@dataclass(frozen=True)
class Kind:
    """How a model of a kind is written (with what it needs beside it), scores, and is called in results."""

    make: Callable[[Path, Path], Any]
    scores: Callable[[Path], Any]
    identity: Callable[[Path], str | None] = lambda folder: find_folder("--model", str(folder)).identity


def causal(folder: Path) -> Any:
    model = UnimodelForExp1(load_base(ModelConfig(base=str(folder)), CPU, FLOAT), PROMPTS, 300)
    return np.concatenate([model.rerank(PAIRS[:3], output="margin"), model.encode(TEXTS).ravel()])


def cut(folder: Path) -> Any:
    model = UnimodelForExp1(load_base(ModelConfig(base=str(folder), layers=2), CPU, FLOAT), PROMPTS, 300)
    return model.rerank(PAIRS[:3], output="margin")


def cut_identity(folder: Path) -> str:
    return base_identity(ModelConfig(base=str(folder), layers=2))


def encoder(folder: Path) -> Any:
    return tiny_models.load(folder).encode(TEXTS)


def words(folder: Path) -> Any:
    return tiny_models.load(folder).encode(["cat"])  # it knows few


def of_matcher(matcher: Any) -> Kind:
    def settings(folder: Path) -> EncoderConfig:
        return EncoderConfig(base=str(folder))

    def scores(folder: Path) -> Any:
        model = load_matcher(matcher, "--model", settings(folder), CPU, FLOAT)
        return model.similarity(model.encode(TEXTS, kind="query"), model.encode(TEXTS))

    return Kind(lambda *_: None, scores, lambda folder: find_matcher(matcher, "--model", settings(folder))[1])


def cross_encoder(folder: Path) -> Any:
    return load_cross_encoder(folder, CPU, FLOAT, 64).predict(PAIRS[:3])


def by_ids(load: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def scores(folder: Path) -> Any:
        model = load(folder)
        return model.rerank_ids(model.pair_ids(PAIRS[:3]))

    return scores


T5 = by_ids(lambda folder: load_mono_t5(folder, PromptConfig(), 64, CPU, FLOAT))
HEAD = by_ids(lambda folder: load_score_head(folder, 300, CPU, FLOAT))
SPARSE, LATE = of_matcher(SparseModel), of_matcher(LateModel)
T5_LORA: dict[str, Any] = {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v"]}


def with_dense(folder: Path, other: Path) -> None:
    tiny_models.save_tiny_dense_cross_encoder(folder, tiny_models.save_tiny_encoder(other))


KINDS: dict[str, Kind] = {
    "causal": Kind(lambda f, o: tiny_models.save_tiny_model(f, "qwen3"), causal),
    "causal, cut": Kind(lambda f, o: tiny_models.save_tiny_model(f), cut, cut_identity),
    "causal LoRA": Kind(lambda f, o: tiny_models.save_tiny_lora(tiny_models.save_tiny_model(o), f), causal),
    "encoder": Kind(lambda f, o: tiny_models.save_sentence_transformer(tiny_models.save_tiny_encoder(o), f), encoder),
    "bare encoder": Kind(lambda f, o: tiny_models.save_tiny_encoder(f), encoder),
    "static encoder": Kind(lambda f, o: tiny_models.save_static_encoder(f), encoder),
    "encoder of words": Kind(lambda f, o: tiny_models.save_word_encoder(f), words),
    "encoder LoRA": Kind(lambda f, o: tiny_models.save_library_lora(tiny_models.save_tiny_encoder(o), f), encoder),
    "sparse": Kind(lambda f, o: tiny_models.save_tiny_splade(f, o), SPARSE.scores, SPARSE.identity),
    "sparse router": Kind(lambda f, o: tiny_models.save_tiny_inference_free(f, o), SPARSE.scores, SPARSE.identity),
    "late": Kind(lambda f, o: tiny_models.save_tiny_colbert(f, o), LATE.scores, LATE.identity),
    "cross-encoder": Kind(lambda f, o: tiny_models.save_tiny_cross_encoder(f), cross_encoder),
    "cross-encoder, Dense": Kind(with_dense, cross_encoder),
    "cross-encoder LoRA": Kind(
        lambda f, o: tiny_models.save_library_lora(tiny_models.save_tiny_cross_encoder(o), f, CrossEncoder),
        cross_encoder,
    ),
    "monoT5": Kind(lambda f, o: tiny_models.save_tiny_t5(f), T5),
    "monoT5 LoRA": Kind(
        lambda f, o: tiny_models.save_tiny_lora(tiny_models.save_tiny_t5(o), f, "AutoModelForSeq2SeqLM", **T5_LORA), T5
    ),
    "rankllama": Kind(lambda f, o: tiny_models.save_tiny_score_head(f), HEAD),
    "rankllama LoRA": Kind(lambda f, o: tiny_models.save_tiny_score_adapter(o, f), HEAD),
}

_watching: list[set[str]] = []


def _notice(event: str, arguments: Sequence[Any]) -> None:
    if event == "open" and _watching and isinstance(arguments[0], str):
        _watching[-1].add(arguments[0])


sys.addaudithook(_notice)


@contextmanager
def opened() -> Iterator[set[str]]:
    """Yield the names of the files that Python opens meanwhile."""
    _watching.append(set())
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


@pytest.mark.parametrize("name", KINDS)
def test_a_changed_file_of_a_model_changes_its_identity_or_no_score(tmp_path: Path, name: str) -> None:
    kind, folder, other = KINDS[name], tmp_path / "model", tmp_path / "other"
    kind.make(folder, other)
    with opened() as names:
        before = kind.scores(folder)
    assert np.ptp(before) > 0
    identity, based = kind.identity(folder), find_folder("--model", str(folder)).base is not None
    places = [folder, other] if based else [folder]
    read = {Path(one).resolve() for one in names}
    # What compiled libraries open is not seen: weights and tokenizers; so every file there is counts as read.
    files = [path for place in places for path in sorted(place.rglob("*")) if path.is_file()]
    assert read & set(files)
    unnoticed = []
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        if kind.identity(folder) == identity:
            unnoticed.append(path)
        path.write_bytes(content)
    for path in unnoticed:
        path.write_bytes(b"{}")
    assert kind.identity(folder) == identity
    assert np.array_equal(kind.scores(folder), before)
    assert not {path.name for path in unnoticed} - {"README.md"}, unnoticed


def change_setting(folder: Path, text: str, changed: str, file: str = "config.json") -> None:
    path = folder / file
    assert text in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(text, changed), "utf-8")


@pytest.mark.parametrize(
    ("text", "changed", "file"),
    [
        ('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.1', "config.json"),
        ('"rope_type": "default"', '"rope_type": "yarn", "factor": 4.0', "config.json"),
        ('"hidden_act": "silu"', '"hidden_act": "gelu"', "config.json"),
        ("message['content']", "message['content'] + '!'", "chat_template.jinja"),
        ('"<|im_end|>"', '"<|endoftext|>"', "tokenizer_config.json"),
    ],
)
def test_settings_that_people_edit_move_scores_and_identity(tmp_path: Path, text: str, changed: str, file: str) -> None:
    folder = tiny_models.save_tiny_model(tmp_path / "tiny", "qwen3")
    identity, before = find_folder("--model", str(folder)).identity, causal(folder)
    change_setting(folder, text, changed, file)
    assert find_folder("--model", str(folder)).identity != identity
    if file != "tokenizer_config.json":
        assert not np.array_equal(causal(folder), before)
