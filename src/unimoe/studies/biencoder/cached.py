"""A frozen base whose vectors are in the cache, with the linear layer that was trained over it, as an embedder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from unimoe.models.embedder import Advance, TextKind, Vectors
from unimoe.models.encoder import SentenceEncoder, dense, normalize
from unimoe.retrieval.embeddings import cached_embeddings
from unimoe.studies.biencoder.training.checkpoint import dense_folder


class CachedEmbedder:
    """Takes the base's vectors of known texts from the cache; an ``Embedder``.

    Its vectors are those of the checkpoint but for rounding: the linear layer has no bias, so the length of what it is
    given does not matter.

    Args:
        base: the frozen encoder.
        texts: id to text of each kind, embedded now where the cache lacks them.
        lengths: tokens of a text, by kind.
        checkpoint: of the linear layer; null for the base alone.
    """

    def __init__(
        self,
        base: SentenceEncoder,
        texts: Mapping[TextKind, Mapping[str, str]],
        lengths: Mapping[TextKind, int | None],
        checkpoint: Path | None = None,
    ) -> None:
        self._base = base
        self._head = None if checkpoint is None else dense(dense_folder(checkpoint), base.device)
        self.base_identity, self.prompt_name = base.base_identity, base.prompt_name
        self._known: dict[TextKind, dict[str, Vectors]] = {}
        for kind, some in texts.items():
            rows = cached_embeddings(base, some, kind, max_length=lengths[kind]).of(list(some))
            self._known[kind] = dict(zip(some.values(), rows, strict=True))

    @property
    def device(self) -> torch.device:
        """The base's."""
        return self._base.device

    @property
    def dtype(self) -> torch.dtype:
        """The base's."""
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
        """Embed texts; arguments, result and errors as in ``Embedder``. Only those of no known text run the base."""
        known = {} if prefix is not None else self._known.get(kind, {})
        new = list(dict.fromkeys(text for text in texts if text not in known))
        rows = self._base.encode(
            new, kind=kind, prefix=prefix, max_length=max_length, token_budget=token_budget, batch_size=batch_size
        )
        here = dict(zip(new, rows, strict=True))
        vectors = np.stack([known[text] if text in known else here[text] for text in texts])
        if self._head is not None:
            vectors = normalize(self._head(torch.from_numpy(vectors).to(self.device))).cpu().numpy()
        if advance:
            advance(len(texts))
        return vectors
