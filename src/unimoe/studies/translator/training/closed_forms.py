"""The closed forms by name, from pairs and settings."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from unimoe.errors import UsageError
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs
from unimoe.studies.translator.models.cca import fit_cca
from unimoe.studies.translator.models.choosing import CCA_GRID, cross_validated
from unimoe.studies.translator.models.geometry import fit_geometry
from unimoe.studies.translator.models.interface import LinearMap, ProjectionPair
from unimoe.studies.translator.models.ridge import cross_validated_ridge
from unimoe.studies.translator.models.statistics import pair_statistics


def fit_closed_form(name: str, pairs: CaptionPairs, config: TranslatorConfig) -> LinearMap | ProjectionPair:
    """Ridge, cca or geometry.

    Args:
        name: which of them.
        pairs: to learn from.
        config: ``ridge``, ``cca``, ``geometry``, ``centre`` and ``seed`` are used.

    Raises:
        UsageError: settings that the data does not suffice for.
        DataError: all captions, or all images, are the same.
    """
    if name == "cca":
        return _cca(pairs, config)
    return linear_map(name, pairs, config)


def linear_map(name: str, pairs: CaptionPairs, config: TranslatorConfig) -> LinearMap:
    """Ridge or geometry; arguments and errors are those of ``fit_closed_form``."""
    if name == "geometry":
        geometry = config.geometry
        return fit_geometry(
            pair_statistics(pairs), power=geometry.power, shrinkage=geometry.shrinkage, centred_cosine=config.centre
        )
    if name != "ridge":
        raise UsageError(f"{name}: no closed form into the images' space; use ridge or geometry")
    fitted, _ = cross_validated_ridge(
        pairs, alphas=config.ridge.alphas, folds=config.ridge.folds, seed=config.seed, centred_cosine=config.centre
    )
    return fitted


def _cca(pairs: CaptionPairs, config: TranslatorConfig) -> ProjectionPair:
    cca = config.cca
    given: dict[str, Any] = {
        name: value for name, value in (("power", cca.power), ("shrinkage", cca.shrinkage)) if value is not None
    }
    grid = list({json.dumps({**settings, **given}): {**settings, **given} for settings in CCA_GRID}.values())
    fit = partial(fit_cca, components=cca.components)
    if len(grid) == 1:
        return fit(pair_statistics(pairs), **grid[0])
    fitted, _ = cross_validated(pairs, fit, grid, folds=cca.folds, seed=config.seed)
    return fitted
