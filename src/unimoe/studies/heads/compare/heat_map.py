"""A grid of scores as one panel per head size and population, learning rate against sigma."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from unimoe.analysis.figures.style import LINE, TWO_COLUMNS

_LEFT, _RIGHT, _GAP, _TITLE, _FOOT, _PANEL = 0.6, 0.7, 0.14, 0.2, 0.5, 0.75


@dataclass
class Grid:
    """Scores by four knobs.

    Attributes:
        sizes, populations: a panel each.
        rates: rows of a panel.
        sigmas: its columns.
        values: score by size, population, rate and sigma.
    """

    sizes: tuple[int, ...]
    populations: tuple[int, ...]
    rates: tuple[float, ...]
    sigmas: tuple[float, ...]
    values: dict[tuple[int, int, float, float], float] = field(default_factory=dict)

    def best_of(self, size: int, population: int) -> float:
        """The best score of a panel."""
        return max(value for key, value in self.values.items() if key[:2] == (size, population))


def heat_map(grid: Grid, label: str) -> Figure:
    """Draw every panel on one scale, its scores written in.

    Args:
        grid: all scores.
        label: of the scale.
    """
    rows, columns = len(grid.sizes), len(grid.populations)
    height = _TITLE + rows * _PANEL + (rows - 1) * (_GAP + LINE) + _FOOT
    figure = Figure(figsize=(TWO_COLUMNS, height))
    width = (TWO_COLUMNS - _LEFT - _RIGHT - (columns - 1) * _GAP) / columns
    low, high = 100 * min(grid.values.values()), 100 * max(grid.values.values())
    image = None
    for (row, size), (column, population) in product(enumerate(grid.sizes), enumerate(grid.populations)):
        x = _LEFT + column * (width + _GAP)
        y = height - _TITLE - _PANEL - row * (_PANEL + _GAP + LINE)
        axes = figure.add_axes((x / TWO_COLUMNS, y / height, width / TWO_COLUMNS, _PANEL / height))
        axes.set_title(f"head {size}, population {population}")
        image = _panel(axes, grid, size, population, (low, high))
        axes.tick_params(labelleft=column == 0, labelbottom=row == rows - 1, length=0)
    if image is not None:
        bar = ((TWO_COLUMNS - _RIGHT + 0.12) / TWO_COLUMNS, _FOOT / height, 0.1 / TWO_COLUMNS, 0.8 - _FOOT / height)
        figure.colorbar(image, cax=figure.add_axes(bar), label=label)
    figure.supxlabel("sigma, relative to the weights", y=0.05 / height, va="bottom")
    figure.supylabel("learning rate", x=0.05 / TWO_COLUMNS, ha="left")
    return figure


def _panel(axes: Axes, grid: Grid, size: int, population: int, scale: tuple[float, float]) -> AxesImage:
    values = np.array([[100 * grid.values[size, population, r, s] for s in grid.sigmas] for r in grid.rates])
    image = axes.imshow(values, cmap="cividis", vmin=scale[0], vmax=scale[1], aspect="auto", origin="lower")
    axes.set_xticks(range(len(grid.sigmas)), [f"{sigma:g}" for sigma in grid.sigmas])
    axes.set_yticks(range(len(grid.rates)), [f"{rate:g}" for rate in grid.rates])
    middle = sum(scale) / 2
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if value > middle else "white"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    return image
