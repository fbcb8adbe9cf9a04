"""Scores of all arms on all datasets of a task: bars with a panel per dataset, and a compact plot with a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import interval_of_mean
from unimoe.analysis.figures.style import LONG, NEUTRAL, SHORT, Look, in_style, legend_of, panel_titles, panels
from unimoe.analysis.tables.cells import short_names
from unimoe.core.grouping import gathered
from unimoe.results import EvalResult
from unimoe.results.folder import Results


class Score:
    """Main metric of one arm on one dataset: of each run, its mean, and the ends of its 95 % interval.

    The interval is for other seeds and queries; over queries alone where there is one run. With one query there is
    none, and both ends are the mean.
    """

    def __init__(self, matrix: NDArray[np.float64]) -> None:
        """Take the scores of each run and query, ``(runs, queries)``, x 100."""
        self.runs: list[float] = matrix.mean(axis=1).tolist()
        self.mean = float(matrix.mean())
        self.ends = interval_of_mean(matrix) or (self.mean, self.mean)


class Panel(NamedTuple):
    """One dataset, by the first of its results, and the scores of each arm."""

    first: EvalResult
    scores: Mapping[str, Score]


def score_panels(results: Results, task: str) -> list[Panel]:
    """Return the scores of every dataset of a task."""
    found = []
    for first in results.firsts:
        if first.task == task:
            runs = gathered((r.config_name, r.seed) for r in results.measured(first.key))
            scores = {arm: Score(100.0 * results.scores(arm, first.key, seeds)) for arm, seeds in runs.items()}
            found.append(Panel(first, scores))
    return found


@in_style
def score_figure(shown: Sequence[Panel], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a panel of bars for each dataset on one scale: mean over seeds, its interval, a dot per seed."""
    arms = sorted({arm for panel in shown for arm in panel.scores}, key=arm_order)
    several = len({panel.first.main_metric for panel in shown}) > 1
    names = [panel.first.dataset + (f", {panel.first.main_metric}" if several else "") for panel in shown]
    titles = panel_titles(names, [f"n = {len(panel.first.per_query):,}" for panel in shown])
    figure, grid = panels(titles, _label(shown), height=0.35 + 0.15 * len(arms), notes=notes)
    for axes, panel in zip(grid, shown, strict=True):
        for place, arm in enumerate(arms):
            if score := panel.scores.get(arm):
                look = looks[arm]
                axes.barh(
                    place, score.mean, 0.74, color=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0.4
                )
                axes.hlines(place, *score.ends, color="black", linewidth=1.0)
                if len(score.runs) > 1:
                    heights = np.linspace(place - 0.2, place + 0.2, len(score.runs))
                    axes.plot(score.runs, heights, "o", color="white", markeredgecolor="black", markersize=2.4)
                axes.text(max(*score.runs, *score.ends), place, f"\N{NO-BREAK SPACE}{score.mean:.1f}", va="center")
        _name_rows(axes, short_names(arms, SHORT))
    most = max(axes.dataLim.x1 for axes in grid)
    for axes in grid:
        axes.set_xlim(0.0, 1.25 * most or 1.0)  # room for the number beside the longest bar
    return figure


@in_style
def overview_figure(shown: Sequence[Panel], looks: Mapping[str, Look], notes: Sequence[str] = ()) -> Figure:
    """Draw a row for each dataset, in it a point for each arm with its interval."""
    arms = sorted({arm for panel in shown for arm in panel.scores}, key=arm_order)
    names = short_names((panel.first.dataset for panel in shown), SHORT)
    wide, height = max(map(len, names.values())) > LONG, len(shown) * (0.07 + 0.07 * len(arms))
    legend = legend_of(short_names(arms, LONG), looks, ls="-", markeredgecolor="black")
    figure, (axes,) = panels([""], _label(shown), wide=wide, height=height, legend=legend, notes=notes)
    for row in range(0, len(shown), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=NEUTRAL, alpha=0.12, linewidth=0.0)
    for i, arm in enumerate(arms, start=1):
        look, below = looks[arm], i / (len(arms) + 1) - 0.5
        scores = {row + below: panel.scores[arm] for row, panel in enumerate(shown) if arm in panel.scores}
        low, high = zip(*(score.ends for score in scores.values()), strict=True)
        axes.hlines(list(scores), low, high, color=look.colour, linewidth=1.0)
        means = [score.mean for score in scores.values()]
        axes.plot(means, list(scores), look.marker, color=look.colour, markeredgecolor="black")
    _name_rows(axes, names)
    return figure


def _label(shown: Sequence[Panel]) -> str:
    return f"{' or '.join(dict.fromkeys(panel.first.main_metric for panel in shown))} x 100"


def _name_rows(axes: Axes, names: Mapping[str, str]) -> None:
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.tick_params("y", length=0.0)
    axes.set_ylim(len(names) - 0.5, -0.5)
