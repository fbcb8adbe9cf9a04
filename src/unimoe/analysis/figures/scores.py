"""Scores: of all arms on the datasets of a task, and differences by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import ALPHA, Comparison, estimate_of_mean
from unimoe.analysis.figures.style import HAIRLINE, LONG, NEUTRAL, SHORT, Look, in_style, legend_of, name_rows, panels
from unimoe.analysis.formats import metric_name, signed
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.scores import drawn_on
from unimoe.analysis.gates.wording import by_kind
from unimoe.analysis.standings import means_of
from unimoe.analysis.tables.cells import short_names
from unimoe.core.grouping import gathered
from unimoe.results import EvalResult
from unimoe.results.folder import Results

MOST_STEPS = 300  # of a panel, which is about 150 points wide in print


@in_style
def score_figure(results: Results, firsts: Sequence[EvalResult], looks: Mapping[str, Look]) -> Figure:
    """Draw a row for each dataset, given by one of its results, in it a point for each arm with interval and seeds."""
    runs = [gathered((r.config_name, r.seed) for r in results.measured(first.key)) for first in firsts]
    arms = sorted({arm for of_dataset in runs for arm in of_dataset}, key=arm_order)
    metrics = dict.fromkeys(metric_name(first.main_metric) for first in firsts)
    of_metric = [f", {metric_name(first.main_metric)}" if len(metrics) > 1 else "" for first in firsts]
    rows = zip(firsts, of_metric, strict=True)
    names = short_names((f"{first.dataset}{own} ({len(results.queries(first.key)):,})" for first, own in rows), SHORT)
    label = f"{' or '.join(metrics)} x 100"
    height = max(0.6, len(firsts) * (0.07 + 0.07 * len(arms)))
    legend = legend_of(short_names(arms, LONG), looks, ls="-", markeredgecolor="black")
    wide = max(map(len, names.values())) > LONG
    figure, (axes,) = panels([""], label, wide=wide, height=height, legend=legend)
    for row in range(0, len(firsts), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=NEUTRAL, alpha=0.12, linewidth=0.0)
    for below, arm in enumerate(arms, start=1):
        look = looks[arm]
        for row, (first, of_dataset) in enumerate(zip(firsts, runs, strict=True)):
            if arm not in of_dataset:
                continue
            place = row + below / (len(arms) + 1) - 0.5
            scores = 100.0 * results.draws(arm, first.key, of_dataset[arm])
            ends = estimate_of_mean(scores, drawn_on(results, [first.key])).interval or [scores.mean()] * 2
            axes.hlines(place, *ends, color=look.colour, linewidth=1.0)
            if len(scores) > 1:
                axes.plot(scores.mean(axis=1), [place] * len(scores), "|", color="black", markersize=3.0)
            axes.plot(scores.mean(), place, look.marker, color=look.colour, markeredgecolor="black")
    name_rows(axes, dict(enumerate(names.values())))
    axes.tick_params("y", length=0.0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    return figure


@in_style
def difference_figure(results: Results, items: Sequence[Judgment], looks: Mapping[str, Look]) -> Figure:
    """Draw differences by query, averaged over each arm's seeds and sorted: wins above 0, losses below."""
    each_once: dict[object, tuple[Judgment, Finding]] = {}  # two gates on the same scores have the same differences
    for item in items:
        for found in item.rows:
            each_once.setdefault((item.gate.sides, found.seeds, found.datasets, item.gate.metric), (item, found))
    shown = list(each_once.values())
    arms = short_names((item.gate.sides[place] for place in (0, 1) for item in items), LONG)
    legend = [
        Patch(facecolor=looks[arm].colour, hatch=looks[arm].hatch, edgecolor="black", label=f"{name} better")
        for arm, name in arms.items()
    ]
    titles = panel_titles(shown, [f"n = {found.queries:,}" for _, found in shown])
    xlabel = "queries (%), largest gain to largest loss"
    ylabel = by_kind(items, "joint - specialist, points", "system - baseline, points", "difference, points")
    figure, grid = panels(titles, xlabel, ylabel, legend=legend)
    reach = 0.0
    for axes, (item, found) in zip(grid, shown, strict=True):
        differences = sorted_differences(results, item.gate, found)
        reach = max(reach, float(np.abs(differences).max()))
        # Many queries are averaged in runs of neighbours, which leaves the area, and so the mean, as it is.
        edges = np.unique(np.linspace(0, len(differences), min(len(differences), MOST_STEPS) + 1).astype(int))
        heights, shares = np.add.reduceat(differences, edges[:-1]) / np.diff(edges), 100.0 * edges / len(differences)
        for arm, part in zip(item.gate.sides, (np.maximum(heights, 0.0), np.minimum(heights, 0.0)), strict=True):
            look = looks[arm]
            axes.stairs(
                part, shares, fill=True, facecolor=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0
            )
        axes.axhline(0.0, **HAIRLINE)
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        counts = f"won {wins:,}, tied {len(differences) - wins - losses:,}, lost {losses:,}"
        text = f"{counts}\nmean {signed(float(differences.mean()))}"
        axes.text(0.99, 0.97, text, transform=axes.transAxes, ha="right", va="top")
    for axes in grid:
        axes.set(xlim=(0.0, 100.0), xticks=[20, 40, 60, 80], ylim=(-1.05 * reach or -1.0, 1.05 * reach or 1.0))
    return figure


@in_style
def critical_difference_figure(places: Sequence[Sequence[Comparison]]) -> Figure:
    """Draw a panel for each dataset or average: systems along an axis of scores, bars below it joining what is equal.

    ``places`` are the comparisons of every two systems there, with simultaneous p.
    """
    groups = [_not_different(here) for here in places]
    most = max(len({c.system for c in here}) for here in places)
    deepest = max(map(len, groups))
    titles = [fill(f"{here[0].key}, {metric_name(here[0].metric)}", 2 * SHORT) for here in places]
    height = 0.35 + 0.1 * deepest + 0.09 * (most + 1)
    figure, grid = panels(titles, "score x 100", columns=1, wide=True, height=height)
    for axes, here, joined in zip(grid, places, groups, strict=True):
        means = {system: 100.0 * mean for system, mean in means_of(here).items()}
        ordered, names = sorted(means, key=means.__getitem__), short_names(means, LONG)
        for depth, ends in enumerate(sorted(sorted(means[system] for system in group) for group in joined), start=1):
            axes.plot(ends, [0.6 * depth] * len(ends), "o-", color="black", linewidth=2.0, markersize=3.0)
        axes.update_datalim([(mean, 0.0) for mean in means.values()])  # also of systems that no bar joins
        half = len(ordered) // 2
        for side, systems in enumerate((ordered[:half], ordered[: half - 1 : -1])):
            for row, system in enumerate(systems, start=1):
                axes.annotate(
                    f"{names[system]}  {means[system]:.2f}",
                    (means[system], 0.0),
                    (side, 0.6 * len(joined) + row),
                    textcoords=axes.get_yaxis_transform(),
                    va="center",
                    ha="left" if side else "right",
                    arrowprops={
                        "arrowstyle": "-",
                        "connectionstyle": "angle,angleA=0,angleB=90",
                        "relpos": (0.0 if side else 1.0, 0.5),
                        "shrinkB": 0.0,
                        **HAIRLINE,
                    },
                )
        axes.xaxis.tick_top()
        axes.tick_params(labelbottom=False, labeltop=True)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.spines["top"].set_visible(True)
        axes.set(yticks=[], ylim=(0.6 * deepest + 1.0 + (most + 1) / 2.0, 0.0))
        axes.margins(x=0.05)
    return figure


def _not_different(here: Sequence[Comparison]) -> list[frozenset[str]]:
    """Return the largest groups of two systems or more no two of which differ: Piepho's (2004) insert and absorb."""
    groups = {frozenset(system for c in here for system in (c.system, c.baseline))}
    for c in here:
        if c.p_simultaneous is not None and c.p_simultaneous < ALPHA:
            pair = {c.system, c.baseline}
            groups = {part for g in groups for part in ([g - {one} for one in pair] if pair <= g else [g])}
            groups = {group for group in groups if not any(group < other for other in groups)}
    return [group for group in groups if len(group) > 1]


def panel_titles(shown: Sequence[tuple[Judgment, Finding]], sizes: Sequence[str]) -> list[str]:
    """Return the dataset and the size of each panel, and what tells its judgment from others; long names are cut."""
    several = len({item.name for item, _ in shown}) > 1
    names = [
        found.datasets[0] + (f", {item.name.removeprefix(f'{item.gate.task}.')}" if several else "")
        for item, found in shown
    ]
    short = short_names(names, SHORT)
    whole = [f"({size})".replace(" ", "\N{NO-BREAK SPACE}") for size in sizes]
    return [fill(f"{short[name]} {size}", 34) for name, size in zip(names, whole, strict=True)]


def sorted_differences(results: Results, gate: Gate, found: Finding) -> NDArray[np.float64]:
    """Return differences by query of a finding's one dataset, largest first, in points.

    They are joint minus specialist, or system minus baseline, each arm averaged over its own seeds.
    """
    seeds = dict(zip(gate.arms, found.seeds, strict=True))
    key = f"{gate.task}/{found.datasets[0]}"
    judged, other = (results.scores(arm, key, seeds[arm], gate.metric).mean(axis=0) for arm in gate.sides)
    differences = np.round(100.0 * (judged - other), 9)  # equal scores may differ in the last bits of their mean
    return np.asarray(np.sort(differences)[::-1])
