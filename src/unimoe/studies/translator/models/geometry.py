"""The geometry map: centre, shrink and whiten both sides, rotate one onto the other, recolour.

With ``C_x^-1/2 C_xy C_y^-1/2 = V S Uᵀ``, the whitened cross-covariance, the map is ``A = C_y^1/2 U S^p Vᵀ C_x^-1/2``.
At p = 0 it is a pure rotation between whitened spaces (the orthogonal Procrustes solution): every canonical
correlation counts as 1, also those that are noise. At p = 1 it keeps S, and is least squares with shrunk covariances.
"""

from __future__ import annotations

import numpy as np

from unimoe.studies.translator.models.covariance import Roots, Shrinkage, shrunk_roots
from unimoe.studies.translator.models.interface import LinearMap
from unimoe.studies.translator.models.statistics import Doubles, PairStatistics


def fit_geometry(
    statistics: PairStatistics,
    *,
    power: float = 0.0,
    shrinkage: Shrinkage = "ledoit_wolf",
    centred_cosine: bool = True,
) -> LinearMap:
    """The geometry map of some pairs.

    Args:
        statistics: of the pairs.
        power: of S; 0 for the pure rotation.
        shrinkage: of both covariances.
        centred_cosine: compare after the images' mean is subtracted.

    Raises:
        UsageError: the shrinkage is not between 0 and 1.
        DataError: all captions, or all images, are the same.
    """
    whitened = whiten(statistics, shrinkage)
    left, singular, right = np.linalg.svd(whitened.cross, full_matrices=False)
    if power == 0:
        # Directions that no pair tells about are not rotated anywhere.
        strength = (singular > singular[0] * max(whitened.cross.shape) * np.finfo(np.float64).eps).astype(np.float64)
    else:
        strength = singular**power
    weight = whitened.images.root @ ((right.T * strength) @ left.T) @ whitened.captions.inverse
    mean = statistics.images.mean
    return LinearMap(
        weight=weight,
        bias=statistics.paired_mean - weight @ statistics.captions.mean,
        centre=mean if centred_cosine else None,
        notes=whitened.notes,
    )


class Whitened:
    """Both sides' roots, and the covariance between the whitened sides.

    Attributes:
        captions: roots of the captions' covariance.
        images: roots of the images'.
        cross: ``(Dx, Dy)``.
        notes: of the shrinkage.
    """

    def __init__(self, captions: Roots, images: Roots, covariance: Doubles) -> None:
        self.captions, self.images, self.notes = captions, images, captions.notes + images.notes
        self.cross: Doubles = captions.inverse @ covariance @ images.inverse


def whiten(statistics: PairStatistics, shrinkage: Shrinkage) -> Whitened:
    """Whiten captions, and images by their covariance as unique images; errors are those of ``fit_geometry``."""
    return Whitened(
        shrunk_roots(statistics.captions, shrinkage, "captions"),
        shrunk_roots(statistics.images, shrinkage, "images"),
        statistics.cross_covariance,
    )
