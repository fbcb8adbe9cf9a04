"""What training logged: losses, and how far the gradients of the two tasks conflict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unimoe.analysis.arms import arm_order
from unimoe.analysis.figures.style import LONG, SHORT, Look, in_style, legend_of, name_rows, panels
from unimoe.analysis.tables.cells import short_names
from unimoe.core.grouping import gathered, natural_key
from unimoe.results.folder import Seed
from unimoe.results.logs import ConflictLog, Log

Curve: TypeAlias = Mapping[int, float]  # a value by step

MOST_POINTS = 400  # drawn of a curve: about two per dot of a printed column
COSINES = {"raw": "cosine", "corrected for noise": "cosine_corrected"}

# Hue tells the sign in colour, and lightness never falls from -1 to 1, so that conflict is dark in grey.
_COLOURS = LinearSegmentedColormap.from_list("conflict", ["#4D1600", "#C4540A", "#BDBDBD", "#A5D8F6", "#F4FBFF"])


@in_style
def loss_figure(logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look]) -> Figure:
    """Draw a panel for each loss, smoothed: seeds thin, and thick their mean over the steps that all have."""
    shown: dict[str, dict[str, list[Curve]]] = {}
    for (arm, _), log in logs.items():
        parts = gathered((loss, (record["step"], value)) for record in log for loss, value in _parts(record).items())
        for loss, points in parts.items():
            shown.setdefault(loss, {}).setdefault(arm, []).append(_smooth(dict(points)))
    shown = dict(sorted(shown.items(), reverse=True))
    arms = short_names(sorted({arm for curves in shown.values() for arm in curves}, key=arm_order), LONG)
    seeds = {arm: max(len(curves.get(arm, ())) for curves in shown.values()) for arm in arms}
    labels = {arm: f"{name} ({seeds[arm]} seeds)" if seeds[arm] > 1 else name for arm, name in arms.items()}
    titles, legend = [f"{loss} loss" for loss in shown], legend_of(labels, looks, marker="")
    figure, grid = panels(titles, "step", columns=1, legend=legend)
    for axes, curves in zip(grid, shown.values(), strict=True):
        for arm, of_arm in curves.items():
            steps = sorted(set.intersection(*map(set, of_arm)))
            mean = {step: float(np.mean([curve[step] for curve in of_arm])) for step in steps}
            for curve in of_arm if len(of_arm) > 1 else ():
                _draw(axes, curve, looks[arm], linewidth=0.5, alpha=0.45)
            _draw(axes, mean, looks[arm], linewidth=1.5)
        axes.sharex(grid[0])
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    grid[0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _parts(record: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the losses of one record: by part where it has parts, else the one loss under its task's name."""
    parts = {name: record.get(f"{name}_loss") for name in ("ranking", "embedding")}
    held = {name: float(value) for name, value in parts.items() if value is not None}
    task = str(record.get("task", ""))
    names = {"": "training", "rank_only": "ranking", "emb_only": "embedding"}
    return held or {names.get(task, "joint"): record["loss"]}


def _smooth(curve: Curve) -> Curve:
    """Return the mean over the last twentieth of the run's steps; early steps average what there is."""
    total, ends = np.cumsum([0.0, *curve.values()]), np.arange(1, len(curve) + 1)
    starts = np.maximum(0, ends - max(1, len(curve) // 20))
    return dict(zip(curve, ((total[ends] - total[starts]) / (ends - starts)).tolist(), strict=True))


def _draw(axes: Axes, curve: Curve, look: Look, **style: Any) -> None:
    points = np.array([*curve.items()]).reshape(-1, 2)
    places = np.linspace(0, len(points) - 1, min(len(points), MOST_POINTS)).astype(int)
    marker = look.marker if len(points) == 1 else ""
    axes.plot(*points[places].T, look.dashes, color=look.colour, marker=marker, **style)


@in_style
def conflict_figure(logs: Mapping[tuple[str, Seed], ConflictLog]) -> Figure:
    """Draw two heat maps for each arm, raw and corrected for noise: mean over seeds, conflict dark."""
    of_arm = gathered((arm, record) for (arm, _), log in logs.items() for record in log)
    names = short_names(sorted(of_arm, key=arm_order), SHORT)
    grids = {
        f"{name}: {title}": conflict_grid(of_arm[arm], quantity)
        for arm, name in names.items()
        for title, quantity in COSINES.items()
    }
    height = 0.3 + min(3.0, max(1.2, 0.12 * max(len(layers) for _, layers, _ in grids.values())))
    label = "step; colour: cosine of the gradients"
    figure, panes = panels(list(grids), label, "layer", columns=2, height=height)
    every_value = np.abs(np.concatenate([values.ravel() for *_, values in grids.values()]))
    limit = np.max(every_value, initial=0.0, where=~np.isnan(every_value)) or 1.0
    for axes, (steps, layers, values) in zip(panes, grids.values(), strict=True):
        # A column begins at its step and ends at the next one; the last is as wide as the one before it.
        edges = [*steps, 2 * steps[-1] - steps[-2] if len(steps) > 1 else steps[-1] + 1]
        rows = np.arange(len(layers) + 1) - 0.5
        image = axes.pcolormesh(edges, rows, values, cmap=_COLOURS, vmin=-limit, vmax=limit, rasterized=True)
        labels, every = list(short_names(map(str, layers), SHORT).values()), math.ceil(len(layers) / 12)
        name_rows(axes, dict(list(enumerate(labels))[::every]))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.colorbar(image, ax=panes, aspect=40, ticks=MaxNLocator(5), label="conflict < 0 < agreement")
    return figure


def conflict_grid(records: ConflictLog, quantity: str) -> tuple[list[int], list[int | str], NDArray[np.float64]]:
    """Return steps, layers in their natural order, and one quantity by layer and step: its mean over seeds, or NaN."""
    values = gathered(((r.layer, r.step), found) for r in records if (found := getattr(r, quantity)) is not None)
    layers = sorted({r.layer for r in records}, key=lambda layer: (isinstance(layer, str), natural_key(layer)))
    steps = sorted({r.step for r in records})
    means = [[np.mean(values.get((layer, step), [np.nan])) for step in steps] for layer in layers]
    return steps, layers, np.array(means)
