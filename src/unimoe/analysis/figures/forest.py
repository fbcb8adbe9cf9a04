"""TIR against its two cutoffs: a row per dataset, its interval as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unimoe.analysis.crossed import FAIL_BELOW, PASS_AT
from unimoe.analysis.figures.style import (
    NEUTRAL,
    TWO_COLUMNS,
    Look,
    add_notes,
    fit,
    notes_height,
    page,
    text_width,
)
from unimoe.analysis.interference import TirEstimate
from unimoe.analysis.loading import Pair

PITCH = 0.17
"""Height of a row, in inches."""


@dataclass(frozen=True)
class Row:
    """One line of the forest, in percent.

    Attributes:
        name: the dataset, or how several were put together.
        estimate: of TIR.
        interval: its 95 % interval over seeds and queries; None where it cannot be had.
        label: the verdict in words.
        check: a second interval, of the crossed bootstrap.
        several: the row stands for several datasets.
    """

    name: str
    estimate: float
    interval: tuple[float, float] | None
    label: str
    check: tuple[float, float] | None = None
    several: bool = False


def tir_row(name: str, found: TirEstimate, *, several: bool = False, check: tuple[float, float] | None = None) -> Row:
    """The row of one TIR; without an interval the rule's label stands alone and says so."""
    if found.crossed is None:
        return Row(name, 100.0 * found.mean, None, f"{found.rule} (rule alone)", check, several)
    interval = 100.0 * found.crossed.low, 100.0 * found.crossed.high
    return Row(name, 100.0 * found.crossed.estimate, interval, found.crossed.label, check, several)


def forest_figure(groups: Mapping[Pair, Sequence[Row]], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Rows by pair of arms, the three regions named above, numbers and labels at the right."""
    rows = [row for group in groups.values() for row in group]
    names = [fit(row.name, 1.5) for row in rows]
    left, right = max(1.0, max(map(text_width, names)) + 0.2), 2.15
    lines = len(rows) + 1.5 * len(groups) - 0.5
    bottom = notes_height(notes, TWO_COLUMNS) + 0.36
    height = 0.42 + PITCH * lines + bottom
    figure, axes = page(TWO_COLUMNS, height, left=left, right=right, top=0.42, bottom=bottom)
    axes.set_xlim(limits(rows))
    axes.set_ylim(lines - 0.5, -0.5)
    _name_regions(axes)
    line, ticks = 0.0, {}
    for pair, group in groups.items():
        heading = fit(f"{pair.task}: {pair.joint} against {pair.specialist}", TWO_COLUMNS - 0.2)
        axes.annotate(heading, (0.0, line), xycoords=("axes fraction", "data"), xytext=(4.0 - 72.0 * left, 0.0),
                      textcoords="offset points", va="center")  # fmt: skip
        _draw_regions(axes, line + 0.5, line + len(group) + 0.5)
        for place, row in enumerate(group, start=1):
            _draw_row(axes, line + place, row, looks[pair.joint])
            ticks[line + place] = fit(row.name, 1.5)
        line += len(group) + 1.5
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="y", length=0.0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("TIR: share of the specialist's score that the joint arm loses (%); negative is synergy")
    add_notes(figure, notes)
    return figure


def limits(rows: Sequence[Row]) -> tuple[float, float]:
    """What the axis shows: every estimate, both cutoffs, and intervals unless they are far longer than most.

    One dataset with a handful of queries would otherwise squeeze all others to a dot.
    """
    ends = np.array([row.interval or (row.estimate, row.estimate) for row in rows])
    reach = 3.0 * float(np.median(ends[:, 1] - ends[:, 0])) / 2.0
    estimates = [row.estimate for row in rows]
    low = max(float(ends[:, 0].min()), min(estimates) - max(reach, 1.0))
    high = min(float(ends[:, 1].max()), max(estimates) + max(reach, 1.0))
    low, high = min(low, 100.0 * FAIL_BELOW - 1.0), max(high, 100.0 * PASS_AT + 1.0)
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _name_regions(axes: Axes) -> None:
    fail, pass_ = 100.0 * FAIL_BELOW, 100.0 * PASS_AT
    names = ((fail, "right", f"FAIL (below {fail:g} %) ", 2), (pass_, "left", f" PASS (from {pass_:g} %)", 2),
             ((fail + pass_) / 2, "center", "MARGINAL", 12))  # fmt: skip
    for x, align, name, rise in names:
        axes.annotate(name, (x, 1.0), xycoords=("data", "axes fraction"), xytext=(0, rise),
                      textcoords="offset points", ha=align, va="bottom")  # fmt: skip


def _draw_regions(axes: Axes, top: float, bottom: float) -> None:
    """Shades of grey that darken towards PASS, behind the rows of one group."""
    low, high = axes.get_xlim()
    cutoffs = [100.0 * FAIL_BELOW, 100.0 * PASS_AT]
    for ends, alpha in ((cutoffs, 0.16), ([cutoffs[1], high], 0.34)):
        axes.fill_between(ends, top, bottom, color=NEUTRAL, alpha=alpha, linewidth=0.0, zorder=0)
    axes.vlines(cutoffs, top, bottom, color=NEUTRAL, linewidth=0.6)
    if low < 0.0:
        axes.vlines(0.0, top, bottom, color=NEUTRAL, linewidth=0.6, linestyle=":")


def _draw_row(axes: Axes, place: float, row: Row, look: Look) -> None:
    low, high = axes.get_xlim()
    if row.interval:
        start, end = row.interval
        axes.hlines(place, max(start, low), min(end, high), color="black", linewidth=1.0)
        for beyond, edge, arrow in ((start < low, low, "<"), (end > high, high, ">")):
            if beyond:
                axes.plot([edge], [place], arrow, color="black", markersize=3.5, clip_on=False)
    if row.check:
        axes.hlines(place + 0.28, max(row.check[0], low), min(row.check[1], high), color=NEUTRAL, linewidth=0.8)
    marker = "D" if row.several else "s"
    axes.plot([row.estimate], [place], marker, color=look.colour, markersize=4.5, markeredgecolor="black",
              markeredgewidth=0.5)  # fmt: skip
    interval = f"[{row.interval[0]:.2f}, {row.interval[1]:.2f}]" if row.interval else "no interval"
    for x, text in ((0.1, f"{row.estimate:.2f} {interval}"), (1.22, row.label)):
        axes.annotate(text, (1.0, place), xycoords=("axes fraction", "data"), xytext=(72.0 * x, 0.0),
                      textcoords="offset points", va="center", annotation_clip=False)  # fmt: skip
