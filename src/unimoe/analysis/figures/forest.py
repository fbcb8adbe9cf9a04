"""Estimates with their intervals against cutoffs: a row for each dataset, a group for each gate or set of systems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unimoe.analysis.comparisons import Comparison
from unimoe.analysis.figures.style import NEUTRAL, TWO_COLUMNS, Look, fit, fit_all, panel_width, panels, text_width
from unimoe.analysis.formats import signed
from unimoe.analysis.gates.definitions import EquivalenceGate, Gate, InterferenceGate, Label
from unimoe.analysis.gates.findings import Finding, bounds_of, region_of
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.wording import WAYS, amount, bound_text, finding_word, interval_text, shown
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.core.grouping import gathered

_PITCH = 0.17  # height of a row, in inches
_NAME = 1.6  # room for the name of a row, in inches
_NUMBERS = 1.38  # room for an estimate and its interval, in inches
_SHADES: dict[Label, float] = {"PASS": 0.34, "MARGINAL": 0.16}


@dataclass(frozen=True)
class Row:
    """One line of the forest, in percent or points."""

    name: str  # the dataset, or how several were put together
    value: float  # NaN where there is none
    interval: tuple[float, float] | None  # of 95 %; None where it cannot be had
    numbers: str  # value and interval as text
    label: str  # what was decided
    look: Look  # of the arm that is judged
    bounds: tuple[float, ...] = ()  # what the label rests on: ends of one-sided intervals
    several: bool = False  # whether the row is about several datasets


@dataclass(frozen=True)
class Group:
    """Rows that share their cutoffs."""

    heading: str
    cutoffs: tuple[float, ...]  # ascending, in the unit of the rows
    regions: tuple[tuple[str, float], ...]  # name and shade of grey (0 to 1) of each that the cutoffs bound, or empty
    rows: tuple[Row, ...]


def gate_groups(items: Sequence[Judgment], looks: Mapping[str, Look]) -> list[Group]:
    """Return a group for each judgment, with the cutoffs of its own gate."""
    names = fit_all((found.datasets[0] for item in items for found in item.rows), _NAME)
    return [_of_gate(item, names, looks) for item in items]


def comparison_groups(comparisons: Sequence[Comparison], looks: Mapping[str, Look]) -> list[Group]:
    """Return a group for each dataset, a row for each two systems."""
    rows = gathered(
        (f"{c.key}, {c.metric} ({c.queries:,} queries)", _of_comparison(c, looks[c.system])) for c in comparisons
    )
    return [Group(heading, (0.0,), (), tuple(of_place)) for heading, of_place in rows.items()]


def forest_figure(groups: Sequence[Group], xlabel: str, notes: Sequence[str] = ()) -> Figure:
    """Draw rows by group, the regions of each group named above its rows, numbers and labels at the right."""
    rows = [row for group in groups for row in group.rows]
    widest = max(text_width(fit(row.name, _NAME)) for row in rows)
    left, right = max(1.0, widest + 0.2), _NUMBERS + max(text_width(row.label) for row in rows) + 0.15
    lines = len(rows) + sum(2.5 if group.regions else 1.5 for group in groups) - 0.5
    figure, (axes,) = panels(
        1, width=TWO_COLUMNS, left=left, right=right, above=0.1, height=_PITCH * lines, xlabel=xlabel, notes=notes
    )
    axes.set_xlim(limits(groups))
    axes.set_ylim(lines - 0.5, -0.5)
    line, ticks = 0.0, {}
    for group in groups:
        heading = fit(group.heading, TWO_COLUMNS - 0.2)
        axes.annotate(heading, (0.0, line), xycoords=("axes fraction", "data"), xytext=(4.0 - 72.0 * left, 0.0),
                      textcoords="offset points", va="center")  # fmt: skip
        line += 1.0 if group.regions else 0.0
        _draw_regions(axes, line, group)
        for place, row in enumerate(group.rows, start=1):
            _draw_row(axes, line + place, row)
            ticks[line + place] = fit(row.name, _NAME)
        line += len(group.rows) + 1.5
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="y", length=0.0)
    axes.spines["left"].set_visible(False)
    return figure


def limits(groups: Sequence[Group]) -> tuple[float, float]:
    """Return what the axis shows: every estimate and cutoff, and intervals unless they are far longer than most.

    One dataset with a handful of queries would otherwise squeeze all others to a dot.
    """
    rows = [row for group in groups for row in group.rows if not math.isnan(row.value)]
    cutoffs = [cutoff for group in groups for cutoff in group.cutoffs]
    values = [row.value for row in rows] or cutoffs
    ends = np.array([row.interval or (row.value, row.value) for row in rows] or [(min(cutoffs), max(cutoffs))])
    reach = max(3.0 * float(np.median(ends[:, 1] - ends[:, 0])) / 2.0, 1.0)
    low = min(max(float(ends[:, 0].min()), min(values) - reach), min(cutoffs) - 1.0)
    high = max(min(float(ends[:, 1].max()), max(values) + reach), max(cutoffs) + 1.0)
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _of_gate(item: Judgment, names: Mapping[str, str], looks: Mapping[str, Look]) -> Group:
    gate, look, arms = item.gate, looks[item.gate.sides[0]], " against ".join(item.gate.sides)
    rows = [_row(item, part, names[part.datasets[0]], look) for part in item.rows]
    if item.parts:
        across = WAYS[gate.across] if isinstance(gate, InterferenceGate) else "mean of datasets"
        rows.append(_row(item, item.found, across, look, several=True))
    which = f"gate {item.name}" if item.registered else "no registered gate"
    heading = f"{gate.task}: {arms}, {gate.metric} ({which}{', advisory' if item.advisory else ''})"
    return Group(heading, tuple(100.0 * cutoff for cutoff in gate.cutoffs), tuple(_regions(gate)), tuple(rows))


def _regions(gate: Gate) -> Iterator[tuple[str, float]]:
    first, last = gate.cutoffs[0], gate.cutoffs[-1]
    for low, high in pairwise([first - 1.0, *gate.cutoffs, last + 1.0]):
        label = region_of(gate, (low + high) / 2.0)
        if high == first:
            name = f"{label} below {amount(gate, first)}"
        elif low == last:
            name = f"{label} {'above' if isinstance(gate, EquivalenceGate) else 'from'} {amount(gate, last)}"
        else:
            name = label
        yield name, _SHADES.get(label, 0.0)


def _row(item: Judgment, found: Finding, name: str, look: Look, *, several: bool = False) -> Row:
    number = shown(item.gate, found.value)
    bound, word = bound_text(item.gate, found), finding_word(item.gate, found.label)
    return Row(
        name=name,
        value=100.0 * found.value,
        interval=_hundredfold(found.estimate),
        numbers=number if math.isnan(found.value) else f"{number.rpartition(' ')[0]} {interval_text(item.gate, found)}",
        label=f"{word}: {bound}" if bound else word,
        look=look,
        bounds=tuple(100.0 * end for end in bounds_of(item.gate, found) if end is not None),
        several=several,
    )


def _of_comparison(c: Comparison, look: Look) -> Row:
    ends = _hundredfold(c.difference)
    text = f"[{signed(ends[0], keep_side=True)}, {signed(ends[1], keep_side=True)}]" if ends else "[no interval]"
    return Row(
        name=f"{c.system} \N{MINUS SIGN} {c.baseline}",
        value=100.0 * c.delta,
        interval=ends,
        numbers=f"{signed(100.0 * c.delta)} {text}",
        label="no test" if c.p_corrected is None else f"p {c.p_corrected:.4f}{' *' if c.significant else ''}",
        look=look,
    )


def _hundredfold(found: Estimate) -> tuple[float, float] | None:
    return found.interval and (100.0 * found.interval[0], 100.0 * found.interval[1])


def _draw_regions(axes: Axes, line: float, group: Group) -> None:
    """Shade regions behind the rows; name the outer ones beside their cutoffs, an inner one where it fits."""
    low, high = axes.get_xlim()
    top, bottom = line + 0.5, line + len(group.rows) + 0.5
    inches = panel_width(axes) / (high - low)
    for (start, end), (name, shade) in zip(pairwise([low, *group.cutoffs, high]), group.regions, strict=False):
        if shade:
            axes.fill_between([start, end], top, bottom, color=NEUTRAL, alpha=shade, linewidth=0.0, zorder=0)
        if start == low:
            place, points, align = end, -3.0, "right"
        elif end == high:
            place, points, align = start, 3.0, "left"
        elif text_width(name) < inches * (end - start):
            place, points, align = (start + end) / 2.0, 0.0, "center"
        else:
            continue
        axes.annotate(name, (place, line), xytext=(points, 0.0), textcoords="offset points", ha=align, va="center")
    axes.vlines(group.cutoffs, top, bottom, color=NEUTRAL, linewidth=0.6)
    if low < 0.0 < high:
        axes.vlines(0.0, top, bottom, color=NEUTRAL, linewidth=0.6, linestyle=":")


def _draw_row(axes: Axes, place: float, row: Row) -> None:
    low, high = axes.get_xlim()
    if row.interval:
        start, end = row.interval
        axes.hlines(place, max(start, low), min(end, high), color="black", linewidth=1.0)
        for beyond, edge, arrow in ((start < low, low, "<"), (end > high, high, ">")):
            if beyond:
                axes.plot([edge], [place], arrow, color="black", markersize=3.5, clip_on=False)
    for bound in row.bounds:
        if low <= bound <= high:
            axes.plot([bound], [place], "|", color="black", markersize=6.0)
    if not math.isnan(row.value):
        marker = "D" if row.several else "s"
        axes.plot([row.value], [place], marker, color=row.look.colour, markersize=4.5, markeredgecolor="black",
                  markeredgewidth=0.5)  # fmt: skip
    for x, text in ((0.1, row.numbers), (_NUMBERS + 0.08, row.label)):
        axes.annotate(text, (1.0, place), xycoords=("axes fraction", "data"), xytext=(72.0 * x, 0.0),
                      textcoords="offset points", va="center", annotation_clip=False)  # fmt: skip
