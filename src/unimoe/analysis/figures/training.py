"""What training logged: losses, how far the gradients of the two tasks conflict, and which one is longer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from unimoe.analysis.arms import arm_order
from unimoe.analysis.figures.style import HAIRLINE, LONG, SHORT, Look, in_style, legend_of, panels
from unimoe.analysis.tables.cells import short_names
from unimoe.core.grouping import gathered, natural_key
from unimoe.results.folder import Seed
from unimoe.results.logs import ConflictLog, Log

Curve: TypeAlias = Mapping[int, float]  # a value by step
Curves: TypeAlias = Mapping[str, Sequence[Curve]]  # one curve for each seed, by arm
ConflictLogs: TypeAlias = Mapping[tuple[str, Seed], ConflictLog]

MOST_POINTS = 400  # drawn of a curve: about two per dot of a printed column
COSINES = {"raw": "cosine", "corrected for noise": "cosine_corrected"}

# Hue tells the sign in colour, and lightness never falls from -1 to 1, so that conflict is dark in grey.
_COLOURS = LinearSegmentedColormap.from_list("conflict", ["#4D1600", "#C4540A", "#BDBDBD", "#A5D8F6", "#F4FBFF"])


@in_style
def loss_figure(logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a panel for each loss: seeds thin, their mean thick, smoothed over a twentieth of the run."""
    found: dict[str, dict[str, list[Curve]]] = {}
    for (arm, _), log in logs.items():
        curves = gathered((loss, (record["step"], value)) for record in log for loss, value in _parts(record).items())
        for loss, points in curves.items():
            # The mean over the last twentieth of the run's steps; early steps average what there is.
            steps, values = zip(*dict(points).items(), strict=True)
            total, ends = np.cumsum([0.0, *values]), np.arange(1, len(steps) + 1)
            starts = np.maximum(0, ends - max(1, len(steps) // 20))
            smooth = dict(zip(steps, ((total[ends] - total[starts]) / (ends - starts)).tolist(), strict=True))
            found.setdefault(f"{loss} loss", {}).setdefault(arm, []).append(smooth)
    figure, grid = _curves_figure(dict(sorted(found.items(), reverse=True)), looks, notes)
    for axes in grid:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return figure


@in_style
def conflict_rate_figure(logs: ConflictLogs, looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw the share of layers whose cosine is below 0, by step: raw above, corrected for noise below."""
    shown = {
        f"layers in conflict, {title}": gathered((arm, conflict_rate(log, quantity)) for (arm, _), log in logs.items())
        for title, quantity in COSINES.items()
    }
    figure, grid = _curves_figure(shown, looks, notes)
    for axes in grid:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


@in_style
def norm_ratio_figure(logs: ConflictLogs, looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw the length of ranking's gradient over that of embedding's, all layers together, by step."""
    curves = gathered((arm, norm_ratio(log)) for (arm, _), log in logs.items())
    shown = {"gradient norm, ranking / embedding": curves}
    figure, (axes,) = _curves_figure(shown, looks, notes, mean=lambda values: np.exp(np.mean(np.log(values))))
    axes.axhline(1.0, zorder=0, **HAIRLINE)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.45), max(high, 2.2))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    return figure


@in_style
def conflict_figure(logs: ConflictLogs, notes: Sequence[str] = ()) -> Figure:
    """Draw two heat maps for each arm, raw and corrected for noise: mean over seeds, conflict dark."""
    of_arm = gathered((arm, log) for (arm, _), log in logs.items())
    names = short_names(sorted(of_arm, key=arm_order), SHORT)
    grids = {
        f"{name}: {title}": conflict_grid(of_arm[arm], quantity)
        for arm, name in names.items()
        for title, quantity in COSINES.items()
    }
    height = 0.3 + min(3.0, max(1.2, 0.12 * max(len(layers) for _, layers, _ in grids.values())))
    figure, panes = panels(
        list(grids), "step; colour: cosine of the gradients", "layer", columns=2, height=height, notes=notes
    )
    every_value = np.abs(np.concatenate([values.ravel() for *_, values in grids.values()]))
    limit = np.max(every_value, initial=0.0, where=~np.isnan(every_value)) or 1.0
    for axes, (steps, layers, values) in zip(panes, grids.values(), strict=True):
        # A column begins at its step and ends at the next one; the last is as wide as the one before it.
        edges = [*steps, 2 * steps[-1] - steps[-2] if len(steps) > 1 else steps[-1] + 1]
        rows = np.arange(len(layers) + 1) - 0.5
        image = axes.pcolormesh(edges, rows, values, cmap=_COLOURS, vmin=-limit, vmax=limit, rasterized=True)
        labels, every = list(short_names(map(str, layers), SHORT).values()), math.ceil(len(layers) / 12)
        axes.set_yticks(range(0, len(layers), every), labels[::every])
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.colorbar(image, ax=panes, aspect=40, ticks=MaxNLocator(5), label="conflict < 0 < agreement")
    return figure


def conflict_grid(logs: Sequence[ConflictLog], quantity: str) -> tuple[list[int], list[int | str], NDArray[np.float64]]:
    """Return steps, layers in their natural order, and one quantity by layer and step: its mean over seeds, or NaN."""
    records = [record for log in logs for record in log]
    values = gathered(((r.layer, r.step), found) for r in records if (found := getattr(r, quantity)) is not None)
    layers = sorted({r.layer for r in records}, key=lambda layer: (isinstance(layer, str), natural_key(layer)))
    steps = sorted({r.step for r in records})
    means = [[np.mean(values.get((layer, step), [np.nan])) for step in steps] for layer in layers]
    return steps, layers, np.array(means)


def conflict_rate(log: ConflictLog, quantity: str) -> Curve:
    """Return the share of a seed's layers whose cosine, or corrected cosine, is below 0, among those that have one."""
    held = gathered((r.step, found < 0) for r in log if (found := getattr(r, quantity)) is not None)
    return {step: float(np.mean(below)) for step, below in sorted(held.items())}


def norm_ratio(log: ConflictLog) -> Curve:
    """Return the norm of ranking's gradient over that of embedding's, by step, where neither is zero."""
    held = [(r.step, r.norm_rank, r.norm_embed) for r in log if r.norm_rank is not None and r.norm_embed is not None]
    norms = gathered((step, both) for step, *both in held)
    totals = {step: np.linalg.norm(both, axis=0) for step, both in sorted(norms.items())}
    return {step: float(rank / embed) for step, (rank, embed) in totals.items() if rank > 0 and embed > 0}


def _parts(record: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the losses of one record: by part where it has parts, else the one loss under its task's name."""
    parts = {name: record.get(f"{name}_loss") for name in ("ranking", "embedding")}
    held = {name: float(value) for name, value in parts.items() if value is not None}
    task = str(record.get("task", ""))
    return held or {"ranking" if "rank" in task else "embedding" if "emb" in task else "joint": record["loss"]}


def _curves_figure(
    shown: Mapping[str, Curves],
    looks: Mapping[str, Look],
    notes: Sequence[str],
    mean: Callable[[Sequence[float]], Any] = np.mean,
) -> tuple[Figure, list[Axes]]:
    """Draw panels below each other by their titles: seeds thin, and thick their mean over the steps that all have."""
    arms = short_names(sorted({arm for curves in shown.values() for arm in curves}, key=arm_order), LONG)
    seeds = {arm: max(len(curves.get(arm, ())) for curves in shown.values()) for arm in arms}
    labels = {arm: f"{name} ({seeds[arm]} seeds)" if seeds[arm] > 1 else name for arm, name in arms.items()}
    figure, grid = panels(list(shown), "step", columns=1, legend=legend_of(labels, looks, marker=""), notes=notes)

    def draw(axes: Axes, curve: Curve, look: Look, linewidth: float, alpha: float) -> None:
        places = np.linspace(0, len(curve) - 1, min(len(curve), MOST_POINTS)).astype(int)
        points = np.array([*curve.items()]).reshape(-1, 2)[places]
        marker = look.marker if len(curve) == 1 else ""
        axes.plot(*points.T, look.dashes, color=look.colour, marker=marker, linewidth=linewidth, alpha=alpha)

    for axes, curves in zip(grid, shown.values(), strict=True):
        for arm in arms:
            if held := [curve for curve in curves.get(arm, ()) if curve]:
                steps = sorted(set.intersection(*map(set, held)))
                thick = {step: float(mean([curve[step] for curve in held])) for step in steps}
                for curve in held if len(held) > 1 else ():
                    draw(axes, curve, looks[arm], 0.5, 0.45)
                draw(axes, thick, looks[arm], 1.5, 1.0)
    for axes in grid[1:]:
        axes.sharex(grid[0])
    grid[0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure, grid
