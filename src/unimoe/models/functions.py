"""Functions of a user's own in place of a model: from pairs of texts to scores, or from texts to vectors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from unimoe.config import Batches
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.reranker import Reranker, TextPair

PairScorer = Callable[[list[TextPair]], Sequence[float] | NDArray[np.floating]]
"""Takes the ``(query, document)`` texts of one query and returns a score for each, higher for more relevant."""

TextEncoder = Callable[..., ArrayLike]
"""From a list of N texts, and their ``kind`` where it has such a parameter, to vectors ``(N, D)``."""


class FunctionReranker(Reranker):
    """Scores pairs by a function from (query, document) pairs of texts to a score for each.

    It is called with all candidates of one query at a time, so that it may compare them with each other.
    """

    def __init__(self, function: PairScorer) -> None:
        self._function = function

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Call the function; a DataError where it returns something else than a number for each pair."""
        found: Any = self._function(list(prepared))
        try:
            given = found.detach().cpu().double() if isinstance(found, torch.Tensor) else found
            values = np.asarray(given)
            if np.ma.is_masked(found) or values.dtype.kind not in "biufO":  # text or complex numbers
                raise TypeError
            scores = values.astype(np.float64)
        except (TypeError, ValueError, RuntimeError):  # the last: a list of tensors that require a gradient
            raise DataError(f"the reranker returned {type(found).__name__}; return a number for each pair") from None
        if scores.ndim != 1:
            raise DataError(f"the reranker returned scores of shape {scores.shape}; return a number for each pair")
        if advance:
            advance(len(prepared))
        return list(scores.tolist())


class FunctionEmbedder(Embedder):
    """Embeds texts by a function, and scales its vectors to unit length.

    A function with a parameter ``kind`` gets ``"query"`` or ``"document"`` there.
    """

    device, dtype = torch.device("cpu"), torch.float32  # of the vectors
    place, prompt_name = "as the function chooses", "none"

    def __init__(self, function: TextEncoder, identity: str) -> None:
        self._function, self.base_identity, self._width = function, identity, 0
        try:
            self._reads_kind = "kind" in inspect.signature(function).parameters
        except ValueError:  # a compiled function may have no signature
            self._reads_kind = False

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        advance: Advance | None = None,
        **_: Unpack[Batches],
    ) -> Vectors:
        """Call the function once with all texts; a DataError where it returns something else than their vectors."""
        if max_length is not None:
            raise UsageError("a function cuts texts itself; leave retrieval.query_length and document_length null")
        asked = [f"{prefix or ''}{text}" for text in texts]
        found: Any = self._function(asked, kind=kind) if self._reads_kind else self._function(asked)
        vectors: NDArray[np.float64] = np.empty(0)
        with suppress(TypeError, ValueError):  # rows of several lengths, or no numbers
            given = found.detach().cpu().double() if isinstance(found, torch.Tensor) else found
            vectors = np.asarray(given, dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(texts) or vectors.shape[1] != (self._width or vectors.shape[1]):
            wanted = f"an array of numbers ({len(texts)}, {self._width or 'D'}) for {len(texts)} texts"
            raise DataError(f"the encoder returned {type(found).__name__} {np.shape(vectors)}; return {wanted}")
        self._width = vectors.shape[1]
        if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise InputError(int(bad[0]), "the embedding is not finite")
        refuse_zero_vectors(vectors.astype(np.float32))
        unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        if advance:
            advance(len(texts))
        return unit
