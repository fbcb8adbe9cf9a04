"""An embedder without weights: words counted into a few dimensions, so that cosines can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from unimoe.core.errors import InputError
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors, refuse_zero_vectors


class WordEmbedder(Embedder):
    """Counts the words of a vocabulary, one dimension each; a text without any of them has no embedding.

    Attributes:
        embedded: number of texts so far, by kind.
        fail_after: documents after which a call ends in an error, as a killed run does; null for never.
    """

    base_identity = "words@0123456789abcdef"
    prompt_name = "bare@fedcba9876543210"
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, vocabulary: Sequence[str], *, fail_after: int | None = None) -> None:
        self._places = {word: place for place, word in enumerate(vocabulary)}
        self.embedded: dict[str, int] = {"query": 0, "document": 0, "plain": 0}
        self.fail_after = fail_after

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        max_length: int | None = None,
        advance: Advance | None = None,
        **_: Any,
    ) -> Vectors:
        """As the protocol has it; ``max_length`` counts words, and the word ``nan`` spoils a vector."""
        if self.fail_after is not None and self.embedded["document"] >= self.fail_after:
            raise KeyboardInterrupt
        vectors = np.zeros((len(texts), len(self._places)), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.split()[:max_length]:
                if word == "nan":
                    raise InputError(row, "the embedding is not finite; try model.dtype float32")
                if word in self._places:
                    vectors[row, self._places[word]] += 1.0
        refuse_zero_vectors(vectors)
        self.embedded[kind] += len(texts)
        if advance:
            advance(len(texts))
        unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit
