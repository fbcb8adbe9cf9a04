"""Embeddings that come from files, checked: ids, values, and the dimensions, which tell the wrong encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.errors import DataError

Floats = NDArray[np.float32]

_NAMED = 3
"""Ids that a message names of a longer list."""

ENCODERS = {
    "captions": {
        384: "all-MiniLM-L6-v2, e5-small or bge-small",
        512: "a CLIP ViT-B text tower",
        768: "all-mpnet-base-v2, bert-base, roberta-base, e5-base or a CLIP ViT-L text tower",
        1024: "roberta-large-nli-stsb-mean-tokens, bert-large, e5-large or bge-m3",
        1536: "text-embedding-3-small, or DINOv2 giant, which embeds images",
        3072: "text-embedding-3-large",
    },
    "images": {
        384: "DINOv2 small",
        512: "a CLIP ViT-B image tower or ResNet-18",
        768: "DINOv2 base, ViT-B or a CLIP ViT-L image tower",
        1024: "DINOv2 large, ViT-L, or roberta-large, which embeds texts",
        1536: "DINOv2 giant",
        2048: "ResNet-50",
        4096: "VGG-16's last hidden layer",
    },
}
"""Embedding dimensions by what gives them, to name the encoder that is likely wrong."""


def checked_vectors(vectors: NDArray[Any], ids: Sequence[str], source: str, what: str) -> Floats:
    """Embeddings as ``(N, D)`` float32, after a look at shape, ids and values.

    Raises:
        DataError: not a matrix of numbers, another number of ids, an id twice, or a vector zero or not finite.
    """
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        raise DataError(
            f"{source}: {what} embeddings have shape {vectors.shape} and type {vectors.dtype}; "
            "they must be a matrix of numbers, a row for each"
        )
    if len(ids) != len(vectors):
        raise DataError(f"{source}: {len(ids):,} {what} ids for {len(vectors):,} {what} embeddings; write both anew")
    _refuse_twice(ids, source, what)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        floats: Floats = np.ascontiguousarray(vectors, dtype=np.float32)
        norms = np.einsum("nd,nd->n", floats, floats, dtype=np.float64)
    for bad, why in ((~np.isfinite(norms), "not finite"), (norms == 0, "zero")):
        if bad.any():
            row = int(bad.argmax())
            others = f", and {bad.sum() - 1:,} others" if bad.sum() > 1 else ""
            raise DataError(
                f"{source}: the embedding of {what} {ids[row]!r} is {why}{others}; embed it again, or remove it"
            )
    return floats


def refuse_dimensions(found: int, expected: int, side: str, source: str, said_by: str) -> None:
    """Refuse embeddings of another dimension than expected, with the encoders that give either.

    Args:
        found: dimensions there are.
        expected: dimensions there should be.
        side: ``captions`` or ``images``.
        source: the file and key.
        said_by: who expects it.

    Raises:
        DataError: they differ.
    """
    if found != expected:
        raise DataError(
            f"{source}: {found} dimensions{_encoder(side, found)}, expected {expected}{_encoder(side, expected)} by "
            f"{said_by}: the {side} were probably embedded with the wrong encoder; "
            "embed them again, or correct the expected dimensions"
        )


def some(ids: Sequence[str]) -> str:
    """The first few of some ids, for a message."""
    return ", ".join(ids[:_NAMED]) + ", ..." * (len(ids) > _NAMED)


def _encoder(side: str, dimensions: int) -> str:
    known = ENCODERS[side].get(dimensions)
    return f" (as {known})" if known else ""


def _refuse_twice(ids: Sequence[str], source: str, what: str) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: set[str] = set()
    for key in ids:
        if key in seen:
            raise DataError(f"{source}: {what} id {key!r} stands twice; keep one, or name them apart")
        seen.add(key)
