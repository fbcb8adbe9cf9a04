"""Canonical correlation analysis: captions and images side by side in the space of what they have in common."""

from __future__ import annotations

import numpy as np

from unimoe.errors import UsageError
from unimoe.studies.translator.models.covariance import Shrinkage
from unimoe.studies.translator.models.geometry import whiten
from unimoe.studies.translator.models.interface import ProjectionPair
from unimoe.studies.translator.models.statistics import PairStatistics


def fit_cca(
    statistics: PairStatistics,
    *,
    components: int | None = None,
    power: float = 1.0,
    shrinkage: Shrinkage = "ledoit_wolf",
) -> ProjectionPair:
    """The canonical projections of some pairs, compared by the cosine.

    Args:
        statistics: of the pairs. The images' covariance is that of unique images.
        components: canonical directions kept, those of the highest correlation; null for all.
        power: each side's coordinates are weighted by their correlation to this power: 0 counts them alike, 4 is what
            Gong et al. (2014) use for images and tags.
        shrinkage: of both covariances.

    Raises:
        UsageError: fewer than one component, more than the smaller side has dimensions, or a wrong shrinkage.
        DataError: all captions, or all images, are the same.
    """
    whitened = whiten(statistics, shrinkage)
    most = min(whitened.cross.shape)
    kept = most if components is None else components
    if not 1 <= kept <= most:
        raise UsageError(f"{components} canonical components: use 1 to {most}, the dimensions of the smaller side")
    left, correlations, right = np.linalg.svd(whitened.cross, full_matrices=False)
    strength = correlations[:kept, None] ** power
    captions = strength * (left.T[:kept] @ whitened.captions.inverse)
    images = strength * (right[:kept] @ whitened.images.inverse)
    return ProjectionPair(
        caption_weight=captions,
        caption_bias=-captions @ statistics.captions.mean,
        image_weight=images,
        image_bias=-images @ statistics.images.mean,
        correlations=correlations[:kept],
        notes=whitened.notes,
    )
