"""Gradient conflicts: cosine between the two tasks' gradients, by layer and step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unimoe.analysis.figures.conflict_log import Conflict
from unimoe.analysis.figures.style import TWO_COLUMNS, add_notes, fit, notes_height, text_width
from unimoe.analysis.loading import Seed
from unimoe.analysis.summaries import arm_order

QUANTITIES = {"cosine": "cosine", "cosine_corrected": "cosine, corrected for noise"}

# Hue tells the sign in colour, and lightness never falls from -1 to 1, so that conflict is dark in grey.
_COLOURS = LinearSegmentedColormap.from_list("conflict", ["#4D1600", "#C4540A", "#BDBDBD", "#A5D8F6", "#F4FBFF"])

Log = Sequence[Conflict]


def conflict_figure(logs: Mapping[tuple[str, Seed], Log], notes: Sequence[str] = ()) -> Figure:
    """A row of two heat maps per arm, raw and corrected for noise: mean over seeds, conflict dark."""
    arms = sorted({arm for arm, _ in logs}, key=arm_order)
    maps = {arm: [log for (other, _), log in logs.items() if other == arm] for arm in arms}
    grids = [(arm, quantity, *conflict_grid(maps[arm], quantity)) for arm in arms for quantity in QUANTITIES]
    names = [fit(str(layer), 1.2) for _, _, _, layers, _ in grids for layer in layers]
    left, between, right, gap = max(map(text_width, names)) + 0.25, 0.15, 0.85, 0.5
    bottom = 0.36 + notes_height(notes, TWO_COLUMNS)
    heights = [min(3.0, max(1.3, 0.12 * len(layers))) for _, _, _, layers, _ in grids[::2]]
    total = 0.3 + sum(heights) + gap * (len(arms) - 1) + bottom
    limit = max((float(np.nanmax(np.abs(grid))) for *_, grid in grids if not np.isnan(grid).all()), default=1.0)
    scale = ScalarMappable(Normalize(-limit or -1.0, limit or 1.0), _COLOURS)
    figure = Figure(figsize=(TWO_COLUMNS, total))
    width = (TWO_COLUMNS - left - between - right) / 2
    for i, (arm, quantity, steps, layers, grid) in enumerate(grids):
        row, column = divmod(i, 2)
        floor = total - 0.3 - sum(heights[: row + 1]) - gap * row
        x = left + column * (width + between)
        axes = figure.add_axes((x / TWO_COLUMNS, floor / total, width / TWO_COLUMNS, heights[row] / total))
        _draw_grid(axes, steps, layers, grid, scale)
        axes.tick_params(labelleft=column == 0)
        axes.set_ylabel("layer" if column == 0 else "")
        axes.set_title(fit(f"{arm}: {QUANTITIES[quantity]}", width), loc="left")
        axes.set_xlabel("step" if row == len(arms) - 1 else "")
    bar = (TWO_COLUMNS - right + 0.12) / TWO_COLUMNS, bottom / total, 0.12 / TWO_COLUMNS, heights[-1] / total
    figure.colorbar(scale, cax=figure.add_axes(bar), ticks=MaxNLocator(5), label="conflict < 0 < agreement")
    add_notes(figure, notes)
    return figure


def conflict_grid(logs: Sequence[Log], quantity: str) -> tuple[NDArray[np.int64], list[int | str], NDArray[np.float64]]:
    """Mean over seeds of one quantity.

    Returns:
        Steps ascending; layers in their natural order; ``(layers, steps)``, NaN where no seed has a value.
    """
    values: dict[tuple[int | str, int], list[float]] = {}
    for record in (record for log in logs for record in log):
        value = getattr(record, quantity)
        values.setdefault((record.layer, record.step), []).extend([] if value is None else [value])
    layers = sorted({layer for layer, _ in values}, key=_natural)
    steps = sorted({step for _, step in values})
    grid = np.full((len(layers), len(steps)), np.nan)
    row, column = ({name: i for i, name in enumerate(names)} for names in (layers, steps))
    for (layer, step), held in values.items():
        if held:
            grid[row[layer], column[step]] = np.mean(held)
    return np.array(steps), layers, grid


def _draw_grid(
    axes: Axes, steps: NDArray[np.int64], layers: Sequence[int | str], grid: NDArray[np.float64], scale: ScalarMappable
) -> None:
    edges = np.arange(len(layers) + 1) - 0.5
    axes.pcolormesh(_edges(steps), edges, grid, cmap=scale.get_cmap(), clim=scale.get_clim(), rasterized=True)
    axes.set_facecolor("none")
    every = max(1, -(-len(layers) // 12))
    axes.set_yticks(range(0, len(layers), every), [fit(str(layer), 1.2) for layer in layers[::every]])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _edges(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Borders half-way between steps; a single step is one wide."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middles = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[1.5 * steps[0] - 0.5 * steps[1]], middles, [1.5 * steps[-1] - 0.5 * steps[-2]]])


def _natural(layer: int | str) -> tuple[bool, list[tuple[int, str]]]:
    """Numbers by value, also within names, so that layer 10 follows layer 9."""
    parts = re.split(r"(\d+)", str(layer))
    return isinstance(layer, str), [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
