"""Corrections of p for the number of tests: which there are, and which tests are one family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from unimoe.analysis.statistics.estimates import holm
from unimoe.core.errors import UsageError

Correction = Literal["holm", "bh", "bonferroni", "none"]
Family = Literal["table", "dataset", "baseline"]

NAMES: dict[Correction, str] = {"holm": "Holm", "bh": "BH", "bonferroni": "Bonferroni", "none": ""}
OF_FAMILY: dict[Family, str] = {"table": "", "dataset": " on each dataset", "baseline": " against the baseline"}


def adjusted(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Correct the p-values of one family: Holm (1979), Benjamini & Hochberg (1995), Bonferroni, or not at all."""
    if correction == "holm":
        return holm(p_values)
    if correction == "bonferroni":
        return [min(1.0, len(p_values) * p) for p in p_values]
    if correction == "bh" and p_values:
        from scipy.stats import false_discovery_control  # takes a while to import

        return [float(p) for p in false_discovery_control(np.asarray(p_values))]
    return list(p_values)


def check_choice(name: str, value: str | None, choices: Any) -> None:
    """Refuse a value that is neither None nor one of the ``choices``, a Literal, by a UsageError that lists them."""
    if value is not None and value not in get_args(choices):
        raise UsageError(f"{name} {value!r}: unknown; use {' or '.join(get_args(choices))}")
