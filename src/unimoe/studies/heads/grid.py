"""A search over four keys of evolution, scored on dev alone, as a heat map."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from unimoe.analysis.figures.style import in_style, panels

GRID_KEYS = ("head_output_size", "population_size", "learning_rate", "sigma")
"""Keys of the rows of panels, the columns of panels, and the rows and columns within a panel."""


@in_style
def heat_map(scores: Mapping[tuple[float, ...], float], label: str) -> Figure:
    """Draw a panel per head size and population, learning rate against sigma, on one scale.

    Args:
        scores: on dev, 0 to 1, by the values of ``GRID_KEYS``.
        label: of the scale.
    """
    sizes, populations, rates, sigmas = (sorted({key[place] for key in scores}) for place in range(4))
    cells = list(product(sizes, populations))
    titles = [f"head {size:g}, population {population:g}" for size, population in cells]
    across = "sigma, relative to the weights"
    figure, grid = panels(titles, across, "learning rate", columns=len(populations), height=1.0)
    low, high = 100 * min(scores.values()), 100 * max(scores.values())
    for axes, cell in zip(grid, cells, strict=True):
        values = np.array([[100 * scores[*cell, rate, sigma] for sigma in sigmas] for rate in rates])
        image = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower")
        axes.set_xticks(range(len(sigmas)), [f"{sigma:g}" for sigma in sigmas])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.tick_params(length=0)
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=grid, aspect=40, label=label)
    return figure
