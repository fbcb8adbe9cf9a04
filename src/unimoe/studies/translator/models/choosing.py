"""Settings of a closed form chosen by cross-validation grouped by image, by the measure it will be judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from unimoe.errors import DataError, InputError, UsageError
from unimoe.studies.translator.models.interface import LinearMap, ProjectionPair, Translator
from unimoe.studies.translator.models.statistics import PairArrays, Rows, fold_statistics, image_folds, total

Fitted = TypeVar("Fitted", LinearMap, ProjectionPair)
Settings = Mapping[str, Any]

SCORED_IMAGES = 1000
"""Images of a held-out fold that captions are ranked against; with more, choosing would take longer than all else."""


def _grid(**values: Sequence[Any]) -> tuple[Settings, ...]:
    return tuple(dict(zip(values, combination, strict=True)) for combination in product(*values.values()))


CCA_GRID = _grid(shrinkage=("ledoit_wolf", 0.1, 0.3, 0.5, 0.7, 0.9), power=(0.5, 1.0, 2.0))
"""Ledoit-Wolf is for independent vectors and for the covariance itself; for ranks, more shrinkage is often better."""


@dataclass(frozen=True)
class Choice:
    """What cross-validation found.

    Attributes:
        settings: the best, the first of equals.
        scores: mean MRR over folds of every setting tried, in order.
        folds: how many.
    """

    settings: Settings
    scores: tuple[tuple[Settings, float], ...]
    folds: int

    @property
    def note(self) -> str:
        """One sentence."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        best = max(score for _, score in self.scores)
        return f"{chosen}: best MRR of {self.folds} folds of images ({best:.4f}), of {len(self.scores)} settings tried"


def cross_validated(
    pairs: PairArrays,
    fit: Callable[..., Fitted],
    grid: Sequence[Settings],
    *,
    folds: int = 5,
    seed: int = 0,
) -> tuple[Fitted, Choice]:
    """A closed form with the settings that rank best where it was not fitted, fitted to all pairs.

    Args:
        pairs: captions and images.
        fit: ``fit_geometry``, ``fit_cca`` or another that takes ``PairStatistics`` and settings by name.
        grid: settings to try.
        folds: parts of the images; all captions of an image are in one.
        seed: of the parts.

    Raises:
        UsageError: no settings, or folds that the images do not suffice for.
        DataError: there are no pairs, shapes do not fit, or all captions or images of a part are the same.
    """
    if not grid:
        raise UsageError("no settings to choose from; give one at least")
    parts = fold_statistics(pairs, folds, seed)
    whole = total(parts)
    scores = np.zeros(len(grid))
    for part, images in zip(parts, scored_images(pairs, folds, seed), strict=True):
        train = whole - part
        scores += [held_out_mrr(fit(train, **settings), pairs, images) for settings in grid]
    scores /= folds
    best = grid[int(scores.argmax())]
    choice = Choice(best, tuple(zip(grid, scores.tolist(), strict=True)), folds)
    fitted: Fitted = fit(whole, **best)
    return replace(fitted, notes=(choice.note, *fitted.notes)), choice


def scored_images(pairs: PairArrays, folds: int, seed: int) -> list[Rows]:
    """Rows of the images of each fold that count, ascending: all, or evenly spread ``SCORED_IMAGES`` at most."""
    rows = image_folds(len(pairs.images), folds, seed)
    return [part[:: -(-len(part) // SCORED_IMAGES)] for part in rows]


def held_out_mrr(translator: Translator, pairs: PairArrays, images: Rows) -> float:
    """Mean reciprocal rank of the captions of some images (rows, ascending) among these images.

    Raises:
        DataError: a caption or an image has no direction in the translator's space.
    """
    from unimoe.studies.translator.models.ranking import image_ranks

    rows = np.flatnonzero(np.isin(pairs.image_of, images))
    targets = np.searchsorted(images, pairs.image_of[rows])
    try:
        captions, gallery = translator.translate(pairs.captions[rows]), translator.gallery(pairs.images[images])
    except InputError as error:
        raise DataError(f"cross-validation of {len(rows):,} captions: {error.reason}") from None
    return float(np.mean(1.0 / image_ranks(captions, gallery, targets)))
