"""What every translator can do, and the two results of a closed form: one matrix, or a projection of each side.

A translator maps captions and images into one space, where the cosine ranks images. Most use the space of the images;
canonical correlations have a separate one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, InputError
from unimoe.studies.translator.data.caption_pairs import Floats

Doubles = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]

TIMED_BATCH = 512
_WARMUP, _ROUNDS = 3, 15


class Translator(Protocol):
    """Ranks images for captions by the cosine of the results of ``translate`` and ``gallery``."""

    @property
    def input_dim(self) -> int:
        """Dimensions of a caption's embedding."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the translator was made."""

    def translate(self, captions: Numbers) -> Floats:
        """Map captions ``(n, Dx)`` into the common space: ``(n, D)`` float32 of unit length.

        Raises:
            DataError: other dimensions than ``input_dim``.
            InputError: a caption ends up zero or not finite; carries its index.
        """

    def gallery(self, images: Numbers) -> Floats:
        """Map images ``(m, Dy)`` into the common space: ``(m, D)`` float32 of unit length. Raises as ``translate``."""


@dataclass(frozen=True)
class LinearMap:
    """A translator into the space of the images, ``y = weight x + bias``.

    Attributes:
        weight: ``(Dy, Dx)`` float64.
        bias: ``(Dy,)`` float64.
        centre: ``(Dy,)`` subtracted from translations and images before the cosine; None for the plain cosine.
        notes: how it was made.
    """

    weight: Doubles
    bias: Doubles
    centre: Doubles | None = None
    notes: tuple[str, ...] = ()

    @property
    def input_dim(self) -> int:
        """Dimensions of a caption's embedding."""
        return int(self.weight.shape[1])

    def predict(self, captions: Numbers) -> Floats:
        """Predict the images' embeddings, ``(n, Dy)`` float32, neither centred nor normalised."""
        return _affine(captions, self.weight, self.bias, "captions")

    def translate(self, captions: Numbers) -> Floats:
        """See ``Translator``."""
        bias = self.bias if self.centre is None else self.bias - self.centre
        return unit(_affine(captions, self.weight, bias, "captions"))

    def gallery(self, images: Numbers) -> Floats:
        """See ``Translator``."""
        refuse_width(images, len(self.bias), "images")
        return unit(images if self.centre is None else images - self.centre)


@dataclass(frozen=True)
class ProjectionPair:
    """A translator into a separate space of ``k`` dimensions, with an affine map of each side.

    Attributes:
        caption_weight, caption_bias: ``(k, Dx)`` and ``(k,)`` float64.
        image_weight, image_bias: ``(k, Dy)`` and ``(k,)`` float64.
        correlations: ``(k,)`` canonical correlations, descending.
        notes: how it was made.
    """

    caption_weight: Doubles
    caption_bias: Doubles
    image_weight: Doubles
    image_bias: Doubles
    correlations: Doubles
    notes: tuple[str, ...] = ()

    @property
    def input_dim(self) -> int:
        """Dimensions of a caption's embedding."""
        return int(self.caption_weight.shape[1])

    def translate(self, captions: Numbers) -> Floats:
        """See ``Translator``."""
        return unit(_affine(captions, self.caption_weight, self.caption_bias, "captions"))

    def gallery(self, images: Numbers) -> Floats:
        """See ``Translator``."""
        return unit(_affine(images, self.image_weight, self.image_bias, "images"))


def _affine(vectors: Numbers, weight: Doubles, bias: Doubles, what: str) -> Floats:
    refuse_width(vectors, weight.shape[1], what)
    mapped: Floats = np.asarray(vectors, dtype=np.float32) @ weight.T.astype(np.float32)
    return mapped + bias.astype(np.float32)


def unit(vectors: Numbers) -> Floats:
    """Return vectors as float32 of unit length.

    Raises:
        InputError: one is zero or not finite; carries its index.
    """
    floats = np.array(vectors, dtype=np.float32)
    norms = np.sqrt(np.einsum("nd,nd->n", floats, floats, dtype=np.float64))
    bad = ~(np.isfinite(norms) & (norms > 0))
    if bad.any():
        row = int(bad.argmax())
        why = "zero" if norms[row] == 0 else "not finite"
        raise InputError(row, f"the vector is {why}, so it has no direction; check its embedding")
    floats /= norms[:, None].astype(np.float32)
    return floats


def refuse_width(vectors: Numbers, width: int, what: str) -> None:
    """Raise a DataError if vectors are not ``(n, width)``."""
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise DataError(
            f"{what} of shape {vectors.shape}, but the translator was made for {width} dimensions; "
            "use the encoder it was made with, or make it again"
        )


def milliseconds_per_query(translator: Translator) -> float:
    """Time the translation of random captions in batches of ``TIMED_BATCH``: milliseconds per caption, the median.

    Time runs from vectors in memory to unit vectors in memory, so a GPU's transfers count.
    """
    captions = np.random.default_rng(0).standard_normal((TIMED_BATCH, translator.input_dim)).astype(np.float32)
    times = []
    for _ in range(_WARMUP + _ROUNDS):
        start = time.perf_counter()
        translator.translate(captions)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[_WARMUP:]) / TIMED_BATCH
