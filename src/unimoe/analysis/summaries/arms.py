"""What every table and figure shares: the order of arms, the caveats, scores with their best and second best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unimoe.analysis.loading import Results
from unimoe.analysis.tables import ABSENT, Cell, Mark
from unimoe.results import EvalResult

_FIRST_ARMS = ("bm25", "zero_shot", "rank_only", "emb_only", "joint")


def arm_order(name: str) -> tuple[int, str]:
    """Baselines first, then specialists, then joint arms, then all others by name."""
    known = (i for i, word in enumerate(_FIRST_ARMS) if name == word or name.startswith(f"{word}_"))
    return next(known, len(_FIRST_ARMS)), name


def caveat_notes(results: Results) -> tuple[str, ...]:
    """The caveats of the results, for every table and figure."""
    return tuple(f"Caveat: {caveat}" for caveat in results.caveats)


def queries_range(results: Results) -> str:
    """The number of queries for a caption: one number, or the range over datasets."""
    counts = {len(results.measured(key)[0].per_query) for key in results.dataset_keys} or {0}
    fewest, most = min(counts), max(counts)
    return f"n = {most:,} queries" if fewest == most else f"n = {fewest:,} to {most:,} queries"


def score_cell(runs: Sequence[EvalResult], metric: str) -> Cell:
    """Mean over runs of one arm, with their standard deviation, in points (score x 100)."""
    return mean_cell([100.0 * r.aggregate[metric] for r in runs if metric in r.aggregate])


def mean_cell(values: Sequence[float]) -> Cell:
    """Mean and, of two and more values, standard deviation (divisor n - 1)."""
    if not values:
        return Cell(ABSENT)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Cell(f"{mean:.2f}", value=mean)
    std = float(np.std(values, ddof=1))
    return Cell(f"{mean:.2f}", f"{std:.2f}", value=mean, spread_value=std)


def signed_cell(value: float, digits: int = 2) -> Cell:
    """A difference, with its sign."""
    return Cell(f"{value:+.{digits}f}".replace("inf", "∞"), value=value)


def count_cell(value: int) -> Cell:
    """A whole number."""
    return Cell(f"{value:,}", value=value)


def marked(cells: Sequence[Cell]) -> list[Cell]:
    """Best and second best as shown: what rounds to the same number shares its mark; where all do, none has one."""
    shown = sorted({float(cell.text) for cell in cells if cell.value is not None}, reverse=True)
    if len(shown) < 2:
        return list(cells)
    marks: dict[str, Mark] = {f"{shown[0]:.2f}": "best", f"{shown[1]:.2f}": "second"}
    return [replace(cell, mark=marks.get(cell.text)) for cell in cells]
