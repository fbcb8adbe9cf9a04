"""Closed forms by name, their settings chosen by cross-validation.

Folds are of images, so all captions of an image are in one fold. Each setting is judged as the translator will be: by
the mean reciprocal rank (MRR) of the held-out captions among the held-out images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from unimoe.core.errors import UsageError, named_inputs
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Rows
from unimoe.studies.translator.models.interface import Doubles, LinearMap, ProjectionPair, Translator
from unimoe.studies.translator.models.ranking import image_ranks
from unimoe.studies.translator.models.ridge import fit_ridge, penalties, ridge_path
from unimoe.studies.translator.models.statistics import (
    PairStatistics,
    fold_statistics,
    image_folds,
    pair_statistics,
    total,
)
from unimoe.studies.translator.models.whitening import Shrinkage, fit_cca, fit_geometry

Settings = Mapping[str, Any]

_SCORED_IMAGES = 1000
"""The most images of a held-out fold that captions are ranked against; with more, choosing would dominate the time."""

CCA_SHRINKAGES: tuple[Shrinkage, ...] = ("ledoit_wolf", 0.1, 0.3, 0.5, 0.7, 0.9)
CCA_POWERS = (0.5, 1.0, 2.0)
"""Tried by default. Ledoit-Wolf is optimal for the covariance of independent vectors; ranks often need more."""


def fit_closed_form(name: str, pairs: CaptionPairs, config: TranslatorConfig) -> LinearMap | ProjectionPair:
    """Fit ridge, cca or geometry, with ``config``'s section of that name, ``centre`` and ``seed``.

    Raises:
        UsageError: settings for which there is too little data.
        DataError: all captions, or all images, are the same.
    """
    if name != "cca":
        return linear_map(name, pairs, config)
    cca = config.cca
    shrinkages = CCA_SHRINKAGES if cca.shrinkage is None else (cca.shrinkage,)
    powers = CCA_POWERS if cca.power is None else (cca.power,)
    grid: list[Settings] = [{"shrinkage": each, "power": power} for each, power in product(shrinkages, powers)]
    if len(grid) == 1:
        return fit_cca(pair_statistics(pairs), components=cca.components, **grid[0])
    return cross_validated_cca(pairs, grid, components=cca.components, folds=cca.folds, seed=config.seed)[0]


def linear_map(name: str, pairs: CaptionPairs, config: TranslatorConfig) -> LinearMap:
    """Fit ridge or geometry; see ``fit_closed_form``."""
    if name == "geometry":
        geometry = config.geometry
        return fit_geometry(
            pair_statistics(pairs), power=geometry.power, shrinkage=geometry.shrinkage, centred_cosine=config.centre
        )
    if name != "ridge":
        raise UsageError(f"{name}: no closed form into the images' space; use ridge or geometry")
    return cross_validated_ridge(
        pairs, alphas=config.ridge.alphas, folds=config.ridge.folds, seed=config.seed, centred_cosine=config.centre
    )[0]


def cross_validated_ridge(
    pairs: CaptionPairs,
    *,
    alphas: Sequence[float] | None = None,
    folds: int = 5,
    seed: int = 0,
    centred_cosine: bool = True,
) -> tuple[LinearMap, dict[float, float]]:
    """Fit ridge regression with the penalty of the best MRR, the largest of equals; see ``penalties`` for ``alphas``.

    Returns:
        The map, fitted to all pairs, and the mean MRR over folds by penalty, ascending.

    Raises:
        UsageError: no penalty, a negative one, or more folds than images.
        DataError: there are no pairs, or shapes do not fit.
    """
    parts = _Folds(pairs, folds, seed)
    tried = penalties(parts.whole, alphas)
    scores = parts.scores(lambda statistics: ridge_path(statistics, tried, centred_cosine))
    best = len(scores) - 1 - int(np.argmax(scores[::-1]))
    fitted = fit_ridge(parts.whole, tried[best], centred_cosine=centred_cosine)
    edge = {0: ", the lowest tried", len(tried) - 1: ", the highest tried"}.get(best, "")
    note = f"ridge alpha {tried[best]:.4g}{edge}: best MRR of {folds} folds of images ({scores.max():.4f})"
    return replace(fitted, notes=(note, *fitted.notes)), dict(zip(tried, scores.tolist(), strict=True))


def cross_validated_cca(
    pairs: CaptionPairs,
    grid: Sequence[Settings],
    *,
    components: int | None = None,
    folds: int = 5,
    seed: int = 0,
) -> tuple[ProjectionPair, list[float]]:
    """Fit canonical correlations with the settings of the best MRR, the first of equals.

    Args:
        pairs: captions and images.
        grid: arguments of ``fit_cca`` to try.
        components: as in ``fit_cca``.
        folds: number of folds.
        seed: which images are in which fold.

    Returns:
        The projections, fitted to all pairs, and the mean MRR over folds of each setting.

    Raises:
        UsageError: settings that do not fit, or more folds than images.
        DataError: there are no pairs, shapes do not fit, or all captions or images of a fold are the same.
    """
    parts, fit = _Folds(pairs, folds, seed), partial(fit_cca, components=components)
    scores = parts.scores(lambda statistics: (fit(statistics, **settings) for settings in grid))
    best = grid[int(scores.argmax())]
    fitted = fit(parts.whole, **best)
    chosen = ", ".join(f"{name} {value}" for name, value in best.items())
    note = f"{chosen}: best MRR of {folds} folds of images ({scores.max():.4f}), of {len(grid)} settings tried"
    return replace(fitted, notes=(note, *fitted.notes)), scores.tolist()


def held_out_mrr(translator: Translator, pairs: CaptionPairs, images: Rows) -> float:
    """Return the mean reciprocal rank of the captions of some images (rows, ascending) among these images.

    Raises:
        DataError: a caption or an image has no direction in the translator's space.
    """
    rows = np.flatnonzero(np.isin(pairs.image_of, images))
    targets = np.searchsorted(images, pairs.image_of[rows])
    with named_inputs(lambda _: f"cross-validation of {len(rows):,} captions"):
        captions, gallery = translator.translate(pairs.captions[rows]), translator.gallery(pairs.images[images])
    return float(np.mean(1.0 / image_ranks(captions, gallery, targets)))


class _Folds:
    """Folds of the images with their captions; ``whole`` holds the sums over all pairs."""

    def __init__(self, pairs: CaptionPairs, folds: int, seed: int) -> None:
        self._pairs, self._parts = pairs, fold_statistics(pairs, folds, seed)
        self.whole = total(self._parts)
        # Evenly spread images where a fold has more than are scored.
        all_rows = image_folds(len(pairs.images), folds, seed)
        self._scored = [rows[:: -(-len(rows) // _SCORED_IMAGES)] for rows in all_rows]

    def scores(self, fit_all: Callable[[PairStatistics], Iterable[Translator]]) -> Doubles:
        """Return the MRR of each setting, mean over folds; ``fit_all`` yields a translator for each."""
        found = [
            [held_out_mrr(fitted, self._pairs, images) for fitted in fit_all(self.whole - part)]
            for part, images in zip(self._parts, self._scored, strict=True)
        ]
        means: Doubles = np.mean(found, axis=0)
        return means
