"""Covariances that can be inverted: shrunk towards a multiple of the identity, and their roots."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from unimoe.errors import DataError, UsageError
from unimoe.studies.translator.models.statistics import Doubles, Moments

Shrinkage = float | Literal["ledoit_wolf"]
"""How far a covariance is pulled towards a multiple of the identity: a share between 0 and 1, or as the data say."""


class Roots(NamedTuple):
    """Symmetric square roots of a shrunk covariance.

    Attributes:
        root: ``(D, D)``.
        inverse: ``(D, D)``, the root of its pseudo-inverse: directions without variance are zero.
        notes: what to know about the shrinkage; mostly empty.
    """

    root: Doubles
    inverse: Doubles
    notes: tuple[str, ...]


def shrunk_roots(moments: Moments, shrinkage: Shrinkage, what: str) -> Roots:
    """The roots of ``(1 - s) C + s mean(diag C) I``, which has the eigenvectors of C.

    A covariance of no more vectors than dimensions is singular, and its inverse would be noise. There, Ledoit-Wolf
    takes the place of a shrinkage of 0, and a note says so.

    Args:
        moments: of the vectors.
        shrinkage: s, or ``ledoit_wolf``.
        what: what the vectors are, for notes.

    Raises:
        UsageError: the shrinkage is not between 0 and 1.
        DataError: all vectors are equal, so that there is nothing to align.
    """
    size, count = len(moments.total), moments.count
    values, vectors = moments.spectrum
    scale = float(values.mean())
    rounding = np.finfo(np.float64).eps * float(np.trace(moments.square)) / count
    if not scale > rounding:
        raise DataError(f"all {count:,} {what} have the same embedding: there is nothing to align; give others")
    few = count <= size
    by_data = shrinkage == "ledoit_wolf" or (few and shrinkage == 0)
    intensity = moments.ledoit_wolf() if by_data else float(shrinkage)
    if not 0 <= intensity <= 1:
        raise UsageError(f"shrinkage {shrinkage}: use a share between 0 and 1, or ledoit_wolf")
    shrunk = (1 - intensity) * values + intensity * scale
    kept = shrunk > shrunk[-1] * size * np.finfo(np.float64).eps
    root = np.sqrt(np.where(kept, shrunk, 0.0))
    inverse = np.divide(1.0, root, out=np.zeros_like(root), where=kept)
    notes: tuple[str, ...] = ()
    if few:
        notes = (
            f"{count:,} {what} in {size:,} dimensions: their covariance is singular and was shrunk by {intensity:.3f}; "
            f"give more {what} for a better map",
        )
    return Roots((vectors * root) @ vectors.T, (vectors * inverse) @ vectors.T, notes)
