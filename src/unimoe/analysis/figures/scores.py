"""Scores of all arms on all datasets of a task: bars with a panel per dataset, and a compact plot with a row each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import interval_of_mean
from unimoe.analysis.figures.style import NEUTRAL, Look, fit, fit_all, panel_width, panels, set_titles, text_width
from unimoe.results.folder import Results


@dataclass(frozen=True)
class Score:
    """Main metric of one arm on one dataset, x 100, by seed or once for an arm without seeds.

    The 95 % interval is for other seeds and queries; over queries alone where there is one run, None with one query.
    """

    runs: tuple[float, ...]
    interval: tuple[float, float] | None

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return math.fsum(self.runs) / len(self.runs)

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; the mean alone where there is none."""
        return self.interval or (self.mean, self.mean)

    @property
    def reach(self) -> float:
        """The largest number that is drawn."""
        return max(*self.runs, self.ends[1])


@dataclass(frozen=True)
class Panel:
    """One dataset: its name, main metric, number of queries, and scores by arm."""

    dataset: str
    metric: str
    queries: int
    scores: Mapping[str, Score]


def score_panels(results: Results, task: str) -> list[Panel]:
    """Return the scores of every dataset of a task."""
    found = []
    for key in results.dataset_keys:
        measured = results.measured(key)
        if measured[0].task == task:
            scores = {arm: _score(results, key, arm) for arm in dict.fromkeys(r.config_name for r in measured)}
            found.append(Panel(measured[0].dataset, measured[0].main_metric, len(measured[0].per_query), scores))
    return found


def score_figure(shown: Sequence[Panel], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a panel of bars for each dataset on one scale: mean over seeds, its interval, a dot per seed."""
    arms = sorted({arm for panel in shown for arm in panel.scores}, key=arm_order, reverse=True)
    names = fit_all(arms, 1.1)
    left = max(map(text_width, names.values())) + 0.15
    height = 0.08 + 0.15 * len(arms)
    figure, grid = panels(len(shown), height=height, left=left, xlabel=_label(shown), notes=notes)
    for axes, panel in zip(grid, shown, strict=True):
        _draw_bars(axes, panel.scores, arms, looks)
        _name_rows(axes, [names[arm] for arm in arms])
        axes.set_ylim(-0.6, len(arms) - 0.4)
    several = len({panel.metric for panel in shown}) > 1
    titles = [f"{panel.dataset}, {panel.metric}" if several else panel.dataset for panel in shown]
    set_titles(grid, titles, [f"n = {panel.queries:,}" for panel in shown])
    most = max(score.reach for panel in shown for score in panel.scores.values())
    width, room = panel_width(grid[0]), 0.08 + text_width("00.0") + 0.05
    for axes in grid:
        axes.set_xlim(0.0, max(most, 1e-9) * width / (width - room))
        axes.xaxis.set_major_locator(MaxNLocator(4))
    return figure


def overview_figure(shown: Sequence[Panel], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a row for each dataset, in it a point for each arm with its interval."""
    arms = sorted({arm for panel in shown for arm in panel.scores}, key=arm_order)
    point: dict[str, Any] = {"linewidth": 1.0, "markersize": 4.0, "markeredgecolor": "black", "markeredgewidth": 0.4}
    legend = [
        Line2D([], [], color=looks[arm].colour, marker=looks[arm].marker, label=fit(arm, 2.4), **point) for arm in arms
    ]
    names = list(fit_all((panel.dataset for panel in shown), 1.1).values())
    pitch, left = 0.06 + 0.07 * len(arms), max(map(text_width, names)) + 0.12
    height = 0.04 + pitch * len(shown)
    figure, (axes,) = panels(
        1, left=left, right=0.1, above=0.08, height=height, xlabel=_label(shown), legend=legend, notes=notes
    )
    for row in range(0, len(shown), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=NEUTRAL, alpha=0.12, linewidth=0.0)
    for i, arm in enumerate(arms):
        rows = [row for row, panel in enumerate(shown) if arm in panel.scores]
        scores = [shown[row].scores[arm] for row in rows]
        heights = np.array(rows) + (i - (len(arms) - 1) / 2) * 0.07 / pitch
        low, high = zip(*(score.ends for score in scores), strict=True)
        axes.hlines(heights, low, high, color=looks[arm].colour, linewidth=1.0)
        axes.plot([score.mean for score in scores], heights, looks[arm].marker, color=looks[arm].colour, **point)
    _name_rows(axes, names)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    return figure


def _label(shown: Sequence[Panel]) -> str:
    metrics = {panel.metric for panel in shown}
    return f"{metrics.pop()} x 100" if len(metrics) == 1 else "main metric x 100"


def _score(results: Results, key: str, arm: str) -> Score:
    matrix = 100.0 * results.scores(arm, key, [r.seed for r in results.measured(key, arm)])
    return Score(tuple(matrix.mean(axis=1).tolist()), interval_of_mean(matrix))


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0.0)


def _draw_bars(axes: Axes, scores: Mapping[str, Score], arms: Sequence[str], looks: Mapping[str, Look]) -> None:
    places = [place for place, arm in enumerate(arms) if arm in scores]
    held = [scores[arms[place]] for place in places]
    its_looks = [looks[arms[place]] for place in places]
    axes.barh(
        places,
        [score.mean for score in held],
        height=0.74,
        color=[look.colour for look in its_looks],
        hatch=[look.hatch for look in its_looks],
        edgecolor="black",
        linewidth=0.4,
    )
    low, high = zip(*(score.ends for score in held), strict=True)
    axes.hlines(places, low, high, color="black", linewidth=1.0)
    dots = [
        (value, place + height)
        for place, score in zip(places, held, strict=True)
        if len(score.runs) > 1
        for value, height in zip(score.runs, np.linspace(-0.2, 0.2, len(score.runs)), strict=True)
    ]
    if dots:
        values, heights = zip(*dots, strict=True)
        axes.plot(values, heights, "o", color="white", markeredgecolor="black", markersize=2.4, markeredgewidth=0.4)
    for place, score in zip(places, held, strict=True):
        axes.text(score.reach, place, f"\N{NO-BREAK SPACE}{score.mean:.1f}", va="center")
