"""What each query gains or loses under the joint arm: sorted differences, one panel per dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from unimoe.analysis.figures.style import NEUTRAL, Look, fit, panel_width, panels
from unimoe.analysis.interference import Interference
from unimoe.analysis.loading import Results

MOST_STEPS = 300
"""Steps of a panel, which is about 150 points wide in print."""


def difference_figure(
    results: Results, items: Sequence[Interference], looks: Mapping[str, Look], notes: Sequence[str] = ()
) -> Figure:
    """Per-query differences, joint minus specialist, averaged over seeds and sorted: wins above 0, losses below."""
    legend = [
        Patch(facecolor=looks[arm].colour, hatch=looks[arm].hatch, edgecolor="black", linewidth=0.4, label=label)
        for arm in _sides(items)
        for label in [f"{fit(arm, 1.8)} better"]
    ]
    figure, grid = panels(
        len(items),
        left=0.33,
        xlabel="queries, from the largest gain to the largest loss (%)",
        ylabel="joint - specialist, points",
        notes=notes,
        legend=legend,
    )
    several = len({item.pair for item in items}) > 1
    reach = 0.0
    for axes, item in zip(grid, items, strict=True):
        differences = sorted_differences(results, item)
        reach = max(reach, float(np.abs(differences).max()))
        _draw(axes, differences, looks[item.pair.joint], looks[item.pair.specialist])
        pair = f", {item.pair.joint}" if several else ""
        axes.set_title(fit(f"{item.dataset}{pair} (n = {item.queries:,})", panel_width(axes)), loc="left")
    for axes in grid:
        axes.set_ylim(-1.05 * reach or -1.0, 1.05 * reach or 1.0)
    return figure


def sorted_differences(results: Results, item: Interference) -> NDArray[np.float64]:
    """Joint minus specialist by query, ``(queries,)``, in points, averaged over their common seeds, largest first."""
    key = f"{item.pair.task}/{item.dataset}"
    specialist, joint = (
        results.scores(arm, key, item.seeds).mean(axis=0) for arm in (item.pair.specialist, item.pair.joint)
    )
    differences = np.round(100.0 * (joint - specialist), 9)  # equal scores may differ in the last bits of their mean
    return np.asarray(np.sort(differences)[::-1])


def stairs(differences: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What is drawn of sorted differences: ``(steps,)`` heights and ``(steps + 1,)`` edges in percent of queries.

    Many queries are averaged in runs of neighbours, which leaves the area, and so the mean, as it is.
    """
    n = len(differences)
    edges = np.unique(np.linspace(0, n, min(n, MOST_STEPS) + 1).astype(int))
    return np.add.reduceat(differences, edges[:-1]) / np.diff(edges), 100.0 * edges / n


def _draw(axes: Axes, differences: NDArray[np.float64], joint: Look, specialist: Look) -> None:
    heights, edges = stairs(differences)
    gains = int((heights > 0.0).sum())
    for look, part in ((joint, slice(0, gains)), (specialist, slice(gains, len(heights)))):
        if len(heights[part]):
            ends = edges[part.start : part.stop + 1]
            axes.stairs(
                heights[part], ends, fill=True, facecolor=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0
            )
    axes.axhline(0.0, color=NEUTRAL, linewidth=0.6)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    counts = f"won {wins:,}, tied {len(differences) - wins - losses:,}, lost {losses:,}"
    for height, text in ((0.97, counts), (0.85, f"mean {differences.mean():+.2f}")):
        axes.text(0.99, height, text, transform=axes.transAxes, ha="right", va="top")
    axes.set_xlim(0.0, 100.0)
    axes.set_xticks([20, 40, 60, 80])


def _sides(items: Sequence[Interference]) -> list[str]:
    """Every arm that can be better on a query, joint arms first."""
    return list(dict.fromkeys([*(item.pair.joint for item in items), *(item.pair.specialist for item in items)]))
