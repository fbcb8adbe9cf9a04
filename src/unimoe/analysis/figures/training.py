"""What training logged: losses, how far the gradients of the two tasks conflict, and which one is longer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from unimoe.analysis.arms import arm_order
from unimoe.analysis.figures.style import NEUTRAL, Look, fit, panel_width, panels, text_width
from unimoe.core.grouping import gathered, natural_key
from unimoe.results.folder import Seed
from unimoe.results.logs import ConflictLog, Log

Curve: TypeAlias = Mapping[int, float]  # a value by step
Curves: TypeAlias = Mapping[str, Sequence[Curve]]  # one curve for each seed, by arm
ConflictLogs: TypeAlias = Mapping[tuple[str, Seed], ConflictLog]
Mean: TypeAlias = Callable[[Sequence[float]], Any]
Grid: TypeAlias = tuple[NDArray[np.int64], list[int | str], NDArray[np.float64]]
"""Steps ascending; layers in their natural order; a value for each layer and step, NaN where no seed has one."""

MOST_POINTS = 400  # drawn of a curve: about two per dot of a printed column
COSINES = {"cosine": "raw", "cosine_corrected": "corrected for noise"}

# Hue tells the sign in colour, and lightness never falls from -1 to 1, so that conflict is dark in grey.
_COLOURS = LinearSegmentedColormap.from_list("conflict", ["#4D1600", "#C4540A", "#BDBDBD", "#A5D8F6", "#F4FBFF"])


def loss_figure(logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a panel for each loss: seeds thin, their mean thick, smoothed over a twentieth of the run."""
    shown = losses(logs)
    counts = {arm: len(seeds) for curves in shown.values() for arm, seeds in curves.items()}
    figure, grid = _page(counts, looks, len(shown), notes)
    for axes, (loss, curves) in zip(grid, sorted(shown.items(), reverse=True), strict=True):
        _draw(axes, curves, looks, np.mean, smooth=True)
        axes.set_title(f"{loss} loss", loc="left")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.yaxis.set_major_locator(MaxNLocator(4))
    return figure


def conflict_figure(logs: ConflictLogs, notes: Sequence[str] = ()) -> Figure:
    """Draw two heat maps for each arm, raw and corrected for noise: mean over seeds, conflict dark."""
    of_arm = gathered((arm, log) for (arm, _), log in logs.items())
    arms = sorted(of_arm, key=arm_order)
    grids = [conflict_grid(of_arm[arm], quantity) for arm in arms for quantity in COSINES]
    titles = [f"{arm}: {title}" for arm in arms for title in ("cosine", "cosine, corrected for noise")]
    left = max(text_width(_layer(layer)) for _, layers, _ in grids for layer in layers) + 0.09
    height = min(3.0, max(1.3, 0.12 * max(len(layers) for _, layers, _ in grids)))
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
    limit = max((float(np.nanmax(np.abs(values))) for *_, values in grids if not np.isnan(values).all()), default=1.0)
    scale = ScalarMappable(Normalize(-limit or -1.0, limit or 1.0), _COLOURS)
    for axes, title, grid in zip(panes, titles, grids, strict=True):
        _draw_grid(axes, grid, scale)
        axes.set_title(fit(title, panel_width(axes)), loc="left")
    bar = panes[-1].inset_axes((1.0 + 0.12 / panel_width(panes[-1]), 0.0, 0.12 / panel_width(panes[-1]), 1.0))
    figure.colorbar(scale, cax=bar, ticks=MaxNLocator(5), label="conflict < 0 < agreement")
    return figure


def conflict_rate_figure(logs: ConflictLogs, looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw the share of layers whose cosine is below 0, by step: raw above, corrected for noise below."""
    figure, grid = _page(Counter(arm for arm, _ in logs), looks, len(COSINES), notes)
    for axes, (quantity, title) in zip(grid, COSINES.items(), strict=True):
        _draw(axes, _curves(logs, partial(conflict_rate, quantity=quantity)), looks, np.mean)
        axes.set_title(f"layers in conflict, {title}", loc="left")
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def norm_ratio_figure(logs: ConflictLogs, looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw the length of ranking's gradient over that of embedding's, all layers together, by step."""
    figure, (axes,) = _page(Counter(arm for arm, _ in logs), looks, 1, notes)
    _draw(axes, _curves(logs, norm_ratio), looks, _geometric_mean)
    axes.axhline(1.0, color=NEUTRAL, linewidth=0.6, zorder=0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.45), max(high, 2.2))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title("gradient norm, ranking / embedding", loc="left")
    return figure


def losses(logs: Mapping[tuple[str, Seed], Log]) -> dict[str, dict[str, list[Curve]]]:
    """Return one curve for each seed, by loss and arm."""
    found: dict[str, dict[str, list[Curve]]] = {}
    for (arm, _), log in logs.items():
        curves = gathered((loss, (record["step"], value)) for record in log for loss, value in _parts(record))
        for loss, points in curves.items():
            found.setdefault(loss, {}).setdefault(arm, []).append(dict(points))
    return found


def conflict_grid(logs: Sequence[ConflictLog], quantity: str) -> Grid:
    """Return the mean of one quantity over seeds, by layer and step."""
    records = [record for log in logs for record in log]
    found = (((r.layer, r.step), getattr(r, quantity)) for r in records)
    values = gathered((place, value) for place, value in found if value is not None)
    layers = sorted({r.layer for r in records}, key=lambda layer: (isinstance(layer, str), natural_key(layer)))
    steps = sorted({r.step for r in records})
    means = [[np.mean(values.get((layer, step), [np.nan])) for step in steps] for layer in layers]
    return np.array(steps), layers, np.array(means)


def conflict_rate(log: ConflictLog, quantity: str) -> Curve:
    """Return the share of a seed's layers whose cosine, or corrected cosine, is below 0, among those that have one."""
    values = ((record.step, getattr(record, quantity)) for record in log)
    held = gathered((step, value < 0) for step, value in values if value is not None)
    return {step: sum(below) / len(below) for step, below in sorted(held.items())}


def norm_ratio(log: ConflictLog) -> Curve:
    """Return the norm of ranking's gradient over that of embedding's, by step, where neither is zero."""
    squares = gathered(
        (record.step, (record.norm_rank**2, record.norm_embed**2))
        for record in log
        if record.norm_rank is not None and record.norm_embed is not None
    )
    totals = {step: tuple(map(sum, zip(*held, strict=True))) for step, held in sorted(squares.items())}
    return {step: math.sqrt(rank / embed) for step, (rank, embed) in totals.items() if rank > 0 and embed > 0}


def _parts(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the losses of one record: by part where it has parts, else the one loss under its task's name."""
    parts = [(name, record.get(f"{name}_loss")) for name in ("ranking", "embedding")]
    held = [(name, float(value)) for name, value in parts if value is not None]
    if held:
        yield from held
        return
    task = str(record.get("task", ""))
    name = next((name for word, name in (("rank", "ranking"), ("emb", "embedding")) if word in task), "joint")
    yield name, record["loss"]


def _curves(logs: ConflictLogs, curve_of: Callable[[ConflictLog], Curve]) -> Curves:
    return gathered((arm, curve) for (arm, _), log in logs.items() if (curve := curve_of(log)))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))


def _page(
    counts: Mapping[str, int], looks: Mapping[str, Look], rows: int, notes: Sequence[str]
) -> tuple[Figure, list[Axes]]:
    """Make panels below each other, with a legend of the arms and their numbers of seeds."""
    legend = []
    for arm in sorted(counts, key=arm_order):
        label = fit(arm, 1.8) + (f" ({counts[arm]} seeds)" if counts[arm] > 1 else "")
        look = looks[arm]
        legend.append(Line2D([], [], color=look.colour, linestyle=look.dashes, linewidth=1.5, label=label))
    figure, grid = panels(
        rows,
        columns=1,
        follow=True,
        left=0.46,
        right=0.13,
        above=0.25,
        height=1.35,
        xlabel="step",
        legend=legend,
        notes=notes,
    )
    grid[0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure, grid


def _draw(axes: Axes, curves: Curves, looks: Mapping[str, Look], mean: Mean, *, smooth: bool = False) -> None:
    """Draw seeds thin, and thick their mean over the steps that all of them have."""
    for arm in sorted(curves, key=arm_order):
        seeds = curves[arm]
        shared = sorted(set.intersection(*map(set, seeds)))
        means = {step: float(mean([curve[step] for curve in seeds])) for step in shared}
        for curve in seeds if len(seeds) > 1 else ():
            _line(axes, _smooth(curve) if smooth else curve, looks[arm], linewidth=0.5, opacity=0.45)
        _line(axes, _smooth(means) if smooth else means, looks[arm], linewidth=1.5, opacity=1.0)


def _line(axes: Axes, curve: Curve, look: Look, linewidth: float, opacity: float) -> None:
    steps = list(curve)
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).astype(int))
    x = [steps[i] for i in keep]
    axes.plot(
        x, [curve[step] for step in x], look.dashes, color=look.colour, linewidth=linewidth, alpha=opacity,
        marker=look.marker if len(curve) == 1 else "", markersize=3.0,
    )  # fmt: skip


def _smooth(curve: Curve) -> Curve:
    """Return the running mean over the last twentieth of the run's steps; early steps average what there is."""
    window = max(1, len(curve) // 20)
    total = np.concatenate([[0.0], np.cumsum(list(curve.values()))])
    ends = np.arange(1, len(curve) + 1)
    starts = np.maximum(0, ends - window)
    return dict(zip(curve, ((total[ends] - total[starts]) / (ends - starts)).tolist(), strict=True))


def _draw_grid(axes: Axes, grid: Grid, scale: ScalarMappable) -> None:
    steps, layers, values = grid
    edges = np.arange(len(layers) + 1) - 0.5
    axes.pcolormesh(_edges(steps), edges, values, cmap=scale.get_cmap(), clim=scale.get_clim(), rasterized=True)
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
