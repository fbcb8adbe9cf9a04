"""Ridge regression from captions to images.

The penalty is that of scikit-learn's ``Ridge``: ``|Y - X B|² + alpha |B|²`` with an intercept that is not penalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unimoe.core.errors import UsageError
from unimoe.studies.translator.models.interface import LinearMap
from unimoe.studies.translator.models.statistics import PairStatistics

_RELATIVE_ALPHAS = np.logspace(-5, 2, 15)
"""Penalties tried by default, in units of the mean eigenvalue of the captions' sum of squares."""


def fit_ridge(statistics: PairStatistics, alpha: float, *, centred_cosine: bool = True) -> LinearMap:
    """Fit ridge regression with one penalty.

    Args:
        statistics: of the pairs.
        alpha: the penalty; 0 is least squares, by the pseudo-inverse where captions span only a subspace.
        centred_cosine: compare after the images' mean is subtracted, which ranks far better than the plain cosine.

    Raises:
        UsageError: a negative penalty.
    """
    if not alpha >= 0:
        raise UsageError(f"ridge alpha {alpha:g}: use 0 or more")
    return next(ridge_path(statistics, [alpha], centred_cosine))


def ridge_path(statistics: PairStatistics, alphas: Sequence[float], centred_cosine: bool) -> Iterator[LinearMap]:
    """Yield the map of each penalty.

    In the eigenbasis of the captions' centred sum of squares, the normal equations of every penalty are a division, so
    one decomposition serves all.
    """
    images, count = statistics.images, statistics.captions.count
    values, basis = statistics.captions.spectrum
    values = count * values
    rotated = basis.T @ (count * statistics.cross_covariance)
    notes: tuple[str, ...] = ()
    if images.count <= len(images.total):
        notes = (
            f"{images.count:,} images in {len(images.total):,} dimensions: the map reaches only the space they span",
        )
    lowest = values[-1] * len(values) * np.finfo(np.float64).eps
    for alpha in alphas:
        penalised = values + alpha
        # Without a penalty, directions in which captions do not vary are left out.
        kept = values > lowest if alpha == 0 else penalised > 0
        gains = np.divide(1.0, penalised, out=np.zeros_like(penalised), where=kept)
        weight = ((basis * gains) @ rotated).T.copy()
        bias = statistics.paired_mean - weight @ statistics.captions.mean
        yield LinearMap(weight, bias, images.mean if centred_cosine else None, notes)


def penalties(statistics: PairStatistics, alphas: Sequence[float] | None) -> list[float]:
    """Return the penalties to try, ascending; None gives fifteen relative to the captions' mean eigenvalue.

    Raises:
        UsageError: no penalty, or a negative one.
    """
    if alphas is None:
        captions = statistics.captions
        scale = captions.count * float(np.trace(captions.covariance)) / len(captions.total)
        return [scale * float(relative) for relative in _RELATIVE_ALPHAS]
    if not alphas or not all(alpha >= 0 for alpha in alphas):
        raise UsageError(f"ridge alphas {list(alphas)}: give one at least, none of them negative")
    return sorted(set(map(float, alphas)))
