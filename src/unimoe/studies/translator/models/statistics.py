"""Sums over captions and images from which every closed form is computed, gathered in one pass over the captions.

Memory does not depend on the number of captions. Sums add and subtract, so a fold is left out by a difference.
Everything is float64: raw sums of squares lose digits where means are large beside deviations, and float32 has none to
spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Rows
from unimoe.studies.translator.models.interface import Doubles

_BLOCK = 4096
"""Vectors converted to float64 at once."""


class _Sums:
    """A dataclass whose fields add and subtract one by one."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))  # type: ignore[arg-type]

    def __sub__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Moments(_Sums):
    """Sums over vectors ``v`` of ``D`` dimensions, which give mean, covariance and Ledoit-Wolf shrinkage.

    Attributes:
        count: number of vectors.
        total: ``(D,)`` sum of v.
        square: ``(D, D)`` sum of v vᵀ.
        cubic: ``(D,)`` sum of ``|v|² v``.
        quartic: sum of ``|v|⁴``.
    """

    count: int
    total: Doubles
    square: Doubles
    cubic: Doubles
    quartic: float

    @classmethod
    def of(cls, vectors: Doubles) -> Self:
        """Return the sums over vectors ``(n, D)``."""
        norms = np.einsum("nd,nd->n", vectors, vectors)
        square = vectors.T @ vectors
        return cls(len(vectors), vectors.sum(0), square, norms @ vectors, float(norms @ norms))

    @property
    def mean(self) -> Doubles:
        """The mean, ``(D,)``."""
        return self.total / self.count

    @property
    def covariance(self) -> Doubles:
        """The covariance ``(D, D)``, divided by the count."""
        return self.square / self.count - np.outer(self.mean, self.mean)

    @cached_property
    def spectrum(self) -> tuple[Doubles, Doubles]:
        """Eigenvalues of the covariance, ascending and not negative, and its eigenvectors in columns."""
        values, vectors = np.linalg.eigh(self.covariance)
        return np.maximum(values, 0.0), vectors

    def ledoit_wolf(self) -> float:
        """Return the shrinkage intensity of Ledoit and Wolf (2004), between 0 and 1, as scikit-learn computes it.

        The formula assumes independent vectors. Captions of one image are not independent, so over captions it shrinks
        too little rather than too much.
        """
        mean, covariance, size = self.mean, self.covariance, len(self.total)
        length = float(mean @ mean)
        # sum |v - mean|^4, multiplied out
        quartic = (
            self.quartic
            + 4 * float(mean @ self.square @ mean)
            + self.count * length**2
            - 4 * float(mean @ self.cubic)
            + 2 * length * float(np.trace(self.square))
            - 4 * length * float(mean @ self.total)
        )
        trace, squared = float(np.trace(covariance)), float((covariance**2).sum())
        noise = (quartic / self.count - squared) / self.count
        distance = squared - trace**2 / size
        if noise <= 0 or distance <= 0:
            return 0.0
        return min(1.0, noise / distance)


@dataclass(frozen=True)
class PairStatistics(_Sums):
    """Sums over captions and their images.

    Attributes:
        captions: moments of the captions' embeddings.
        images: moments of the images', each once however many captions it has.
        cross: ``(Dx, Dy)`` sum of x yᵀ over captions x and their images y.
        paired_total: ``(Dy,)`` sum of y over captions.
    """

    captions: Moments
    images: Moments
    cross: Doubles
    paired_total: Doubles

    @property
    def paired_mean(self) -> Doubles:
        """Mean of the images over captions, ``(Dy,)``: an image counts once for each of its captions."""
        return self.paired_total / self.captions.count

    @property
    def cross_covariance(self) -> Doubles:
        """Covariance of captions with their images ``(Dx, Dy)``, divided by the number of captions."""
        return self.cross / self.captions.count - np.outer(self.captions.mean, self.paired_mean)


def pair_statistics(pairs: CaptionPairs, *, block: int = _BLOCK) -> PairStatistics:
    """Gather the sums over all captions and images, ``block`` vectors at a time.

    Raises:
        DataError: there are no pairs, or shapes do not fit.
    """
    _check(pairs)
    return _gather(pairs, np.arange(len(pairs.image_of)), np.arange(len(pairs.images)), block)


def fold_statistics(pairs: CaptionPairs, folds: int, seed: int) -> list[PairStatistics]:
    """Gather the sums of each fold of the images with their captions; together they are ``pair_statistics``.

    Raises:
        UsageError: fewer than two folds, or fewer images than folds.
        DataError: there are no pairs, or shapes do not fit.
    """
    _check(pairs)
    return [
        _gather(pairs, np.flatnonzero(np.isin(pairs.image_of, images)), images, _BLOCK)
        for images in image_folds(len(pairs.images), folds, seed)
    ]


def image_folds(images: int, folds: int, seed: int) -> list[Rows]:
    """Divide the rows of the images into folds of equal size (to within one); rows ascend within a fold.

    Raises:
        UsageError: fewer than two folds, or fewer images than folds.
    """
    if not 2 <= folds <= images:
        raise UsageError(
            f"{folds} folds of {images:,} images: give 2 folds at least, and no more than there are images"
        )
    order = np.random.default_rng(seed).permutation(images).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, folds)]


def total(parts: Sequence[PairStatistics]) -> PairStatistics:
    """Add up one or more parts."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole


def _gather(pairs: CaptionPairs, rows: Rows, image_rows: Rows, block: int) -> PairStatistics:
    """Compute the sums over some captions, and over some images each once."""
    inputs, outputs = pairs.captions.shape[1], pairs.images.shape[1]
    captions, images = _no_moments(inputs), _no_moments(outputs)
    cross, paired_total = np.zeros((inputs, outputs)), np.zeros(outputs)
    for begin in range(0, len(rows), block):
        part = rows[begin : begin + block]
        vectors = _doubles(pairs.captions, part)
        captions = captions + Moments.of(vectors)
        described, counts, sums = _by_image(vectors, pairs.image_of[part])
        targets = _doubles(pairs.images, described)
        cross += sums.T @ targets
        paired_total += counts @ targets
    for begin in range(0, len(image_rows), block):
        images = images + Moments.of(_doubles(pairs.images, image_rows[begin : begin + block]))
    return PairStatistics(captions, images, cross, paired_total)


def _by_image(vectors: Doubles, image_of: Rows) -> tuple[Rows, Rows, Doubles]:
    """Return the images of some captions, how many captions each has, and the sum of their vectors.

    The product with the images then needs one row for each image instead of one for each caption.
    """
    order = np.argsort(image_of, kind="stable")
    described, starts, counts = np.unique(image_of[order], return_index=True, return_counts=True)
    if len(described) == len(image_of):
        return described, counts, vectors[order]
    return described, counts, np.add.reduceat(vectors[order], starts, axis=0)


def _doubles(vectors: NDArray[Any], rows: Rows) -> Doubles:
    """Return some rows as float64; a slice avoids copying rows that are adjacent."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return np.asarray(vectors[rows[0] : rows[-1] + 1], dtype=np.float64)
    return np.asarray(vectors[rows], dtype=np.float64)


def _no_moments(size: int) -> Moments:
    return Moments(0, np.zeros(size), np.zeros((size, size)), np.zeros(size), 0.0)


def _check(pairs: CaptionPairs) -> None:
    captions, images, image_of = pairs.captions, pairs.images, pairs.image_of
    if captions.ndim != 2 or images.ndim != 2 or not captions.size or not images.size:
        raise DataError(f"captions {captions.shape} and images {images.shape}: nothing to learn a translator from")
    if image_of.shape != (len(captions),) or not 0 <= image_of.min() <= image_of.max() < len(images):
        raise DataError(f"{len(captions):,} captions need as many rows of the {len(images):,} images, from 0")
