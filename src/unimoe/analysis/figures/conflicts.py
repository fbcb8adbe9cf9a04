"""Maps of gradient conflicts by layer and step: how far the gradients of the two tasks agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unimoe.analysis.arms import arm_order
from unimoe.analysis.figures.style import fit, panel_width, panels, text_width
from unimoe.analysis.loading import Seed
from unimoe.analysis.logs import ConflictLog
from unimoe.analysis.tables.cells import gathered, natural_key

QUANTITIES = {"cosine": "cosine", "cosine_corrected": "cosine, corrected for noise"}

# Hue tells the sign in colour, and lightness never falls from -1 to 1, so that conflict is dark in grey.
_COLOURS = LinearSegmentedColormap.from_list("conflict", ["#4D1600", "#C4540A", "#BDBDBD", "#A5D8F6", "#F4FBFF"])


def conflict_figure(logs: Mapping[tuple[str, Seed], ConflictLog], notes: Sequence[str] = ()) -> Figure:
    """Draw two heat maps for each arm, raw and corrected for noise: mean over seeds, conflict dark."""
    maps = gathered((arm, log) for (arm, _), log in logs.items())
    grids = [
        (arm, quantity, *conflict_grid(maps[arm], quantity))
        for arm in sorted(maps, key=arm_order)
        for quantity in QUANTITIES
    ]
    layers = [layers for _, _, _, layers, _ in grids]
    left = max(text_width(_layer(layer)) for named in layers for layer in named) + 0.09
    height = min(3.0, max(1.3, 0.12 * max(map(len, layers))))
    figure, panes = panels(
        len(grids),
        columns=2,
        follow=True,
        left=left,
        right=0.85,
        height=height,
        xlabel="step",
        ylabel="layer",
        notes=notes,
    )
    limit = max((float(np.nanmax(np.abs(grid))) for *_, grid in grids if not np.isnan(grid).all()), default=1.0)
    scale = ScalarMappable(Normalize(-limit or -1.0, limit or 1.0), _COLOURS)
    for axes, (arm, quantity, steps, named, grid) in zip(panes, grids, strict=True):
        _draw_grid(axes, steps, named, grid, scale)
        axes.set_title(fit(f"{arm}: {QUANTITIES[quantity]}", panel_width(axes)), loc="left")
    bar = panes[-1].inset_axes((1.0 + 0.12 / panel_width(panes[-1]), 0.0, 0.12 / panel_width(panes[-1]), 1.0))
    figure.colorbar(scale, cax=bar, ticks=MaxNLocator(5), label="conflict < 0 < agreement")
    return figure


def conflict_grid(
    logs: Sequence[ConflictLog], quantity: str
) -> tuple[NDArray[np.int64], list[int | str], NDArray[np.float64]]:
    """Average one quantity over seeds.

    Returns:
        Steps ascending; layers in their natural order; ``(layers, steps)``, NaN where no seed has a value.
    """
    values: dict[tuple[int | str, int], list[float]] = {}
    for record in (record for log in logs for record in log):
        value = getattr(record, quantity)
        values.setdefault((record.layer, record.step), []).extend([] if value is None else [value])
    layers = sorted({layer for layer, _ in values}, key=lambda layer: (isinstance(layer, str), natural_key(layer)))
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
    axes.set_yticks(range(0, len(layers), every), [_layer(layer) for layer in layers[::every]])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _layer(layer: int | str) -> str:
    return fit(str(layer), 1.2)


def _edges(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the borders half-way between steps; a single step is one wide."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middles = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[1.5 * steps[0] - 0.5 * steps[1]], middles, [1.5 * steps[-1] - 0.5 * steps[-2]]])
