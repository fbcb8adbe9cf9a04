"""Where the vectors of a training come from: the whole encoder, or a frozen one whose work is done once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.errors import DataError, InputError
from unimoe.models.embedder import Advance, TextKind
from unimoe.retrieval.embeddings import cached_embeddings
from unimoe.studies.biencoder.training.model import BiEncoder
from unimoe.studies.common.splits import Splits

Texts = Mapping[str, str]
"""Id to text."""


def cached_texts(splits: Splits) -> dict[TextKind, Texts]:
    """What a frozen base embeds: the corpus and the judged queries of all parts, so that the cache serves them all."""
    queries = {key: part.queries[key] for part in splits for key in part.qrels}
    return {"query": queries, "document": {key: text.full_text for key, text in splits.train.corpus.items()}}


class Source(Protocol):
    """Vectors of texts: with gradients for a batch, without for a whole corpus."""

    def inputs(self, kind: TextKind, texts: Texts) -> list[Any]:
        """What ``embed`` takes, for each text; its ``len`` orders texts by length."""

    def embed(self, inputs: Sequence[Any]) -> Tensor:
        """Unit vectors ``(N, D)`` in one forward pass; gradients flow if enabled."""

    def all_vectors(self, kind: TextKind, texts: Texts, advance: Advance | None = None) -> NDArray[np.float32]:
        """Unit vectors ``(N, D)`` as evaluation makes them, in the order of ``texts``."""


class EncoderSource:
    """Runs the encoder for every batch.

    Args:
        model: in training.
        dtype: of the forward pass; weights stay float32.
    """

    def __init__(self, model: BiEncoder, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype

    def inputs(self, kind: TextKind, texts: Texts) -> list[Any]:
        """Token ids."""
        try:
            return self._model.token_ids(list(texts.values()), kind)
        except InputError as error:
            raise DataError(f"{kind} {list(texts)[error.index]!r}: {error.reason}") from None

    def embed(self, inputs: Sequence[Any]) -> Tensor:
        """A forward pass over padded token ids."""
        self._model.train()
        with self._autocast():
            vectors: Tensor = self._model(inputs)
        return vectors

    def all_vectors(self, kind: TextKind, texts: Texts, advance: Advance | None = None) -> NDArray[np.float32]:
        """Embedded with the current weights."""
        embedder = self._model.embedder()
        try:
            with self._autocast():
                return embedder.encode(
                    list(texts.values()), kind=kind, max_length=self._model.lengths[kind], advance=advance
                )
        except InputError as error:
            raise DataError(f"{kind} {list(texts)[error.index]!r}: {error.reason}") from None

    def _autocast(self) -> torch.autocast:
        low = self._dtype != torch.float32
        return torch.autocast(self._model.device.type, dtype=torch.bfloat16, enabled=low)


class FrozenSource:
    """Embeds all texts with the frozen base once, in the user's cache, and applies the linear layer.

    Args:
        model: whose base is frozen.
        texts: of each kind, all that will be asked for.
        advance: called with the number of texts done.

    Raises:
        DataError: an embedding is not finite or zero, which names the id.
    """

    def __init__(self, model: BiEncoder, texts: Mapping[TextKind, Texts], advance: Advance | None = None) -> None:
        self._model = model
        model.eval()
        self._base = {
            kind: cached_embeddings(model.base, some, kind, max_length=model.lengths[kind], advance=advance)
            for kind, some in texts.items()
        }

    def inputs(self, kind: TextKind, texts: Texts) -> list[Any]:
        """The base's vectors."""
        return list(torch.from_numpy(self._base[kind].of(list(texts))))

    def embed(self, inputs: Sequence[Any]) -> Tensor:
        """The linear layer over what the base gave."""
        return self._model.projected(torch.stack(list(inputs)).to(self._model.device))

    @torch.no_grad()
    def all_vectors(self, kind: TextKind, texts: Texts, advance: Advance | None = None) -> NDArray[np.float32]:
        """Likewise, for many."""
        base = torch.from_numpy(self._base[kind].of(list(texts)))
        vectors: NDArray[np.float32] = self._model.projected(base.to(self._model.device)).cpu().numpy()
        if advance:
            advance(len(texts))
        return vectors
