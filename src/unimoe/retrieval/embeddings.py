"""Embeds texts once: vectors are kept in the user's cache, under a hash of everything they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError
from unimoe.core.io import cache_dir, hash_json, hash_parts
from unimoe.data.collection import Document
from unimoe.models.embedder import Embedder, TextKind
from unimoe.retrieval.vector_store import encode_corpus


@dataclass(frozen=True)
class Embedded:
    """Embeddings by id.

    Attributes:
        ids: ascending.
        vectors: ``(N, D)`` of unit length, mapped from a file.
    """

    ids: list[str]
    vectors: NDArray[np.floating]

    def of(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of some ids, ``(n, D)`` float32, in memory.

        Raises:
            DataError: an id has none.
        """
        try:
            rows = [self._row[key] for key in ids]
        except KeyError as error:
            raise DataError(f"there is no embedding of {error}; embed it with the others") from None
        found: NDArray[np.float32] = np.asarray(self.vectors[rows], dtype=np.float32)
        return found

    @cached_property
    def _row(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self.ids)}


def cached_embeddings(
    embedder: Embedder,
    texts: Mapping[str, str],
    kind: TextKind,
    *,
    max_length: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Embedded:
    """Embed texts, or read them from the cache; a killed run is resumed.

    Args:
        embedder: a frozen encoder without adapters, which ``base_identity`` would not tell apart.
        texts: id to text.
        kind: which of the encoder's prefixes goes before them.
        max_length: tokens of one text; None for the encoder's own limit.
        advance: called with the number of texts done.

    Raises:
        DataError: there are no texts; an embedding is not finite or zero, which names the id.
    """
    fingerprint = embedding_fingerprint(embedder, kind, max_length)
    content = hash_parts(part for key in sorted(texts) for part in (key, texts[key]))
    store = encode_corpus(
        lambda batch: embedder.encode(batch, kind=kind, max_length=max_length),
        {key: Document("", text) for key, text in texts.items()},
        cache_dir("embeddings") / f"{fingerprint}-{content}",
        fingerprint=fingerprint,
        advance=advance,
    )
    return Embedded(store.ids, store.vectors)


def embedding_fingerprint(embedder: Embedder, kind: TextKind, max_length: int | None = None) -> str:
    """Return the hash of what vectors depend on besides the texts."""
    return hash_json([embedder.base_identity, embedder.prompt_name, str(embedder.dtype), kind, max_length])
