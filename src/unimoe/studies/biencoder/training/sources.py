"""Sources of vectors: the encoder in training, or a frozen base whose embeddings are computed once and cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.modules import Dense
from torch import Tensor, nn

from unimoe.core.errors import named_inputs
from unimoe.models.embedder import Advance, TextKind, Vectors
from unimoe.models.encoder import SentenceEncoder
from unimoe.retrieval.embeddings import cached_embeddings
from unimoe.studies.biencoder.training.checkpoint import DENSE
from unimoe.studies.biencoder.training.model import BiEncoder
from unimoe.studies.common.splits import Splits

Texts = Mapping[str, str]
"""Id to text."""


def cached_texts(splits: Splits) -> dict[TextKind, Texts]:
    """Return the texts that a frozen base embeds: the corpus, and the judged queries of train, dev and test."""
    queries = {key: part.queries[key] for part in splits for key in part.qrels}
    return {"query": queries, "document": {key: text.full_text for key, text in splits.train.corpus.items()}}


class Source(Protocol):
    """Embeds texts: with gradients for a batch, without for a whole corpus."""

    def inputs(self, kind: TextKind, texts: Texts) -> list[Any]:
        """Return the input of ``embed`` for each text; its ``len`` orders texts by length."""

    def embed(self, inputs: Sequence[Any]) -> Tensor:
        """Return unit vectors ``(N, D)`` from one forward pass; gradients flow if enabled."""

    def all_vectors(self, kind: TextKind, texts: Texts) -> NDArray[np.float32]:
        """Return unit vectors ``(N, D)`` as evaluation computes them, in the order of ``texts``."""


def _named(kind: TextKind, texts: Texts) -> AbstractContextManager[None]:
    return named_inputs(lambda index: f"{kind} {list(texts)[index]!r}")


class EncoderSource:
    """Runs the encoder for every batch, in a dtype; its weights stay float32."""

    def __init__(self, model: BiEncoder, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype

    def inputs(self, kind: TextKind, texts: Texts) -> list[Any]:
        """Return token ids."""
        with _named(kind, texts):
            return self._model.token_ids(list(texts.values()), kind)

    def embed(self, inputs: Sequence[Any]) -> Tensor:
        """Run a forward pass over padded token ids."""
        self._model.train()
        with self._autocast():
            vectors: Tensor = self._model(inputs)
        return vectors

    def all_vectors(self, kind: TextKind, texts: Texts) -> NDArray[np.float32]:
        """Embed with the current weights."""
        embedder = self._model.embedder()
        with _named(kind, texts), self._autocast():
            return embedder.encode(list(texts.values()), kind=kind, max_length=self._model.lengths[kind])

    def _autocast(self) -> torch.autocast:
        low = self._dtype != torch.float32
        return torch.autocast(self._model.device.type, dtype=torch.bfloat16, enabled=low)


class FrozenSource:
    """Embeds all texts of each kind with the frozen base once, in the user's cache, and applies the linear layer."""

    def __init__(self, model: BiEncoder, texts: Mapping[TextKind, Texts]) -> None:
        self._model = model
        self._base = {
            kind: cached_embeddings(model.base, some, kind, max_length=model.lengths[kind])
            for kind, some in texts.items()
        }

    def inputs(self, kind: TextKind, texts: Texts) -> list[Any]:
        """Return the vectors of the base."""
        return list(torch.from_numpy(self._base[kind].of(list(texts))))

    def embed(self, inputs: Sequence[Any]) -> Tensor:
        """Apply the linear layer to vectors of the base."""
        return self._model.projected(torch.stack(list(inputs)).to(self._model.device))

    @torch.no_grad()
    def all_vectors(self, kind: TextKind, texts: Texts) -> NDArray[np.float32]:
        """Apply the linear layer to the cached vectors."""
        base = torch.from_numpy(self._base[kind].of(list(texts)))
        vectors: NDArray[np.float32] = self._model.projected(base.to(self._model.device)).cpu().numpy()
        return vectors


class CachedEmbedder:
    """An ``Embedder`` for evaluation: the cached vectors of a frozen base, and the linear layer trained over it.

    Up to rounding, its vectors are those of the checkpoint: the linear layer has no bias, so it does not matter that
    the cached vectors have unit length. Without a checkpoint of the layer they are those of the base.
    """

    def __init__(
        self,
        base: SentenceEncoder,
        texts: Mapping[TextKind, Mapping[str, str]],
        lengths: Mapping[TextKind, int | None],
        checkpoint: Path | None = None,
    ) -> None:
        self._base = base
        self._head = None if checkpoint is None else Dense.load(str(checkpoint), subfolder=DENSE).to(base.device)
        self.base_identity, self.prompt_name = base.base_identity, base.prompt_name
        self._known: dict[TextKind, dict[str, Vectors]] = {}
        for kind, some in texts.items():
            rows = cached_embeddings(base, some, kind, max_length=lengths[kind]).of(list(some))
            self._known[kind] = dict(zip(some.values(), rows, strict=True))

    @property
    def device(self) -> torch.device:
        """The device of the base."""
        return self._base.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the base."""
        return self._base.dtype

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Embed texts; arguments, result and errors as in ``Embedder``. The base runs for unknown texts alone."""
        known = {} if prefix is not None else self._known.get(kind, {})
        new = list(dict.fromkeys(text for text in texts if text not in known))
        rows = self._base.encode(
            new, kind=kind, prefix=prefix, max_length=max_length, token_budget=token_budget, batch_size=batch_size
        )
        here = dict(zip(new, rows, strict=True))
        vectors = np.stack([known[text] if text in known else here[text] for text in texts])
        if self._head is not None:
            projected = self._head.linear(torch.from_numpy(vectors).to(self.device))
            vectors = nn.functional.normalize(projected, dim=-1).cpu().numpy()
        return vectors
