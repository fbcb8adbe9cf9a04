"""Sliding windows at least as long as every text: the model is computed as one without a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_encoders import load, save_tiny_encoder
from support.tiny_models import tiny_model, tiny_tokenizer

from unimoe.config import PromptConfig
from unimoe.models.base import BaseModel
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH = 512
PAIRS = [("which animal purrs", text) for text in ("a cat does", "a dog barks at the cat", "cats", "the sun is warm")]
TEXTS = ["a cat", "the dog barks at the cat", "sun", "the warm sun and the cold wind"]


def counted(model: Any) -> list[int]:
    """The tokens of each forward pass from now on, padding included."""
    tokens: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: tokens.append(inputs[0].numel()))
    return tokens


def reranked(kind: str, **settings: Any) -> tuple[Any, int]:
    """The scores of pairs with one query, and how many tokens were computed for them."""
    base = BaseModel(tiny_model(kind, **settings).eval(), tiny_tokenizer(), "tiny@1")
    model = UnimodelForExp1(base, PromptConfig(template="plain", instruction="Judge"), LENGTH).eval()
    tokens = counted(base.model)
    return model.rerank(PAIRS, output="gap"), sum(tokens)


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_a_window_as_long_as_the_longest_pair_lets_pairs_share_a_query(kind: str) -> None:
    mixed = {"use_sliding_window": True, "max_window_layers": 1} if kind == "qwen2" else {}
    plain, shared = reranked(kind, sliding_window=None)
    wide, tokens = reranked(kind, sliding_window=LENGTH, **mixed)
    np.testing.assert_array_equal(wide, plain)
    assert tokens == shared
    narrow, every = reranked(kind, sliding_window=LENGTH - 1, **mixed)
    np.testing.assert_allclose(narrow, plain, atol=1e-3)  # these pairs are shorter
    assert every > 1.5 * shared


def test_a_window_as_long_as_the_longest_text_changes_no_vector(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "mistral", num_key_value_heads=2, sliding_window=32)
    wide, narrow = load(folder, max_length=32), load(folder, max_length=40)
    np.testing.assert_allclose(wide.encode(TEXTS), narrow.encode(TEXTS), atol=1e-5)
