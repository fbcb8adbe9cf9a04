"""Closed forms that whiten captions and images: the geometry map, and canonical correlation analysis.

Both start from the whitened cross-covariance ``C_x^-1/2 C_xy C_y^-1/2 = V S Uᵀ``, with shrunk covariances.

The geometry map centres and whitens both sides, rotates one onto the other and restores the images' covariance:
``A = C_y^1/2 U S^p Vᵀ C_x^-1/2``. At p = 0 it is a pure rotation between whitened spaces (the orthogonal Procrustes
solution): every canonical correlation counts as 1, noise included. At p = 1 it keeps S, which is least squares with
shrunk covariances.

Canonical correlation analysis instead projects both sides into a common space, ``S^p Vᵀ C_x^-1/2`` for captions and
``S^p Uᵀ C_y^-1/2`` for images.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.translator.models.interface import Doubles, LinearMap, ProjectionPair
from unimoe.studies.translator.models.statistics import Moments, PairStatistics

Shrinkage = float | Literal["ledoit_wolf"]
"""The share, between 0 and 1, of a multiple of the identity in a covariance; or estimated as Ledoit and Wolf do."""


def fit_geometry(
    statistics: PairStatistics,
    *,
    power: float = 0.0,
    shrinkage: Shrinkage = "ledoit_wolf",
    centred_cosine: bool = True,
) -> LinearMap:
    """Fit the geometry map; ``power`` is that of S, ``centred_cosine`` compares after the images' mean is subtracted.

    Raises:
        UsageError: the shrinkage is not between 0 and 1.
        DataError: all captions, or all images, are the same.
    """
    captions, images = _both_roots(statistics, shrinkage)
    cross = captions.inverse @ statistics.cross_covariance @ images.inverse
    left, singular, right = np.linalg.svd(cross, full_matrices=False)
    if power == 0:
        # Directions about which no pair says anything are not rotated anywhere.
        strength = (singular > singular[0] * max(cross.shape) * np.finfo(np.float64).eps).astype(np.float64)
    else:
        strength = singular**power
    weight = images.root @ ((right.T * strength) @ left.T) @ captions.inverse
    return LinearMap(
        weight=weight,
        bias=statistics.paired_mean - weight @ statistics.captions.mean,
        centre=statistics.images.mean if centred_cosine else None,
        notes=captions.notes + images.notes,
    )


def fit_cca(
    statistics: PairStatistics,
    *,
    components: int | None = None,
    power: float = 1.0,
    shrinkage: Shrinkage = "ledoit_wolf",
) -> ProjectionPair:
    """Fit the canonical projections, compared by the cosine.

    Args:
        statistics: of the pairs. The images' covariance is that of unique images.
        components: canonical directions kept, those of the highest correlation; None for all.
        power: each side's coordinates are weighted by their correlation to this power: 0 weights them equally, 4 is
            what Gong et al. (2014) use for images and tags.
        shrinkage: of both covariances.

    Raises:
        UsageError: fewer than one component, more than the smaller side has dimensions, or a wrong shrinkage.
        DataError: all captions, or all images, are the same.
    """
    captions, images = _both_roots(statistics, shrinkage)
    cross = captions.inverse @ statistics.cross_covariance @ images.inverse
    most = min(cross.shape)
    kept = most if components is None else components
    if not 1 <= kept <= most:
        raise UsageError(f"{components} canonical components: use 1 to {most}, the dimensions of the smaller side")
    left, correlations, right = np.linalg.svd(cross, full_matrices=False)
    strength = correlations[:kept, None] ** power
    caption_weight = strength * (left.T[:kept] @ captions.inverse)
    image_weight = strength * (right[:kept] @ images.inverse)
    return ProjectionPair(
        caption_weight=caption_weight,
        caption_bias=-caption_weight @ statistics.captions.mean,
        image_weight=image_weight,
        image_bias=-image_weight @ statistics.images.mean,
        correlations=correlations[:kept],
        notes=captions.notes + images.notes,
    )


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
    """Return the roots of ``(1 - s) C + s mean(diag C) I``, which has the eigenvectors of C.

    The covariance of no more vectors than dimensions is singular, and its inverse would be noise. There, Ledoit-Wolf
    replaces a shrinkage of 0, and a note says so.

    Args:
        moments: of the vectors.
        shrinkage: s, or ``ledoit_wolf``.
        what: what the vectors are, for notes.

    Raises:
        UsageError: the shrinkage is not between 0 and 1.
        DataError: all vectors are equal, so there is nothing to align.
    """
    size, count = len(moments.total), moments.count
    values, vectors = moments.spectrum
    scale = float(values.mean())
    rounding = np.finfo(np.float64).eps * float(np.trace(moments.square)) / count
    if not scale > rounding:
        raise DataError(f"all {count:,} {what} have the same embedding: there is nothing to align; give others")
    few = count <= size
    estimated = shrinkage == "ledoit_wolf" or (few and shrinkage == 0)
    intensity = moments.ledoit_wolf() if estimated else float(shrinkage)
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


def _both_roots(statistics: PairStatistics, shrinkage: Shrinkage) -> tuple[Roots, Roots]:
    return shrunk_roots(statistics.captions, shrinkage, "captions"), shrunk_roots(
        statistics.images, shrinkage, "images"
    )
