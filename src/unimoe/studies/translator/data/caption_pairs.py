"""Captions and the images they describe, as embeddings that are matched by image id, checked, and split by image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.io import hash_parts

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class CaptionPairs:
    """Captions with their images. Several captions may share an image; every image has at least one.

    Attributes:
        captions: ``(N, Dx)`` float32, finite, no row zero.
        caption_ids: N different ids.
        images: ``(M, Dy)`` float32, finite, no row zero; each image once.
        image_ids: M different ids.
        image_of: ``(N,)`` row of each caption's image.
        notes: what the source holds besides, a line for each kind.
    """

    captions: Floats
    caption_ids: list[str]
    images: Floats
    image_ids: list[str]
    image_of: Integers
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of captions."""
        return len(self.caption_ids)

    @cached_property
    def content_hash(self) -> str:
        """Content hash of everything except the notes."""
        arrays = (self.captions, self.images, self.image_of)
        ids = (str(len(self.caption_ids)), *self.caption_ids, *self.image_ids)
        return hash_parts([*ids, *(np.ascontiguousarray(array).tobytes() for array in arrays)])

    def subset(self, image_rows: NDArray[np.integer[Any]] | Sequence[int]) -> CaptionPairs:
        """Return different images, in the order given, with all their captions, in the order they have here."""
        rows = np.asarray(image_rows, dtype=np.int64)
        place = np.full(len(self.images), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        kept = np.flatnonzero(place[self.image_of] >= 0)
        return CaptionPairs(
            captions=self.captions[kept],
            caption_ids=[self.caption_ids[row] for row in kept],
            images=self.images[rows],
            image_ids=[self.image_ids[row] for row in rows],
            image_of=place[self.image_of[kept]],
        )


def split_by_image(pairs: CaptionPairs, fraction: float, seed: int) -> tuple[CaptionPairs, CaptionPairs]:
    """Split into (train, validation) by image, so that no image has captions on both sides, under no other id either.

    ``fraction`` is the share of the images for validation. Which ones depends on seed and ids, not on their order;
    equal vectors are one image, and go where the first of them goes.
    """
    images = len(pairs.image_ids)
    count = round(fraction * images) if 0 < fraction < 1 else 0
    by_id = np.array(sorted(range(images), key=pairs.image_ids.__getitem__), dtype=np.int64)
    order = by_id[np.random.default_rng(seed).permutation(images)].tolist()
    held_out: dict[bytes, bool] = {}
    for place, row in enumerate(order):
        held_out.setdefault(pairs.images[row].tobytes(), place < count)
    parts = [[row for row in order if held_out[pairs.images[row].tobytes()] is out] for out in (False, True)]
    if not all(parts):
        raise UsageError(
            f"{fraction:g} of {images:,} images leaves a part of the split empty; choose a fraction between 0 and 1 "
            "that gives both parts an image"
        )
    train, validation = (pairs.subset(sorted(rows)) for rows in parts)
    return train, validation


def equal_captions(train: CaptionPairs, held_out: CaptionPairs, does: str) -> list[str]:
    """Return the caveat of held-out captions with the vector of one of an image that ``does``: images are split."""
    known = {row.tobytes() for row in train.captions}
    shared = sum(row.tobytes() in known for row in held_out.captions)
    return [f"{shared:,} of {len(held_out):,} held-out captions equal one of an image that {does}"] if shared else []


def build_pairs(
    captions: NDArray[Any],
    caption_ids: Sequence[str],
    caption_images: Sequence[str | None],
    images: NDArray[Any],
    image_ids: Sequence[str],
    *,
    source: str,
    contradictions: Sequence[str] = (),
) -> CaptionPairs:
    """Match captions ``(N, Dx)`` and images ``(M, Dy)`` by image id; those without a counterpart are dropped.

    ``caption_images`` are the ids of the captions' images, None where it is unknown, as for ``contradictions``:
    captions for which two sources name different images. Messages name ``source``.
    """
    captions = checked_vectors(captions, caption_ids, source, "caption")
    images = checked_vectors(images, image_ids, source, "image")
    if len(caption_images) != len(caption_ids):
        raise DataError(f"{source}: {len(caption_images):,} images are named for {len(caption_ids):,} captions")
    row_of = {image_id: row for row, image_id in enumerate(image_ids)}
    found = np.array([-1 if name is None else row_of.get(name, -1) for name in caption_images], dtype=np.int64)
    kept = np.flatnonzero(found >= 0)
    if not len(kept):
        named = next((name for name in caption_images if name is not None), None)
        raise DataError(
            f"{source}: no caption has an image (captions name images such as {named!r}, "
            f"embeddings are of {image_ids[0]!r}); give captions and images of one data set"
        )
    described, image_of = np.unique(found[kept], return_inverse=True)
    others, excluded = np.setdiff1d(np.arange(len(images)), described).tolist(), {*contradictions}
    dropped = {
        "captions without an image": [
            key for key, row in zip(caption_ids, found, strict=True) if row < 0 and key not in excluded
        ],
        "images without captions": [image_ids[row] for row in others],
        "captions whose label and captions.txt name different images": contradictions,
    }
    return CaptionPairs(
        # Embeddings can take gigabytes: they are copied only where rows are dropped.
        captions=captions if len(kept) == len(captions) else captions[kept],
        caption_ids=[caption_ids[row] for row in kept.tolist()],
        images=images if len(described) == len(images) else images[described],
        image_ids=[image_ids[row] for row in described.tolist()],
        image_of=image_of,
        notes=tuple(f"{len(ids):,} {what}, left out ({first_few(ids)})" for what, ids in dropped.items() if ids),
    )


def checked_vectors(vectors: NDArray[Any], ids: Sequence[str], source: str, what: str) -> Floats:
    """Return embeddings as ``(N, D)`` float32."""
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        raise DataError(
            f"{source}: {what} embeddings have shape {vectors.shape} and type {vectors.dtype}; "
            "they must be a matrix of numbers, a row for each"
        )
    if len(ids) != len(vectors):
        raise DataError(f"{source}: {len(ids):,} {what} ids for {len(vectors):,} {what} embeddings; write both again")
    repeated = next((key for key, count in Counter(ids).items() if count > 1), None)
    if repeated is not None:
        raise DataError(f"{source}: {what} id {repeated!r} occurs twice; keep one, or name them apart")
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused below
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
