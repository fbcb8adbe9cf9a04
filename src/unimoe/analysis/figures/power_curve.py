"""How much more data would help: half the TIR interval against the number of queries, for several numbers of seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from unimoe.analysis.crossed import FAIL_BELOW, PASS_AT, CrossedInterval, MeanSquares
from unimoe.analysis.figures.style import NEUTRAL, Dashes, Look, fit, panel_width, panels
from unimoe.analysis.interference import Interference
from unimoe.analysis.power import half_width

MORE_SEEDS: dict[int, Dashes] = {5: "--", 10: ":"}
"""Numbers of seeds to plan for, and the dashes of their curves."""
QUERIES = np.unique(np.geomspace(30, 100_000, 60).astype(int))


@dataclass(frozen=True)
class Curve:
    """One TIR with the variance components to plan from."""

    item: Interference
    crossed: CrossedInterval
    squares: MeanSquares

    def half_widths(self, n_seeds: int) -> NDArray[np.float64]:
        """Half of the 95 % interval to expect at each of ``QUERIES``, in points of TIR."""
        return 100.0 * half_width(self.squares, n_seeds, QUERIES)

    @property
    def distance(self) -> float:
        """From the estimate to the nearest cutoff, in points of TIR."""
        return 100.0 * min(abs(self.crossed.estimate - cutoff) for cutoff in (FAIL_BELOW, PASS_AT))


def power_curves(items: Sequence[Interference]) -> list[Curve]:
    """A curve for all that have at least two seeds and two queries, and vary at all."""
    return [
        Curve(item, item.crossed, item.crossed.mean_squares)
        for item in items
        if item.crossed and item.crossed.mean_squares and item.crossed.standard_error > 0.0
    ]


def power_figure(curves: Sequence[Curve], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """A panel per dataset on one scale: half width by queries, where we are, and the distance to the nearest cutoff."""
    more = [seeds for seeds in MORE_SEEDS if any(seeds > len(curve.item.seeds) for curve in curves)]
    legend = [
        Line2D([], [], color="black", marker="o", markersize=4.0, label="seeds there are (point: now)"),
        *(Line2D([], [], color="black", linestyle=MORE_SEEDS[seeds], label=f"{seeds} seeds") for seeds in more),
        Line2D([], [], color=NEUTRAL, linewidth=2.0, label="distance to the nearest cutoff"),
    ]
    figure, grid = panels(
        len(curves),
        left=0.3,
        xlabel="queries",
        ylabel="half of the TIR interval, points",
        notes=notes,
        legend=legend,
    )
    several = len({curve.item.pair for curve in curves}) > 1
    drawn = [_draw(axes, curve, looks[curve.item.pair.joint]) for axes, curve in zip(grid, curves, strict=True)]
    low, high = min(map(min, drawn)), max(map(max, drawn))
    for axes, item in zip(grid, [curve.item for curve in curves], strict=True):
        _set_scales(axes, max(low, high / 1e4), high)
        pair = f", {item.pair.joint}" if several else ""
        title = f"{item.dataset}{pair} (S = {len(item.seeds)}, n = {item.queries:,})"
        axes.set_title(fit(title, panel_width(axes)), loc="left")
    return figure


def _draw(axes: Axes, curve: Curve, look: Look) -> list[float]:
    """Draw one panel and return the heights its scale should show."""
    now = len(curve.item.seeds)
    heights = [100.0 * (curve.crossed.high - curve.crossed.low) / 2]
    for seeds, dashes in {now: "-", **{more: dashes for more, dashes in MORE_SEEDS.items() if more > now}}.items():
        values = curve.half_widths(seeds)
        axes.plot(QUERIES, values, dashes, color=look.colour, linewidth=1.2)
        heights += [float(values.min()), float(values.max())]
    axes.plot([curve.item.queries], heights[:1], "o", color=look.colour, markersize=4.5, markeredgecolor="black")
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
