"""Gradient conflicts over the course of training: how many layers conflict, and which task's gradient is longer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter

from unimoe.analysis.figures.conflict_log import Conflict
from unimoe.analysis.figures.style import (
    NEUTRAL,
    ONE_COLUMN,
    Look,
    add_legend,
    add_notes,
    fit,
    legend_height,
    notes_height,
)
from unimoe.analysis.loading import Seed
from unimoe.analysis.summaries import arm_order

Log: TypeAlias = Sequence[Conflict]
Curve: TypeAlias = dict[int, float]
"""A value by step."""

_HEIGHT, _LEFT, _WIDTH, _GAP = 1.35, 0.46, 2.71, 0.36

PANELS = {"cosine": "raw", "cosine_corrected": "corrected for noise"}


def conflict_rate_figure(
    logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], notes: Sequence[str] = ()
) -> Figure:
    """Share of layers whose cosine is below 0, by step: raw above, corrected for noise below."""
    figure, panels = _page(logs, looks, len(PANELS), notes)
    for axes, (quantity, title) in zip(panels, PANELS.items(), strict=True):
        _draw(axes, logs, looks, partial(conflict_rate, quantity=quantity), np.mean)
        axes.set_title(f"layers in conflict, {title}", loc="left")
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def norm_ratio_figure(
    logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], notes: Sequence[str] = ()
) -> Figure:
    """Length of ranking's gradient over that of embedding's, all layers together, by step."""
    figure, (axes,) = _page(logs, looks, 1, notes)
    _draw(axes, logs, looks, norm_ratio, _geometric_mean)
    axes.axhline(1.0, color=NEUTRAL, linewidth=0.6, zorder=0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.45), max(high, 2.2))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title("gradient norm, ranking / embedding", loc="left")
    return figure


def conflict_rate(log: Log, quantity: str) -> Curve:
    """Share of the layers with a cosine below 0, by step, among the layers that have one.

    Args:
        log: of one seed.
        quantity: ``cosine`` or ``cosine_corrected``.
    """
    held: dict[int, list[bool]] = {}
    for record in log:
        value = getattr(record, quantity)
        if value is not None:
            held.setdefault(record.step, []).append(value < 0)
    return {step: sum(below) / len(below) for step, below in sorted(held.items())}


def norm_ratio(log: Log) -> Curve:
    """Norm of ranking's gradient over that of embedding's, by step; without the steps where either is zero."""
    squares: dict[int, list[tuple[float, float]]] = {}
    for record in log:
        if record.norm_rank is not None and record.norm_embed is not None:
            squares.setdefault(record.step, []).append((record.norm_rank**2, record.norm_embed**2))
    totals = {step: tuple(map(sum, zip(*held, strict=True))) for step, held in sorted(squares.items())}
    return {step: math.sqrt(rank / embed) for step, (rank, embed) in totals.items() if rank > 0 and embed > 0}


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))


def _page(
    logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], rows: int, notes: Sequence[str]
) -> tuple[Figure, list[Axes]]:
    arms = sorted({arm for arm, _ in logs}, key=arm_order)
    legend = [_handle(arm, sum(other == arm for other, _ in logs), looks[arm]) for arm in arms]
    top, bottom = legend_height(legend, ONE_COLUMN) + 0.25, notes_height(notes, ONE_COLUMN) + 0.36
    total = top + rows * _HEIGHT + (rows - 1) * _GAP + bottom
    figure = Figure(figsize=(ONE_COLUMN, total))
    panels = []
    for row in range(rows):
        floor = total - top - row * (_HEIGHT + _GAP) - _HEIGHT
        axes = figure.add_axes((_LEFT / ONE_COLUMN, floor / total, _WIDTH / ONE_COLUMN, _HEIGHT / total))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panels.append(axes)
    panels[-1].set_xlabel("step")
    add_legend(figure, legend)
    add_notes(figure, notes)
    return figure, panels


def _draw(
    axes: Axes,
    logs: Mapping[tuple[str, Seed], Log],
    looks: Mapping[str, Look],
    curve_of: Callable[[Log], Curve],
    mean: Callable[[Sequence[float]], Any],
) -> None:
    """Seeds thin; their mean thick, over the steps that all of them have."""
    for arm in sorted({arm for arm, _ in logs}, key=arm_order):
        curves = [curve for (other, _), log in logs.items() if other == arm and (curve := curve_of(log))]
        for curve in curves if len(curves) > 1 else ():
            _line(axes, curve, looks[arm], linewidth=0.5, opacity=0.45)
        shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
        means = {step: float(mean([curve[step] for curve in curves])) for step in shared}
        _line(axes, means, looks[arm], linewidth=1.5, opacity=1.0)


def _line(axes: Axes, curve: Curve, look: Look, linewidth: float, opacity: float) -> None:
    marker = look.marker if len(curve) == 1 else ""
    axes.plot(
        list(curve), list(curve.values()), look.dashes, color=look.colour, linewidth=linewidth, alpha=opacity,
        marker=marker, markersize=3.0,
    )  # fmt: skip


def _handle(arm: str, seeds: int, look: Look) -> Line2D:
    count = f" ({seeds} seeds)" if seeds > 1 else ""
    return Line2D([], [], color=look.colour, linestyle=look.dashes, linewidth=1.5, label=f"{fit(arm, 1.8)}{count}")
