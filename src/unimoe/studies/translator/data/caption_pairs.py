"""Captions and the images they describe, as embeddings: what a cross-modal translator learns from and is judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.errors import DataError, UsageError
from unimoe.io import hash_parts
from unimoe.studies.translator.data.embedding_checks import Floats, checked_vectors, some

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Dropped:
    """What was left out of the pairs, by id.

    Attributes:
        captions_without_image: captions whose image has no embedding, or that name none.
        images_without_captions: images that no caption describes.
        contradictions: captions for which two sources name different images.
    """

    captions_without_image: tuple[str, ...] = ()
    images_without_captions: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each kind that there is, such as ``2 captions without an image, left out (a#0, a#1)``."""
        kinds = (
            ("captions without an image", self.captions_without_image),
            ("images without captions", self.images_without_captions),
            ("captions whose label and captions.txt name different images", self.contradictions),
        )
        return tuple(f"{len(ids):,} {what}, left out ({some(ids)})" for what, ids in kinds if ids)


@dataclass(frozen=True)
class CaptionPairs:
    """Captions with their images. Several captions may share an image; every image has one at least.

    Attributes:
        captions: ``(N, Dx)`` float32, finite, no row zero.
        caption_ids: theirs, N different ones.
        images: ``(M, Dy)`` float32, finite, no row zero; each image once.
        image_ids: theirs, M different ones.
        image_of: ``(N,)`` row of each caption's image.
        dropped: what the source held besides.
    """

    captions: Floats
    caption_ids: list[str]
    images: Floats
    image_ids: list[str]
    image_of: Rows
    dropped: Dropped = Dropped()

    def __len__(self) -> int:
        """Number of captions."""
        return len(self.caption_ids)

    @cached_property
    def content_hash(self) -> str:
        """Content hash of everything but what was dropped."""
        arrays = (self.captions, self.images, self.image_of)
        ids = (str(len(self.caption_ids)), *self.caption_ids, *self.image_ids)
        return hash_parts([*ids, *(np.ascontiguousarray(array).tobytes() for array in arrays)])

    def subset(self, image_rows: NDArray[np.integer[Any]] | Sequence[int]) -> CaptionPairs:
        """Some images, in the order given, with all their captions, in the order they have here.

        Raises:
            UsageError: no rows, one that does not exist, or one twice.
        """
        rows = np.asarray(image_rows, dtype=np.int64)
        if not len(rows) or rows.min() < 0 or rows.max() >= len(self.image_ids) or len(np.unique(rows)) < len(rows):
            raise UsageError(f"a subset of {len(self.image_ids):,} images needs different rows of them, at least one")
        place = np.full(len(self.image_ids), -1, dtype=np.int64)
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
    """Split into (train, validation) by image, so that no image has captions on both sides.

    Args:
        pairs: to split.
        fraction: share of the images for validation.
        seed: which images; the choice depends on image ids, not on their order.

    Raises:
        UsageError: a part would have no image.
    """
    train, validation = _split(pairs, [fraction], seed)
    return train, validation


def split_three_ways(
    pairs: CaptionPairs, validation: float, test: float, seed: int
) -> tuple[CaptionPairs, CaptionPairs, CaptionPairs]:
    """Split into (train, validation, test) by image; fractions are shares of all images. See ``split_by_image``."""
    train, second, third = _split(pairs, [validation, test], seed)
    return train, second, third


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
    """Pairs out of captions and images that are matched by image id; what has no counterpart is dropped and listed.

    Args:
        captions: ``(N, Dx)``.
        caption_ids: theirs.
        caption_images: the id of each caption's image; null where it has none.
        images: ``(M, Dy)``.
        image_ids: theirs.
        source: what messages call it: a file.
        contradictions: captions, with null for their image, for which two sources name different ones.

    Raises:
        DataError: an id stands twice, a vector is zero or not finite, lengths differ, or nothing is left.
    """
    captions, images = (
        checked_vectors(captions, caption_ids, source, "caption"),
        checked_vectors(images, image_ids, source, "image"),
    )
    if len(caption_images) != len(caption_ids):
        raise DataError(f"{source}: {len(caption_images):,} images are named for {len(caption_ids):,} captions")
    row_of = {image_id: row for row, image_id in enumerate(image_ids)}
    found = np.array([-1 if name is None else row_of.get(name, -1) for name in caption_images], dtype=np.int64)
    kept = np.flatnonzero(found >= 0)
    if not len(kept):
        raise DataError(
            f"{source}: no caption has an image (captions name images such as {_first(caption_images)!r}, "
            f"embeddings are of {image_ids[0]!r}); give captions and images of one data set"
        )
    described = np.unique(found[kept])
    place = np.full(len(image_ids), -1, dtype=np.int64)
    place[described] = np.arange(len(described))
    contradicted = set(contradictions)
    without = [caption_ids[row] for row in np.flatnonzero(found < 0).tolist()]
    every_caption, every_image = len(kept) == len(caption_ids), len(described) == len(image_ids)
    return CaptionPairs(
        captions=captions if every_caption else captions[kept],
        caption_ids=[caption_ids[row] for row in kept.tolist()],
        images=images if every_image else images[described],
        image_ids=[image_ids[row] for row in described.tolist()],
        image_of=place[found[kept]],
        dropped=Dropped(
            captions_without_image=tuple(key for key in without if key not in contradicted),
            images_without_captions=tuple(image_ids[row] for row in np.flatnonzero(place < 0).tolist()),
            contradictions=tuple(contradictions),
        ),
    )


def _split(pairs: CaptionPairs, fractions: Sequence[float], seed: int) -> list[CaptionPairs]:
    """Train first, then a part for each fraction."""
    total = len(pairs.image_ids)
    counts = [round(fraction * total) if 0 < fraction < 1 else 0 for fraction in fractions]
    if min(counts) < 1 or sum(counts) >= total:
        wanted = " and ".join(f"{fraction:g}" for fraction in fractions)
        raise UsageError(
            f"{wanted} of {total:,} images leaves a part of the split empty; choose fractions between 0 and 1 "
            "that give every part an image"
        )
    by_id = np.array(sorted(range(total), key=pairs.image_ids.__getitem__), dtype=np.int64)
    order = by_id[np.random.default_rng(seed).permutation(total)]
    ends = np.cumsum(counts)
    parts = [order[ends[-1] :], *np.split(order[: ends[-1]], ends[:-1])]
    return [pairs.subset(np.sort(rows)) for rows in parts]


def _first(names: Sequence[str | None]) -> str | None:
    return next((name for name in names if name is not None), None)
