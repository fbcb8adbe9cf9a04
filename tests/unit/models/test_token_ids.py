"""The tokens around every text as a model's files state them, and texts with tokens that the model has no row for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from support.tiny_models import (
    CPU,
    FLOAT,
    load,
    random_model,
    save_sentence_transformer,
    save_tiny_cross_encoder,
    save_tiny_mlm,
    save_tiny_model,
    save_tiny_score_head,
    save_tiny_splade,
    saved,
    tiny_sentencepiece,
)
from transformers import AutoTokenizer

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, InputError
from unimoe.models.base import load_base, load_tokenizer
from unimoe.models.matcher import SparseModel, load_matcher
from unimoe.models.prompts.tokenizers import first_token
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.models.rerankers.score_head import load_score_head
from unimoe.models.unimodel import UnimodelForExp1

TEXTS = ["the cat sat on the mat", "rain", "a quick sort splits the list around a pivot and sorts both halves " * 9]


def stating(folder: Path, **settings: Any) -> Path:
    """A folder whose settings of the tokenizer say so, as older libraries wrote them."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def mistral(folder: Path) -> Path:
    """A decoder as e5-mistral's: its settings state an end that its tokenizer's file does not add."""
    tokenizer = tiny_sentencepiece("first")
    sizes = {"num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False}
    model = random_model("AutoModel", "mistral", len(tokenizer), **sizes)
    bare = saved(folder / "bare", model, tokenizer)
    whole = save_sentence_transformer(bare, folder / "st", pooling="lasttoken")
    return stating(whole, add_eos_token=True, add_bos_token=True, model_max_length=64)


def test_an_encoder_reads_the_end_that_its_settings_state_and_pools_it(tmp_path: Path) -> None:
    folder = mistral(tmp_path)
    ends: dict[str, Any] = {"processor_kwargs": {"add_eos_token": True, "add_bos_token": True}}  # as mteb loads it
    peer, without = (SentenceTransformer(str(folder), device="cpu", **more) for more in (ends, {}))
    ours, bos, eos = load(folder), peer.tokenizer.bos_token_id, peer.tokenizer.eos_token_id
    found = ours.token_ids(TEXTS)
    assert [(ids[0], ids[-1], ids.count(eos)) for ids in found] == [(bos, eos, 1)] * 3
    assert max(map(len, found)) == ours.max_length == 64
    vectors = ours.encode(TEXTS)
    np.testing.assert_allclose(vectors, peer.encode(TEXTS, normalize_embeddings=True), atol=1e-6)
    assert (vectors * without.encode(TEXTS, normalize_embeddings=True)).sum(axis=1).max() < 0.99


def test_an_end_that_the_tokenizer_adds_comes_once(tmp_path: Path) -> None:
    folder = mistral(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder, add_eos_token=True, add_bos_token=True)
    tokenizer.save_pretrained(folder)
    ids = load(stating(folder, add_eos_token=True, add_bos_token=True)).token_ids(["a cat"])
    assert ids == [tokenizer("a cat")["input_ids"]]
    assert (ids[0].count(tokenizer.bos_token_id), ids[0].count(tokenizer.eos_token_id)) == (1, 1)


def test_a_causal_model_gets_the_stated_first_token_and_no_end_beside_its_suffix(tmp_path: Path) -> None:
    tokenizer = tiny_sentencepiece("first")
    tokenizer.backend_tokenizer.post_processor = None
    sizes = {"num_key_value_heads": 2, "max_position_embeddings": 64}
    folder = saved(tmp_path / "m", random_model("AutoModelForCausalLM", "mistral", len(tokenizer), **sizes), tokenizer)
    assert first_token(load_base(ModelConfig(base=str(folder)), CPU, FLOAT).tokenizer) == []
    config = ModelConfig(base=str(stating(folder, add_bos_token=True, add_eos_token=True)), max_length=60)
    base = load_base(config, CPU, FLOAT)
    assert first_token(base.tokenizer) == first_token(load_tokenizer(config)) == [tokenizer.bos_token_id]
    model = UnimodelForExp1(base, PromptConfig(template="plain", embedding_suffix="</s>"), config.max_length)
    (ids,) = model.text_ids(["a cat"], "document")
    assert (ids[0], ids[-1], ids.count(tokenizer.eos_token_id)) == (tokenizer.bos_token_id, tokenizer.eos_token_id, 1)


def test_a_score_head_reads_the_stated_end_of_a_pair(tmp_path: Path) -> None:
    folder = save_tiny_score_head(tmp_path / "head")
    eos = AutoTokenizer.from_pretrained(folder).eos_token_id
    (bare,) = load_score_head(folder, 300, CPU, FLOAT).pair_ids([("a", "cat")])
    (ended,) = load_score_head(stating(folder, add_eos_token=True), 300, CPU, FLOAT).pair_ids([("a", "cat")])
    assert bare[-1] != eos == ended[-1]
    assert ended.count(eos) == 2  # after both texts, as transformers writes a pair


def with_a_token_more(folder: Path) -> Path:
    """A folder whose tokenizer has a token beside those of the model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<unused>"])
    tokenizer.save_pretrained(folder)
    return folder


def causal(folder: Path) -> UnimodelForExp1:
    base = load_base(ModelConfig(base=str(with_a_token_more(save_tiny_model(folder / "m")))), CPU, FLOAT)
    return UnimodelForExp1(base, PromptConfig(), 300)


READERS: dict[str, Callable[[Path], Callable[[list[str]], Any]]] = {
    "embedded": lambda at: causal(at).encode,
    "reranked": lambda at: lambda texts: causal(at).rerank([("a cat", text) for text in texts]),
    "instructed": lambda at: lambda texts: causal(at).rerank([(text, "a") for text in texts], instruction="Judge."),
    "sparse": lambda at: _sparse(with_a_token_more(save_tiny_splade(at / "sparse", at / "bare"))),
    "score head": lambda at: _head(with_a_token_more(save_tiny_score_head(at / "head"))),
}


def _sparse(folder: Path) -> Callable[[list[str]], Any]:
    return load_matcher(SparseModel, "--model", EncoderConfig(base=str(folder)), CPU, FLOAT).encode


def _head(folder: Path) -> Callable[[list[str]], Any]:
    model = load_score_head(folder, 300, CPU, FLOAT)
    return lambda texts: model.rerank_ids(model.pair_ids([("a", text) for text in texts]))


@pytest.mark.parametrize("kind", READERS)
def test_a_text_with_a_token_without_an_embedding_is_named_by_its_index(tmp_path: Path, kind: str) -> None:
    read = READERS[kind](tmp_path)
    read(["a cat", "a dog"])
    with pytest.raises(InputError, match=r"the text holds the token .*, and the model has embeddings for") as caught:
        read(["a cat", "a dog", "an <unused> word"])
    assert caught.value.index == 2


CLASSIFIER = "AutoModelForSequenceClassification"


def needs_code(folder: Path, auto: str) -> Path:
    """A folder whose model is a class of code beside it, which ends the test if it runs."""
    file = folder / "config.json"
    settings = json.loads(file.read_text())
    settings["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig", auto: "modeling_own.Own"}
    settings |= {"model_type": "own", "architectures": [f"Own{auto.removeprefix('AutoModel')}"]}
    file.write_text(json.dumps(settings))
    for name in ("configuration_own.py", "modeling_own.py"):
        (folder / name).write_text("raise SystemExit('it ran')")
    return folder


@pytest.mark.parametrize(
    ("auto", "save", "read", "key"),
    [
        ("AutoModel", save_tiny_mlm, load, "encoder"),
        (
            "AutoModelForCausalLM",
            save_tiny_model,
            lambda at: load_base(ModelConfig(base=str(at)), CPU, FLOAT),
            "model",
        ),
        (
            "AutoModelForSequenceClassification",
            save_tiny_cross_encoder,
            lambda at: load_cross_encoder(at, CPU),
            "model",
        ),
        ("AutoModelForMaskedLM", save_tiny_mlm, _sparse, "model"),
        (CLASSIFIER, save_tiny_score_head, _head, "model"),
    ],
    ids=["encoder", "causal", "cross-encoder", "sparse", "score head"],
)
def test_a_model_that_needs_its_own_code_names_the_setting(
    tmp_path: Path, auto: str, save: Callable[[Path], Path], read: Callable[[Path], Any], key: str
) -> None:
    folder = needs_code(save(tmp_path / "own"), auto)
    with pytest.raises(DataError, match=rf"\bset {key}\.trust_remote_code=true"), torch.no_grad():
        read(folder)
