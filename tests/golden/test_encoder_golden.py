"""Encoders against sentence-transformers in float32, and pooling against the definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


def sentence_transformer(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def expected(folder: Path, texts: list[str], **settings: Any) -> Any:
    vectors = sentence_transformer(folder).encode(texts, **settings)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.shape == theirs.shape
    assert (ours * theirs).sum(axis=1).min() > 0.99999
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


class TestTheBundledModel:
    def test_has_the_vectors_of_sentence_transformers(self) -> None:
        encoder = load(BUNDLED_ENCODER)
        assert encoder.max_length == 256
        assert encoder.base_identity.startswith(f"{BUNDLED_ENCODER}@")
        assert_same(encoder.encode(TEXTS), expected(bundled_encoder_folder(BUNDLED_ENCODER), TEXTS))

    def test_a_shorter_length_is_sentence_transformers_own(self) -> None:
        peer = sentence_transformer(bundled_encoder_folder(BUNDLED_ENCODER))
        peer.max_seq_length = 16
        assert_same(load(BUNDLED_ENCODER, max_length=16).encode(TEXTS), peer.encode(TEXTS))


class TestPooling:
    """Mean, first and last state by hand: transformers' forward of one text at a time."""

    @pytest.mark.parametrize(
        ("kind", "pooling"), [("bert", "mean"), ("xlm-roberta", "cls"), ("mpnet", "last"), ("modernbert", "mean")]
    )
    def test_is_what_its_name_says(self, tmp_path: Path, kind: str, pooling: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = save_tiny_encoder(tmp_path / kind, kind)
        model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        texts = [text for text in TEXTS if len(text) < 60]
        by_hand = []
        for text in texts:
            with torch.no_grad():
                states = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
            vector = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling].numpy()
            by_hand.append(vector / np.linalg.norm(vector))
        ours = load(folder, pooling=pooling).encode(texts)
        np.testing.assert_allclose(ours, np.stack(by_hand), atol=2e-6)

    @pytest.mark.parametrize("kind", ["bert", "mpnet"])
    @pytest.mark.parametrize("pooling", ["mean", "lasttoken", "weightedmean", ("cls", "mean_sqrt_len_tokens", "max")])
    def test_is_read_from_the_folder(self, tmp_path: Path, kind: str, pooling: Any) -> None:
        # Room for the positions that RoBERTa and MPNet reserve, which sentence-transformers does not see.
        bare = save_tiny_encoder(tmp_path / "bare", kind, max_position_embeddings=POSITIONS + 2)
        folder = save_sentence_transformer(bare, tmp_path / "st", pooling=pooling)
        assert_same(load(folder).encode(TEXTS), expected(folder, TEXTS))

    def test_may_leave_the_prompt_out(self, tmp_path: Path) -> None:
        bare = save_tiny_encoder(tmp_path / "bare")
        prompts = {"query": "query: a ", "document": ""}
        folder = save_sentence_transformer(bare, tmp_path / "st", prompts=prompts)
        pooling = folder / "1_Pooling" / "config.json"
        whole = load(folder).encode(TEXTS[3:], kind="query")
        pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
        ours = load(folder).encode(TEXTS[3:], kind="query")
        theirs = sentence_transformer(folder).encode_query(TEXTS[3:], normalize_embeddings=True)
        assert_same(ours, theirs)
        assert np.abs(ours - whole).max() > 0.01


class TestModules:
    def test_dense_and_normalize_in_any_order(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        bare = save_tiny_encoder(tmp_path / "bare")
        modules = [Dense(64, 24), Normalize(), Dense(24, 8, bias=False, activation_function=torch.nn.Identity())]
        folder = save_sentence_transformer(bare, tmp_path / "st", *modules)
        vectors = load(folder).encode(TEXTS)
        assert vectors.shape == (len(TEXTS), 8)
        assert_same(vectors, expected(folder, TEXTS))

    def test_prompts_are_those_of_encode_query_and_encode_document(self, tmp_path: Path) -> None:
        bare = save_tiny_encoder(tmp_path / "bare")
        prompts = {"query": "query ", "document": "passage "}
        folder = save_sentence_transformer(bare, tmp_path / "st", prompts=prompts)
        ours, peer = load(folder), sentence_transformer(folder)
        for kind, theirs in (("query", peer.encode_query), ("document", peer.encode_document), ("plain", peer.encode)):
            vectors = theirs(TEXTS)
            unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            assert_same(ours.encode(TEXTS, kind=kind), unit)  # type: ignore[arg-type]

    def test_a_model_of_dot_products_ranks_by_them(self, tmp_path: Path) -> None:
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

    @pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
    def test_a_similarity_that_dense_search_cannot_compute_is_refused(self, tmp_path: Path, similarity: str) -> None:
        bare = save_tiny_encoder(tmp_path / "bare")
        folder = save_sentence_transformer(bare, tmp_path / "st", similarity_fn_name=similarity)
        with pytest.raises(DataError, match=f"similarity_fn_name is {similarity}, and dense search compares by cosine"):
            load(folder)

    def test_vectors_are_cut_to_the_folder_s_truncate_dim(self, tmp_path: Path) -> None:
        folder = save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "st", truncate_dim=20)
        vectors = load(folder).encode(TEXTS)
        assert vectors.shape == (len(TEXTS), 20)
        assert_same(vectors, expected(folder, TEXTS))

    @pytest.mark.parametrize("save", [save_static_encoder, save_word_encoder])
    def test_embeddings_without_a_transformer(self, tmp_path: Path, save: Callable[[Path], Path]) -> None:
        folder = save(tmp_path / "st")
        texts = ["the cat sat on the mat", "a dog", "rain " * 30, "an old house and a roof of it"]
        assert_same(load(folder).encode(texts), expected(folder, texts))

    def test_routes_of_queries_and_documents(self, tmp_path: Path) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Router

        whole = sentence_transformer(save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "st"))
        static = sentence_transformer(save_static_encoder(tmp_path / "static"))
        widened = Dense(24, 64)
        router = Router.for_query_document([static[0], widened], [whole[0], whole[1]])
        SentenceTransformer(modules=[router], device="cpu").save_pretrained(str(tmp_path / "router"))
        texts = ["the cat sat on the mat", "a dog", "rain " * 30]
        ours, peer = load(tmp_path / "router"), sentence_transformer(tmp_path / "router")
        assert_same(ours.encode(texts, kind="query"), peer.encode_query(texts, normalize_embeddings=True))
        assert_same(ours.encode(texts, kind="document"), peer.encode_document(texts, normalize_embeddings=True))

    def test_a_causal_model_with_last_token_pooling(self, tmp_path: Path) -> None:
        bare = save_tiny_decoder(tmp_path / "bare")
        folder = save_sentence_transformer(bare, tmp_path / "st", pooling="lasttoken")
        encoder = load(folder)
        texts = [text for text in TEXTS if len(text) < 60]
        assert_same(encoder.encode(texts), expected(folder, texts))
