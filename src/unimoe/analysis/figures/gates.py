"""Gates, a panel for each dataset: what each query gains or loses, and how much more data would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from unimoe.analysis.figures.style import NEUTRAL, Dashes, Look, fit, panels, set_titles
from unimoe.analysis.formats import signed
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.statistics.power import half_width
from unimoe.analysis.statistics.variance import Terms
from unimoe.analysis.tables.gates import by_kind
from unimoe.results.folder import Results

MOST_STEPS = 300  # of a panel, which is about 150 points wide in print
MORE_SEEDS: dict[int, Dashes] = {5: "--", 10: ":"}  # numbers of seeds to plan for, and the dashes of their curves
QUERIES = np.unique(np.geomspace(30, 100_000, 40).astype(int))


def difference_figure(
    results: Results, items: Sequence[Judgment], looks: Mapping[str, Look], notes: Sequence[str] = ()
) -> Figure:
    """Draw differences by query, averaged over each arm's seeds and sorted: wins above 0, losses below."""
    shown = _each_once(items)
    judged_first = {arm: looks[arm] for place in (0, 1) for arm in (item.gate.sides[place] for item in items)}
    edge: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.4}
    legend = [
        Patch(facecolor=look.colour, hatch=look.hatch, label=f"{fit(arm, 1.8)} better", **edge)
        for arm, look in judged_first.items()
    ]
    xlabel = "queries, from the largest gain to the largest loss (%)"
    ylabel = by_kind(items, "joint - specialist, points", "system - baseline, points", "difference, points")
    figure, grid = panels(len(shown), left=0.33, xlabel=xlabel, ylabel=ylabel, legend=legend, notes=notes)
    titles = [f"{found.datasets[0]}{_which(item, items)}" for item, found in shown]
    set_titles(grid, titles, [f"n = {found.queries:,}" for _, found in shown])
    reach = 0.0
    for axes, (item, found) in zip(grid, shown, strict=True):
        differences = sorted_differences(results, item.gate, found)
        reach = max(reach, float(np.abs(differences).max()))
        _draw_differences(axes, differences, *(looks[arm] for arm in item.gate.sides))
    for axes in grid:
        axes.set_ylim(-1.05 * reach or -1.0, 1.05 * reach or 1.0)
        axes.set_xlim(0.0, 100.0)
        axes.set_xticks([20, 40, 60, 80])
    return figure


def sorted_differences(results: Results, gate: Gate, found: Finding) -> NDArray[np.float64]:
    """Return differences by query of a finding's one dataset, largest first, in points.

    They are joint minus specialist, or system minus baseline, each arm averaged over its own seeds.
    """
    seeds = dict(zip(gate.arms, found.seeds, strict=True))
    key = f"{gate.task}/{found.datasets[0]}"
    judged, other = (results.scores(arm, key, seeds[arm], gate.metric).mean(axis=0) for arm in gate.sides)
    differences = np.round(100.0 * (judged - other), 9)  # equal scores may differ in the last bits of their mean
    return np.asarray(np.sort(differences)[::-1])


def stairs(differences: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is drawn of sorted differences: ``(steps,)`` heights, ``(steps + 1,)`` edges in percent of queries.

    Many queries are averaged in runs of neighbours, which leaves the area, and so the mean, as it is.
    """
    n = len(differences)
    edges = np.unique(np.linspace(0, n, min(n, MOST_STEPS) + 1).astype(int))
    return np.add.reduceat(differences, edges[:-1]) / np.diff(edges), 100.0 * edges / n


def _draw_differences(axes: Axes, differences: NDArray[np.float64], judged: Look, other: Look) -> None:
    heights, edges = stairs(differences)
    gains = int((heights > 0.0).sum())
    for look, part in ((judged, slice(0, gains)), (other, slice(gains, len(heights)))):
        if len(heights[part]):
            ends = edges[part.start : part.stop + 1]
            axes.stairs(
                heights[part], ends, fill=True, facecolor=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0
            )
    axes.axhline(0.0, color=NEUTRAL, linewidth=0.6)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    counts = f"won {wins:,}, tied {len(differences) - wins - losses:,}, lost {losses:,}"
    for height, text in ((0.97, counts), (0.85, f"mean {signed(float(differences.mean()))}")):
        axes.text(0.99, height, text, transform=axes.transAxes, ha="right", va="top")


def _each_once(items: Sequence[Judgment]) -> list[tuple[Judgment, Finding]]:
    """Return what was found on each dataset; two gates on the same scores have the same differences."""
    shown: dict[object, tuple[Judgment, Finding]] = {}
    for item in items:
        for found in item.rows:
            seeds = sorted(zip(item.gate.arms, found.seeds, strict=True))
            shown.setdefault((item.gate.sides, tuple(seeds), found.datasets, item.gate.metric), (item, found))
    return list(shown.values())


def _which(item: Judgment, items: Sequence[Judgment]) -> str:
    """Return what tells a judgment from the others of the figure; empty where there is one."""
    if len(items) == 1:
        return ""
    arms, metrics = {other.gate.sides for other in items}, {other.gate.metric for other in items}
    parts = [*([item.gate.sides[0]] if len(arms) > 1 else []), *([item.gate.metric] if len(metrics) > 1 else [])]
    alike = [other for other in items if (other.gate.sides, other.gate.metric) == (item.gate.sides, item.gate.metric)]
    return f", {', '.join(parts) if parts and len(alike) == 1 else item.name}"


@dataclass(frozen=True)
class Curve:
    """What a gate found on one dataset, and the parts of its variance to plan from."""

    gate: Gate
    title: str  # the dataset, and what tells the gate from others
    found: Finding
    terms: Terms
    interval: tuple[float, float]

    @property
    def seeds(self) -> int:
        """Seeds of the arm with fewest, of those with several; 0 where no arm varies over seeds."""
        return int(min(self.terms.runs, default=0))

    def half_widths(self, n_seeds: int) -> NDArray[np.float64]:
        """Return half of the 95 % interval to expect at each of ``QUERIES``, in points."""
        return np.array([100.0 * half_width(self.terms, n_seeds, int(queries)) for queries in QUERIES])

    @property
    def distance(self) -> float:
        """From the estimate to the nearest cutoff of its own gate, in points."""
        return 100.0 * min(abs(self.found.value - cutoff) for cutoff in self.gate.cutoffs)


def power_curves(items: Sequence[Judgment]) -> list[Curve]:
    """Return a curve for each dataset of each judgment whose variance is known."""
    return [
        Curve(item.gate, found.datasets[0] + _which(item, items), found, found.estimate.terms, found.estimate.interval)
        for item in items
        for found in item.rows
        if found.estimate.terms and found.estimate.interval and not found.why and item.gate.estimand != "seeds"
    ]


def power_figure(curves: Sequence[Curve], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a panel for each dataset on one scale: half width by queries, where we are, and the nearest cutoff."""
    more = [seeds for seeds in MORE_SEEDS if any(0 < curve.seeds < seeds for curve in curves)]
    legend = [
        Line2D([], [], color="black", marker="o", markersize=4.0, label="seeds there are (point: now)"),
        *(Line2D([], [], color="black", linestyle=MORE_SEEDS[seeds], label=f"{seeds} seeds") for seeds in more),
        Line2D([], [], color=NEUTRAL, linewidth=2.0, label="distance to the nearest cutoff"),
    ]
    ylabel = "half of the interval, points"
    figure, grid = panels(len(curves), left=0.3, xlabel="queries", ylabel=ylabel, legend=legend, notes=notes)
    sizes = [f"{f'S = {c.seeds}, ' if c.seeds else ''}n = {c.found.queries:,}" for c in curves]
    set_titles(grid, [curve.title for curve in curves], sizes)
    drawn = [_draw_curve(axes, curve, looks[curve.gate.sides[0]]) for axes, curve in zip(grid, curves, strict=True)]
    low, high = min(map(min, drawn)), max(map(max, drawn))
    for axes in grid:
        _set_scales(axes, max(low, high / 1e4), high)
    return figure


def _draw_curve(axes: Axes, curve: Curve, look: Look) -> list[float]:
    """Draw one panel and return the heights its scale should show."""
    heights = [50.0 * (curve.interval[1] - curve.interval[0])]
    more = {seeds: dashes for seeds, dashes in MORE_SEEDS.items() if 0 < curve.seeds < seeds}
    for seeds, dashes in {curve.seeds: "-", **more}.items():
        values = curve.half_widths(seeds)
        axes.plot(QUERIES, values, dashes, color=look.colour, linewidth=1.2)
        heights += [float(values.min()), float(values.max())]
    axes.plot([curve.found.queries], heights[:1], "o", color=look.colour, markersize=4.5, markeredgecolor="black")
    axes.axhline(curve.distance, color=NEUTRAL, linewidth=2.0, alpha=0.7, zorder=0)
    return heights


def _set_scales(axes: Axes, low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(QUERIES[0], QUERIES[-1])
    axes.set_ylim(low / 1.3, high * 1.3)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    heights = [digit * 10.0**power for power in powers for digit in (1, 3)]
    for axis, ticks in ((axes.xaxis, [100, 1_000, 10_000, 100_000]), (axes.yaxis, heights)):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}".replace(",000", "k")))
