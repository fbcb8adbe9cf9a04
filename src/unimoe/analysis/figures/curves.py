"""Curves over the course of training: losses, how many layers conflict, and which task's gradient is longer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter

from unimoe.analysis.arms import arm_order
from unimoe.analysis.figures.style import NEUTRAL, Look, fit, panels
from unimoe.analysis.loading import Seed
from unimoe.analysis.logs import ConflictLog, Log
from unimoe.analysis.tables.cells import gathered

Curve: TypeAlias = Mapping[int, float]
"""A value by step."""

Curves: TypeAlias = Mapping[str, Sequence[Curve]]
"""One curve for each seed, by arm."""

Mean: TypeAlias = Callable[[Sequence[float]], Any]

MOST_POINTS = 400
"""Points drawn of a curve: about two per dot of a printed column."""

PANELS = {"cosine": "raw", "cosine_corrected": "corrected for noise"}


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


def conflict_rate_figure(
    logs: Mapping[tuple[str, Seed], ConflictLog], looks: Mapping[str, Look], notes: Sequence[str] = ()
) -> Figure:
    """Draw the share of layers whose cosine is below 0, by step: raw above, corrected for noise below."""
    figure, grid = _page(Counter(arm for arm, _ in logs), looks, len(PANELS), notes)
    for axes, (quantity, title) in zip(grid, PANELS.items(), strict=True):
        _draw(axes, _curves(logs, partial(conflict_rate, quantity=quantity)), looks, np.mean)
        axes.set_title(f"layers in conflict, {title}", loc="left")
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def norm_ratio_figure(
    logs: Mapping[tuple[str, Seed], ConflictLog], looks: Mapping[str, Look], notes: Sequence[str] = ()
) -> Figure:
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
        curves: dict[str, dict[int, float]] = {}
        for record in log:
            for loss, value in _parts(record):
                curves.setdefault(loss, {})[record["step"]] = value
        for loss, curve in curves.items():
            found.setdefault(loss, {}).setdefault(arm, []).append(curve)
    return found


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


def _curves(logs: Mapping[tuple[str, Seed], ConflictLog], curve_of: Callable[[ConflictLog], Curve]) -> Curves:
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
