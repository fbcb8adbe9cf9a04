"""Training losses by step, from the training logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from unimoe.analysis.figures.style import (
    ONE_COLUMN,
    Look,
    add_legend,
    add_notes,
    fit,
    legend_height,
    notes_height,
)
from unimoe.analysis.loading import Seed
from unimoe.analysis.logs import Log
from unimoe.analysis.summaries import arm_order

MOST_POINTS = 400
"""Points drawn of a curve: about two per dot of a printed column."""

Curve = Mapping[int, float]
"""Loss by step."""


def loss_figure(logs: Mapping[tuple[str, Seed], Log], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """A panel per loss: seeds thin, their mean thick, smoothed over a twentieth of the run."""
    shown = losses(logs)
    counts = {arm: len(seeds) for curves in shown.values() for arm, seeds in curves.items()}
    legend = [_handle(arm, counts[arm], looks[arm]) for arm in sorted(counts, key=arm_order)]
    top, bottom = legend_height(legend, ONE_COLUMN) + 0.25, notes_height(notes, ONE_COLUMN) + 0.36
    height, gap = 1.35, 0.36
    total = top + len(shown) * height + (len(shown) - 1) * gap + bottom
    figure = Figure(figsize=(ONE_COLUMN, total))
    for row, (loss, curves) in enumerate(sorted(shown.items(), reverse=True)):
        floor = total - top - row * (height + gap) - height
        axes = figure.add_axes((0.42 / ONE_COLUMN, floor / total, 2.75 / ONE_COLUMN, height / total))
        for arm in sorted(curves, key=arm_order):
            _draw_curves(axes, curves[arm], looks[arm])
        axes.set_title(f"{loss} loss", loc="left")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
    figure.axes[-1].set_xlabel("step")
    add_legend(figure, legend)
    add_notes(figure, notes)
    return figure


def losses(logs: Mapping[tuple[str, Seed], Log]) -> dict[str, dict[str, list[Curve]]]:
    """Loss name to arm to one curve per seed."""
    found: dict[str, dict[str, list[Curve]]] = {}
    for (arm, _), log in logs.items():
        curves: dict[str, dict[int, float]] = {}
        for record in log:
            for loss, value in _parts(record):
                curves.setdefault(loss, {})[record["step"]] = value
        for loss, curve in curves.items():
            found.setdefault(loss, {}).setdefault(arm, []).append(curve)
    return found


def _parts(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The losses of one record: by part where it has parts, else the one loss under its task's name."""
    parts = [(name, record.get(f"{name}_loss")) for name in ("ranking", "embedding")]
    held = [(name, float(value)) for name, value in parts if value is not None]
    if held:
        yield from held
        return
    task = str(record.get("task", ""))
    name = next((name for word, name in (("rank", "ranking"), ("emb", "embedding")) if word in task), "joint")
    yield name, record["loss"]


def _draw_curves(axes: Axes, seeds: Sequence[Curve], look: Look) -> None:
    if len(seeds) > 1:
        for curve in seeds:
            _draw(axes, list(curve), list(curve.values()), look, linewidth=0.5, opacity=0.45)
    shared = sorted(set.intersection(*(set(curve) for curve in seeds)))
    mean = [float(np.mean([curve[step] for curve in seeds])) for step in shared]
    _draw(axes, shared, mean, look, linewidth=1.5)


def _draw(
    axes: Axes, steps: Sequence[int], values: Sequence[float], look: Look, linewidth: float, opacity: float = 1.0
) -> None:
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).astype(int))
    smoothed = _smooth(values)
    x, y = [steps[i] for i in keep], [smoothed[i] for i in keep]
    axes.plot(x, y, look.dashes, color=look.colour, linewidth=linewidth, alpha=opacity)


def _smooth(values: Sequence[float]) -> list[float]:
    """Running mean over the last twentieth of the run's steps; early steps average what there is."""
    window = max(1, len(values) // 20)
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    smoothed: list[float] = ((total[ends] - total[starts]) / (ends - starts)).tolist()
    return smoothed


def _handle(arm: str, seeds: int, look: Look) -> Line2D:
    count = f" ({seeds} seeds)" if seeds > 1 else ""
    return Line2D([], [], color=look.colour, linestyle=look.dashes, linewidth=1.5, label=f"{fit(arm, 1.8)}{count}")
