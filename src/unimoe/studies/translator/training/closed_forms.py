"""The closed forms, and the choice of their settings by cross-validation.

Ridge regression has the penalty of scikit-learn's ``Ridge``: ``|Y - X B|² + alpha |B|²`` with a free intercept. It is
computed from the captions' eigenbasis: scikit-learn fits all data again for each of fifteen penalties.

The two others start from the whitened cross-covariance ``C_x^-1/2 C_xy C_y^-1/2 = V S Uᵀ``, with shrunk covariances.
The geometry map centres and whitens both sides, rotates one onto the other and restores the images' covariance:
``A = C_y^1/2 U S^p Vᵀ C_x^-1/2``. At p = 0 it is a pure rotation between whitened spaces (the orthogonal Procrustes
solution): every canonical correlation counts as 1, noise included. At p = 1 it keeps S, which is least squares with
shrunk covariances. Canonical correlation analysis instead projects both sides into a common space, ``S^p Vᵀ C_x^-1/2``
for captions and ``S^p Uᵀ C_y^-1/2`` for images.

Folds are of images, so all captions of an image are in one fold. Each setting is judged as the translator will be: by
the mean reciprocal rank (MRR) of the held-out captions among the held-out images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import product

import numpy as np
from scipy import sparse
from sklearn.covariance import ledoit_wolf_shrinkage

from unimoe.core.errors import DataError, UsageError, named_inputs
from unimoe.studies.translator.config import Shrinkage, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats
from unimoe.studies.translator.evaluation import image_ranks
from unimoe.studies.translator.models.translators import Doubles, LinearMap, ProjectionPair

_RELATIVE_ALPHAS = np.logspace(-5, 2, 15)
"""Penalties tried by default, in units of the mean eigenvalue of the captions' sum of squares."""

_SHRINKAGES: tuple[Shrinkage, ...] = ("ledoit_wolf", 0.1, 0.3, 0.5, 0.7, 0.9)
_POWERS = (0.5, 1.0, 2.0)
"""Tried by default. Ledoit-Wolf is optimal for the covariance of independent vectors; ranks often need more."""

_SCORED_IMAGES = 1000
"""The most images of a held-out fold that captions are ranked against; with more, choosing would dominate the time."""

_EPSILON = float(np.finfo(np.float64).eps)

Fit = Callable[["PairMoments"], LinearMap | ProjectionPair]


class VectorMoments:
    """Mean and covariance of vectors, in float64: float32 has no digits to spare where means are large.

    Attributes:
        mean: ``(D,)``.
        centred: ``(n, D)``.
    """

    def __init__(self, vectors: Floats, what: str) -> None:
        self._what = what
        self.mean: Doubles = vectors.mean(0, dtype=np.float64)
        self.centred: Doubles = vectors - self.mean

    @cached_property
    def spectrum(self) -> tuple[Doubles, Doubles]:
        """Eigenvalues of the covariance, ascending and not negative, and its eigenvectors in columns."""
        values, vectors = np.linalg.eigh(self.centred.T @ self.centred / len(self.centred))
        return np.maximum(values, 0.0), vectors

    @cached_property
    def ledoit_wolf(self) -> float:
        """The shrinkage of Ledoit and Wolf (2004), between 0 and 1.

        The formula assumes independent vectors. Captions of one image are not independent, so over captions it shrinks
        too little rather than too much.
        """
        return float(ledoit_wolf_shrinkage(self.centred, assume_centered=True))

    def roots(self, shrinkage: Shrinkage) -> tuple[Doubles, Doubles, tuple[str, ...]]:
        """Return the root of ``(1 - s) C + s mean(diag C) I``, its pseudo-inverse, and what to know about them.

        The covariance of no more vectors than dimensions is singular, and its inverse would be noise. There,
        Ledoit-Wolf replaces a shrinkage of 0, and a note says so.
        """
        count, size = self.centred.shape
        values, vectors = self.spectrum
        scale = float(values.mean())
        if not scale > _EPSILON * float(self.mean @ self.mean):
            raise DataError(f"all {count:,} {self._what} have the same embedding: there is nothing to align")
        few = count <= size
        estimated = shrinkage == "ledoit_wolf" or (few and shrinkage == 0)
        intensity = self.ledoit_wolf if estimated else float(shrinkage)
        shrunk = (1 - intensity) * values + intensity * scale
        kept = shrunk > shrunk[-1] * size * _EPSILON
        root = np.sqrt(np.where(kept, shrunk, 0.0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=kept)
        note = (
            f"{count:,} {self._what} in {size:,} dimensions: their covariance is singular and was shrunk by "
            f"{intensity:.3f}; give more {self._what} for a better map"
        )
        return (vectors * root) @ vectors.T, (vectors * inverse) @ vectors.T, (note,) * few


class PairMoments:
    """Moments of captions, of unique images, and of both together.

    Attributes:
        captions, images: their moments; each image counts once, however many captions it has.
        paired_mean: ``(Dy,)`` mean of the images over captions: an image counts once for each of its captions.
        cross: ``(Dx, Dy)`` covariance of captions with their images.
    """

    def __init__(self, pairs: CaptionPairs) -> None:
        count = len(pairs.captions)
        self.captions, self.images = VectorMoments(pairs.captions, "captions"), VectorMoments(pairs.images, "images")
        # Summed by image, captions need one row of a product for each image instead of one for each caption.
        by_image = sparse.csr_array(
            (np.ones(count), (pairs.image_of, np.arange(count))), shape=(len(pairs.images), count)
        )
        self.paired_mean: Doubles = self.images.mean + by_image.sum(1) @ self.images.centred / count
        self.cross: Doubles = (by_image @ self.captions.centred).T @ self.images.centred / count


def fit_ridge(moments: PairMoments, alpha: float, *, centred_cosine: bool = True) -> LinearMap:
    """Fit ridge regression with one penalty; 0 is least squares.

    ``centred_cosine`` compares after the images' mean is subtracted, which ranks far better than the plain cosine.
    """
    captions, images = moments.captions, moments.images
    values, basis = captions.spectrum
    penalised = values + alpha / len(captions.centred)
    # Without a penalty, directions in which captions do not vary are left out.
    kept = penalised > penalised[-1] * len(values) * _EPSILON
    gains = np.divide(1.0, penalised, out=np.zeros_like(penalised), where=kept)
    weight = ((basis * gains) @ (basis.T @ moments.cross)).T.copy()
    count, size = images.centred.shape
    note = f"{count:,} images in {size:,} dimensions: the map reaches only the space they span"
    return LinearMap(
        weight=weight,
        bias=moments.paired_mean - weight @ captions.mean,
        centre=images.mean if centred_cosine else None,
        notes=(note,) * (count <= size),
    )


def fit_geometry(
    moments: PairMoments, *, power: float = 0.0, shrinkage: Shrinkage = "ledoit_wolf", centred_cosine: bool = True
) -> LinearMap:
    """Fit the geometry map; ``power`` is that of S, ``centred_cosine`` as in ``fit_ridge``."""
    _, whiten_captions, caption_notes = moments.captions.roots(shrinkage)
    colour_images, whiten_images, image_notes = moments.images.roots(shrinkage)
    cross = whiten_captions @ moments.cross @ whiten_images
    left, singular, right = np.linalg.svd(cross, full_matrices=False)
    # At power 0, directions about which no pair says anything are not rotated anywhere.
    said = singular > singular[0] * max(cross.shape) * _EPSILON
    strength = np.where(said, singular, 0.0) ** power if power else said.astype(np.float64)
    weight = colour_images @ ((right.T * strength) @ left.T) @ whiten_captions
    return LinearMap(
        weight=weight,
        bias=moments.paired_mean - weight @ moments.captions.mean,
        centre=moments.images.mean if centred_cosine else None,
        notes=caption_notes + image_notes,
    )


def fit_cca(
    moments: PairMoments, *, components: int | None = None, power: float = 1.0, shrinkage: Shrinkage = "ledoit_wolf"
) -> ProjectionPair:
    """Fit the canonical projections, compared by the cosine.

    ``components`` are the canonical directions kept, those of the highest correlation; None for all. Each side's
    coordinates are weighted by their correlation to ``power``: 0 weights them equally, 4 is what Gong et al. (2014) use
    for images and tags.
    """
    _, whiten_captions, caption_notes = moments.captions.roots(shrinkage)
    _, whiten_images, image_notes = moments.images.roots(shrinkage)
    most = min(moments.cross.shape)
    if components is not None and components > most:
        raise UsageError(f"{components} canonical components: use 1 to {most}, the dimensions of the smaller side")
    left, correlations, right = np.linalg.svd(whiten_captions @ moments.cross @ whiten_images, full_matrices=False)
    strength = correlations[:components, None] ** power
    caption_weight = strength * (left.T[:components] @ whiten_captions)
    image_weight = strength * (right[:components] @ whiten_images)
    return ProjectionPair(
        caption_weight=caption_weight,
        caption_bias=-caption_weight @ moments.captions.mean,
        image_weight=image_weight,
        image_bias=-image_weight @ moments.images.mean,
        correlations=correlations[:components],
        notes=caption_notes + image_notes,
    )


def fit_closed_form(name: str, pairs: CaptionPairs, config: TranslatorConfig) -> LinearMap | ProjectionPair:
    """Fit ridge, cca or geometry, with ``config``'s section of that name, ``centre`` and ``seed``."""
    return _chosen_cca(pairs, config) if name == "cca" else linear_map(name, pairs, config)


def linear_map(name: str, pairs: CaptionPairs, config: TranslatorConfig) -> LinearMap:
    """Fit ridge or geometry; see ``fit_closed_form``."""
    moments = PairMoments(pairs)
    if name != "ridge":
        power, shrinkage = config.geometry.power, config.geometry.shrinkage
        return fit_geometry(moments, power=power, shrinkage=shrinkage, centred_cosine=config.centre)
    folds = config.ridge.folds
    scale = len(pairs.captions) * moments.captions.spectrum[0].mean()
    # The largest first: of equal penalties it is the safest.
    alphas = sorted(set(config.ridge.alphas or (scale * _RELATIVE_ALPHAS).tolist()), reverse=True)
    fits = [partial(fit_ridge, alpha=alpha, centred_cosine=config.centre) for alpha in alphas]
    scores = cross_validated(pairs, fits, folds, config.seed)
    best = int(scores.argmax())
    edge = {0: ", the highest tried", len(alphas) - 1: ", the lowest tried"}.get(best, "")
    note = f"ridge alpha {alphas[best]:.4g}{edge}: best MRR of {folds} folds of images ({scores.max():.4f})"
    fitted = fits[best](moments)
    return replace(fitted, notes=(note, *fitted.notes))


def _chosen_cca(pairs: CaptionPairs, config: TranslatorConfig) -> ProjectionPair:
    """Fit canonical correlations with the settings of the best MRR, the first of equals."""
    cca, moments = config.cca, PairMoments(pairs)
    shrinkages = _SHRINKAGES if cca.shrinkage is None else (cca.shrinkage,)
    grid = [*product(shrinkages, _POWERS if cca.power is None else (cca.power,))]
    fits = [partial(fit_cca, components=cca.components, shrinkage=each, power=power) for each, power in grid]
    if len(fits) == 1:
        return fits[0](moments)
    scores = cross_validated(pairs, fits, cca.folds, config.seed)
    best = int(scores.argmax())
    chosen = "shrinkage {}, power {}".format(*grid[best])
    note = f"{chosen}: best MRR of {cca.folds} folds of images ({scores.max():.4f}), of {len(grid)} settings tried"
    fitted = fits[best](moments)
    return replace(fitted, notes=(note, *fitted.notes))


def cross_validated(pairs: CaptionPairs, fits: Sequence[Fit], folds: int, seed: int) -> Doubles:
    """Return the MRR of each fit, mean over folds of the images."""
    images = len(pairs.images)
    if folds > images:
        raise UsageError(f"{folds} folds of {images:,} images: give no more folds than there are images")
    order = np.random.default_rng(seed).permutation(images)
    found = []
    for held_out in map(np.sort, np.array_split(order, folds)):
        moments = PairMoments(pairs.subset(np.setdiff1d(order, held_out)))
        scored = pairs.subset(held_out[:: -(-len(held_out) // _SCORED_IMAGES)])  # evenly spread where they are many
        found.append([held_out_mrr(fit(moments), scored) for fit in fits])
    return np.asarray(np.mean(found, axis=0))


def held_out_mrr(translator: LinearMap | ProjectionPair, pairs: CaptionPairs) -> float:
    """Return the mean reciprocal rank of captions among their images."""
    with named_inputs(lambda _: f"cross-validation of {len(pairs):,} captions"):
        captions, gallery = translator.translate(pairs.captions), translator.gallery(pairs.images)
    return float(np.mean(1.0 / image_ranks(captions, gallery, pairs.image_of)))
