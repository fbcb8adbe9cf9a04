"""What gates and comparisons found: forests of estimates, and how much more data would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from unimoe.analysis.comparisons import Comparison
from unimoe.analysis.figures.scores import panel_titles
from unimoe.analysis.figures.style import HAIRLINE, LONG, NEUTRAL, SHORT, Dashes, Look, in_style, name_rows, panels
from unimoe.analysis.formats import metric_name, p_text, signed
from unimoe.analysis.gates import wording
from unimoe.analysis.gates.definitions import Gate, Label
from unimoe.analysis.gates.findings import region_of
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.groups import ByGroup
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.statistics.power import half_width
from unimoe.analysis.tables.cells import short_names

MORE_SEEDS: dict[int, Dashes] = {5: "--", 10: ":"}  # numbers of seeds to plan for, and the dashes of their curves
QUERIES = np.unique(np.geomspace(30, 100_000, 40).astype(int))
_SHADES: dict[Label, float] = {"PASS": 0.34, "MARGINAL": 0.16}


class ForestRow(NamedTuple):
    """One line of a forest."""

    name: str  # the dataset, or how several were put together
    found: Estimate  # a ratio, or in the metric's unit; drawn a hundredfold
    numbers: str  # value and interval as text
    label: str  # what was decided
    look: Look  # of the arm that is judged
    bounds: tuple[float, ...] = ()  # what the label rests on: ends of one-sided intervals
    marker: str = "s"


class CutoffGroup(NamedTuple):
    """Rows that share their cutoffs."""

    heading: str
    cutoffs: tuple[float, ...]  # ascending, in percent or points
    regions: tuple[tuple[str, float], ...]  # name and shade of grey (0 to 1) of each that the cutoffs bound, or empty
    rows: tuple[ForestRow, ...]


def gate_groups(items: Sequence[Judgment], looks: Mapping[str, Look]) -> list[CutoffGroup]:
    """Return a group for each judgment, with the cutoffs of its own gate."""
    names = short_names((found.datasets[0] for item in items for found in item.rows), LONG)
    arms = short_names((arm for item in items for arm in item.gate.sides), LONG)
    groups = []
    for item in items:
        gate, rows = item.gate, []
        shown = [(names[found.datasets[0]], found, "s") for found in item.rows]
        for name, found, marker in (*shown, (wording.across(gate), item.found, "D")) if item.parts else shown:
            said = wording.text_of(gate, found)
            numbers = said.value if math.isnan(found.value) else f"{wording.number(gate, found.value)} {said.interval}"
            label = ": ".join(filter(None, (said.word, said.bound)))
            bounds = tuple(100.0 * end for end in said.bounds if end is not None)
            rows.append(ForestRow(name, found.estimate, numbers, label, looks[gate.sides[0]], bounds, marker))
        which = f"gate {item.name}" if item.registered else "no registered gate"
        sides = " against ".join(arms[arm] for arm in gate.sides)
        heading = f"{gate.task}: {sides}, {metric_name(gate.metric)} ({which}{', advisory' if item.advisory else ''})"
        groups.append(
            CutoffGroup(heading, tuple(100.0 * cutoff for cutoff in gate.cutoffs), _regions(gate), tuple(rows))
        )
    return groups


def comparison_groups(comparisons: Sequence[Comparison], looks: Mapping[str, Look]) -> list[CutoffGroup]:
    """Return a group for each dataset, a row for each two systems."""
    names = short_names((name for c in comparisons for name in (c.system, c.baseline)), SHORT)
    groups: dict[str, list[ForestRow]] = {}
    for c in comparisons:
        name = f"{names[c.system]} \N{MINUS SIGN} {names[c.baseline]}"
        ends = ", ".join(signed(100.0 * end, keep_side=True) for end in c.difference.interval or ()) or "no interval"
        label = "no test" if c.p_corrected is None else f"p {p_text(c.p_corrected)}{' *' if c.significant else ''}"
        row = ForestRow(name, c.difference, f"{signed(100.0 * c.delta)} [{ends}]", label, looks[c.system])
        groups.setdefault(f"{c.key}, {metric_name(c.metric)} ({c.queries:,} queries)", []).append(row)
    return [CutoffGroup(heading, (0.0,), (), tuple(rows)) for heading, rows in groups.items()]


def query_groups(found: Sequence[ByGroup], looks: Mapping[str, Look]) -> list[CutoffGroup]:
    """Return each two arms on a dataset, a row for each group of queries; the heading has the test between groups."""
    shown = []
    for one in found:
        rows = []
        for of in one.rows:
            ends = ", ".join(signed(100.0 * end, keep_side=True) for end in of.estimate.interval or ())
            numbers = f"{signed(100.0 * of.estimate.value)} [{ends or 'no interval'}]"
            p = "no test" if of.p_corrected is None else f"p {p_text(of.p_corrected)}"
            rows.append(ForestRow(f"{of.group} ({of.queries:,})", of.estimate, numbers, p, looks[one.arms[one.ratio]]))
        varies = "no test" if one.p_corrected is None else f"p {p_text(one.p_corrected)}"
        heading = f"{one.key}, {metric_name(one.metric)}: {one.name}; varies between groups: {varies}"
        shown.append(CutoffGroup(heading, (0.0,), (), tuple(rows)))
    return shown


def _regions(gate: Gate) -> tuple[tuple[str, float], ...]:
    first, last = gate.cutoffs[0], gate.cutoffs[-1]
    found = []
    for low, high in pairwise([first - 1.0, *gate.cutoffs, last + 1.0]):
        label = region_of(gate, (low + high) / 2.0)
        where = f" below {wording.cutoff_text(gate, first)}" if high == first else ""
        if high != first and low == last:
            where = f" {'above' if gate.kind == 'equivalence' else 'from'} {wording.cutoff_text(gate, last)}"
        found.append((label + where, _SHADES.get(label, 0.0)))
    return tuple(found)


@in_style
def forest_figure(groups: Sequence[CutoffGroup], xlabel: str) -> Figure:
    """Draw rows by group, the heading and the regions of each group above its rows, numbers and labels at the right."""
    lines = sum(len(group.rows) + (3 if group.regions else 2) for group in groups) - 1
    figure, (axes,) = panels([""], xlabel, wide=True, height=0.17 * lines)
    low, high = _limits(groups)
    axes.set(xlim=(low, high), ylim=(lines - 0.5, -0.5))
    placed, line = dict[int, ForestRow](), 0
    for group in groups:
        regions = f"regions: {' | '.join(name for name, _ in group.regions)}" if group.regions else ""
        for text in filter(None, (group.heading, regions)):
            axes.annotate(text, (0.01, line), xycoords=("figure fraction", "data"), va="center", in_layout=False)
            line += 1
        top, bottom = line - 0.5, line - 0.5 + len(group.rows)
        for ends, (_, shade) in zip(pairwise([low, *group.cutoffs, high]), group.regions, strict=False):
            axes.fill_between(ends, top, bottom, color=NEUTRAL, alpha=shade, linewidth=0.0, zorder=0)
        axes.vlines(group.cutoffs, top, bottom, **HAIRLINE)
        axes.vlines(0.0, top, bottom, linestyle=":", **HAIRLINE)
        placed |= dict(enumerate(group.rows, start=line))
        line += len(group.rows) + 1
    for place, row in placed.items():
        if row.found.interval:
            start, end = (100.0 * end for end in row.found.interval)
            axes.hlines(place, max(start, low), min(end, high), color="black", linewidth=1.0)
            for beyond, edge, arrow in ((start < low, low, "<"), (end > high, high, ">")):
                if beyond:
                    axes.plot(edge, place, arrow, color="black", clip_on=False)
        axes.plot(row.bounds, [place] * len(row.bounds), "|", color="black", markersize=6.0, markeredgewidth=1.0)
        if not math.isnan(row.found.value):
            axes.plot(100.0 * row.found.value, place, row.marker, color=row.look.colour, markeredgecolor="black")
    name_rows(axes, {place: row.name for place, row in placed.items()})
    axes.tick_params("y", length=0.0)
    axes.spines["left"].set_visible(False)
    past = 4.6 * max(len(row.numbers) for row in placed.values())  # points, more than any of them is wide
    for texts, pad in (([row.numbers for row in placed.values()], 4.0), ([r.label for r in placed.values()], past)):
        beside = axes.secondary_yaxis("right")
        beside.set_yticks(list(placed), texts)
        beside.tick_params("y", length=0.0, pad=pad)
        beside.spines["right"].set_visible(False)
    return figure


def _limits(groups: Sequence[CutoffGroup]) -> tuple[float, float]:
    """Return what the axis shows: every estimate and cutoff, and intervals unless they are far longer than most.

    One dataset with a handful of queries would otherwise squeeze all others to a dot.
    """
    found = [row.found for group in groups for row in group.rows if not math.isnan(row.found.value)]
    ends = [100.0 * end for one in found for end in one.interval or (one.value, one.value)]
    reach = max(1.5 * float(np.median(np.diff(ends)[::2])), 1.0) if found else 0.0
    values = [100.0 * one.value for one in found for _ in range(2)]
    shown = [min(max(end, value - reach), value + reach) for end, value in zip(ends, values, strict=True)]
    shown += [cutoff + side for group in groups for cutoff in group.cutoffs for side in (-1.0, 1.0)]
    margin = 0.04 * (max(shown) - min(shown))
    return min(shown) - margin, max(shown) + margin


@in_style
def power_figure(items: Sequence[Judgment], looks: Mapping[str, Look]) -> Figure | None:
    """Draw a panel for each dataset on one scale: half width by queries, where we are, and the nearest cutoff.

    None where no variance is known to plan from.
    """
    shown = [
        (item, found, found.estimate.terms, found.estimate.interval)
        for item in items
        for found in item.rows
        if not found.why and item.gate.estimand != "seeds"
    ]
    if not shown:
        return None
    seeds = [int(min(terms.runs, default=0)) if terms else 0 for _, _, terms, _ in shown]  # of the arm with fewest
    more = [planned for planned in MORE_SEEDS if any(0 < there < planned for there in seeds)]
    legend = [
        Line2D([], [], color="black", marker="o", label="seeds there are (point: now)"),
        *(Line2D([], [], color="black", linestyle=MORE_SEEDS[number], label=f"{number} seeds") for number in more),
        Line2D([], [], color=NEUTRAL, linewidth=2.0, label="distance to the nearest cutoff"),
    ]
    pairs = [(item, found) for item, found, _, _ in shown]
    sizes = [f"{f'S = {s}, ' if s else ''}n = {found.queries:,}" for s, (_, found) in zip(seeds, pairs, strict=True)]
    titles = panel_titles(pairs, sizes)
    figure, grid = panels(titles, "queries", "half of the interval, points", legend=legend)
    heights: list[float] = []
    for axes, there, (item, found, terms, interval) in zip(grid, seeds, shown, strict=True):
        look, (low, high) = looks[item.gate.sides[0]], interval or (math.nan, math.nan)
        heights.append(50.0 * (high - low))
        axes.plot(found.queries, heights[-1], "o", color=look.colour, markeredgecolor="black")
        for planned, dashes in {**MORE_SEEDS, there: "-"}.items():
            if terms and (planned == there or 0 < there < planned):
                values = [100.0 * half_width(terms, planned, int(queries)) for queries in QUERIES]
                axes.plot(QUERIES, values, dashes, color=look.colour, linewidth=1.2)
                heights += values
        heights.append(100.0 * min(abs(found.value - cutoff) for cutoff in item.gate.cutoffs))
        axes.axhline(heights[-1], color=NEUTRAL, linewidth=2.0, alpha=0.7, zorder=0)
    high = max(heights)
    low = max(min(heights), high / 1e4)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 3)]
    for axes in grid:
        axes.set(xscale="log", yscale="log")
        axes.set_xticks([100, 1_000, 10_000, 100_000], ["100", "1k", "10k", "100k"])
        axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlim=(QUERIES[0], QUERIES[-1]), ylim=(low / 1.3, high * 1.3))
    return figure
