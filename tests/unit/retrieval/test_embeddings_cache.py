"""Embeddings in the cache: never those of another encoder, other texts, or another role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.heads import WordEmbedder

from unimoe.models.embedder import Vectors
from unimoe.retrieval.embeddings import cached_embeddings

pytestmark = pytest.mark.usefixtures("tmp_cache")
TEXTS = {"b": "topic1 all", "a": "topic2 all noise1", "c": "topic3"}


class Counting(WordEmbedder):
    """Counts the texts it embeds."""

    done = 0

    def encode(self, texts: Sequence[str], **options: Any) -> Vectors:
        self.done += len(texts)
        return super().encode(texts, **options)


def test_texts_are_embedded_once() -> None:
    embedder = Counting()
    first = cached_embeddings(embedder, TEXTS, "document")
    again = cached_embeddings(embedder, dict(sorted(TEXTS.items())), "document")
    assert embedder.done == 3
    assert first.ids == again.ids == ["a", "b", "c"]
    assert np.array_equal(first.vectors, again.vectors)


@pytest.mark.parametrize("change", ["encoder", "prompt", "dtype", "kind", "length", "text", "id"])
def test_whatever_changes_vectors_makes_them_anew(change: str) -> None:
    cached_embeddings(WordEmbedder(), TEXTS, "document")
    other = Counting(seed=1) if change == "encoder" else Counting()
    if change == "prompt":
        other.prompt_name = "words@1"
    if change == "dtype":
        other.dtype = torch.bfloat16
    texts = TEXTS | {"text": {"a": "topic9"}, "id": {"d": "topic3"}}.get(change, {})
    cached_embeddings(
        other, texts, "query" if change == "kind" else "document", max_length=7 if change == "length" else None
    )
    assert other.done == len(texts)
