"""Encoders against sentence-transformers in float32, and pooling against the definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from support.tiny_encoders import (
    POSITIONS,
    load,
    save_sentence_transformer,
    save_static_encoder,
    save_tiny_decoder,
    save_tiny_encoder,
    save_word_encoder,
)
from transformers import AutoModel, AutoTokenizer

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.models.bundled import bundled_encoder_folder

TEXTS = [
    "the cat sat on the mat",
    "",
    " ",
    "a",
    "a dog ran over the roof of the old house and sat on the mat",
    "ein Haus, une maison, 집, 家, бабушка, \u00e9\u0301 e\u0301",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 and symbols \u2211\u222b \u00b5g/mL",
    "[CLS] [MASK] tokens [SEP] in a text [PAD]",
    "UPPER lower MiXeD 1234.5e-6 snake_case",
    "rain " * 1000,
    "word" * 300,
    "line one\nline two\tand a tab",
]
SHORT = [text for text in TEXTS if len(text) < 60]
KNOWN = ["the cat sat on the mat", "a dog", "rain " * 30, "an old house and a roof of it"]
"""Texts with a word that every tokenizer knows."""


def sentence_transformer(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu")


def expected(folder: Path, texts: list[str]) -> Any:
    vectors = sentence_transformer(folder).encode(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.shape == theirs.shape
    assert (ours * theirs).sum(axis=1).min() > 0.99999
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_bundled_model_has_the_vectors_of_sentence_transformers_at_both_lengths() -> None:
    encoder, peer = load(BUNDLED_ENCODER), sentence_transformer(bundled_encoder_folder(BUNDLED_ENCODER))
    assert encoder.max_length == 256
    assert_same(encoder.encode(TEXTS), peer.encode(TEXTS))
    peer.max_seq_length = 16
    assert_same(load(BUNDLED_ENCODER, max_length=16).encode(TEXTS), peer.encode(TEXTS))


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "mean"), ("xlm-roberta", "cls"), ("mpnet", "last"), ("modernbert", "mean")]
)
def test_pooling_is_the_mean_the_first_or_the_last_state_of_one_text_at_a_time(
    tmp_path: Path, kind: str, pooling: str
) -> None:
    folder = save_tiny_encoder(tmp_path / kind, kind)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    by_hand = []
    for text in SHORT:
        with torch.no_grad():
            states = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        vector = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling].numpy()
        by_hand.append(vector / np.linalg.norm(vector))
    np.testing.assert_allclose(load(folder, pooling=pooling).encode(SHORT), np.stack(by_hand), atol=2e-6)


def dense(folder: Path) -> Path:
    torch.manual_seed(0)
    modules = [Dense(64, 24), Normalize(), Dense(24, 8, bias=False, activation_function=torch.nn.Identity())]
    return save_sentence_transformer(save_tiny_encoder(folder / "bare"), folder / "st", *modules)


def pooled(pooling: Any, kind: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        # Room for the positions that RoBERTa and MPNet reserve, which sentence-transformers does not see.
        bare = save_tiny_encoder(folder / "bare", kind, max_position_embeddings=POSITIONS + 2)
        return save_sentence_transformer(bare, folder / "st", pooling=pooling)

    return save


FOLDERS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    **{
        f"bert {pooling}": (pooled(pooling, "bert"), TEXTS)
        for pooling in ("lasttoken", "weightedmean", ("cls", "mean_sqrt_len_tokens", "max"))
    },
    "mpnet mean": (pooled("mean", "mpnet"), TEXTS),
    "dense and normalize": (dense, TEXTS),
    "cut to truncate_dim": (
        lambda at: save_sentence_transformer(save_tiny_encoder(at / "bare"), at / "st", truncate_dim=20),
        TEXTS,
    ),
    "static": (save_static_encoder, KNOWN),
    "words": (save_word_encoder, KNOWN),
    "causal": (
        lambda at: save_sentence_transformer(save_tiny_decoder(at / "bare"), at / "st", pooling="lasttoken"),
        SHORT,
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_sentence_transformers_has_its_vectors(tmp_path: Path, name: str) -> None:
    save, texts = FOLDERS[name]
    folder = save(tmp_path)
    vectors = load(folder).encode(texts)
    assert_same(vectors, expected(folder, texts))
    if name == "cut to truncate_dim":
        assert vectors.shape == (len(texts), 20)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_are_those_of_encode_query_and_encode_document_and_may_be_left_out_of_the_pooling(
    tmp_path: Path, include_prompt: bool
) -> None:
    prompts = {"query": "query: a ", "document": "passage ", "other": "list "}
    bare = save_tiny_encoder(tmp_path / "bare")
    folder = save_sentence_transformer(bare, tmp_path / "st", prompts=prompts, default_prompt_name="other")
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": include_prompt}))
    ours, peer = load(folder), sentence_transformer(folder)
    texts = TEXTS[3:]
    for kind, theirs in (("query", peer.encode_query), ("document", peer.encode_document), ("plain", peer.encode)):
        assert_same(ours.encode(texts, kind=kind), theirs(texts, normalize_embeddings=True))  # type: ignore[arg-type]


def test_a_model_of_dot_products_ranks_by_them_and_one_of_distances_is_refused(tmp_path: Path) -> None:
    """As TAS-B, Contriever and multi-qa-mpnet-base-dot do: vectors keep their lengths."""
    bare = save_tiny_encoder(tmp_path / "bare")
    folder = save_sentence_transformer(bare, tmp_path / "st", similarity_fn_name="dot")
    ours, theirs = load(folder), sentence_transformer(folder)
    vectors = ours.encode(TEXTS)
    np.testing.assert_allclose(vectors, theirs.encode(TEXTS), atol=1e-5)
    assert np.ptp(np.linalg.norm(vectors, axis=1)) > 1e-3
    scores = MTEBEncoderWrapper(ours).similarity(vectors[:4], vectors[4:])
    torch.testing.assert_close(scores, theirs.similarity(vectors[:4], vectors[4:]))
    assert ours.prompt_name != load(bare).prompt_name
    folder = save_sentence_transformer(bare, tmp_path / "euclidean", similarity_fn_name="euclidean")
    with pytest.raises(DataError, match="similarity_fn_name is euclidean, and dense search compares by cosine"):
        load(folder)


def test_routes_of_queries_and_documents(tmp_path: Path) -> None:
    whole = sentence_transformer(save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "st"))
    static = sentence_transformer(save_static_encoder(tmp_path / "static"))
    router = Router.for_query_document([static[0], Dense(24, 64)], [whole[0], whole[1]])
    SentenceTransformer(modules=[router], device="cpu").save_pretrained(str(tmp_path / "router"))
    ours, peer = load(tmp_path / "router"), sentence_transformer(tmp_path / "router")
    assert_same(ours.encode(KNOWN, kind="query"), peer.encode_query(KNOWN, normalize_embeddings=True))
    assert_same(ours.encode(KNOWN, kind="document"), peer.encode_document(KNOWN, normalize_embeddings=True))
