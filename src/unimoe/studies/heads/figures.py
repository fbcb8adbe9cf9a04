"""What tried heads were like on dev: a grid over four keys as a heat map, and relevance against diversity."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from unimoe.analysis.figures.style import NEUTRAL, in_style, legend_of, looks, panels
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.studies.common.study import ChosenSetting, Study
from unimoe.studies.heads.eggroll.objectives import pareto_front

GRID_KEYS = ("head_output_size", "population_size", "learning_rate", "sigma")
"""Keys of the rows of panels, the columns of panels, and the rows and columns within a panel."""


class TriedHead(NamedTuple):
    """A setting of an arm on dev: mean nDCG x 100, and the mean diversity of the first documents."""

    arm: str
    setting: str
    ndcg: float
    diversity: float


def tried_heads(chosen: Mapping[str, ChosenSetting]) -> tuple[list[TriedHead], list[TriedHead]]:
    """Return every setting that was tried, and those on the front: no other is better in one and as good in both."""
    tried = [
        TriedHead(arm, name, 100 * facts["val"], facts["diversity"])
        for arm, own in chosen.items()
        for name, facts in own.tried.items()
    ]
    front = (tried[place] for place in pareto_front([(one.ndcg, one.diversity) for one in tried]))
    return tried, sorted(front, key=lambda one: -one.ndcg)


def front_table(chosen: Mapping[str, ChosenSetting], cutoff: int, dataset: str) -> Table:
    """Return the settings on the front of relevance and diversity."""
    tried, front = tried_heads(chosen)
    rows = (
        (Cell(one.arm), Cell.number(one.ndcg, ".2f"), Cell.number(one.diversity, ".4f"), Cell(one.setting))
        for one in front
    )
    return Table(
        name="pareto",
        caption=f"nDCG@{cutoff} and diversity of the first {cutoff} documents on dev, {dataset}.",
        columns=("arm", "nDCG", "diversity", "setting"),
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            f"nDCG x 100. Of {len(tried)} settings those than which no other is as good in both and better in one.",
        ),
        title="Pareto front",
    )


def grid_scores(study: Study, arm: str, own: ChosenSetting) -> dict[tuple[float, ...], float]:
    """Return an arm's scores on dev by the values of ``GRID_KEYS``; none where its grid is over other keys."""
    settings = [one for one in study.settings_of(arm) if {*GRID_KEYS} == {*one.changes} and one.name in own.tried]
    return {tuple(float(one.changes[key]) for key in GRID_KEYS): own.tried[one.name]["val"] for one in settings}


@in_style
def heat_map(scores: Mapping[tuple[float, ...], float], label: str) -> Figure:
    """Draw a panel per head size and population, learning rate against sigma, on one scale.

    Args:
        scores: on dev, 0 to 1, by the values of ``GRID_KEYS``.
        label: of the scale.
    """
    sizes, populations, rates, sigmas = (sorted({key[place] for key in scores}) for place in range(4))
    cells = list(product(sizes, populations))
    titles = [f"head {size:g}, population {population:g}" for size, population in cells]
    across = "sigma, relative to the weights"
    figure, grid = panels(titles, across, "learning rate", columns=len(populations), height=1.0)
    low, high = 100 * min(scores.values()), 100 * max(scores.values())
    for axes, cell in zip(grid, cells, strict=True):
        values = np.array([[100 * scores.get((*cell, rate, sigma), np.nan) for sigma in sigmas] for rate in rates])
        image = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower")
        axes.set_xticks(range(len(sigmas)), [f"{sigma:g}" for sigma in sigmas])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.tick_params(length=0)
        for (row, column), value in np.ndenumerate(values):
            if np.isnan(value):  # a study may try some settings alone
                continue
            colour = "black" if value > (low + high) / 2 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=grid, aspect=40, label=label)
    return figure


@in_style
def front_figure(chosen: Mapping[str, ChosenSetting]) -> Figure:
    """Draw settings by diversity and nDCG, a marker for each arm, and a line through those on the front."""
    tried, front = tried_heads(chosen)
    arms = {one.arm: one.arm for one in tried}
    seen = looks(arms)
    legend = legend_of(arms, seen, ls="")
    figure, (axes,) = panels([""], "diversity of the first documents", "nDCG x 100", height=1.8, legend=legend)
    line = sorted((one.diversity, one.ndcg) for one in front)
    axes.plot(*zip(*line, strict=True), color=NEUTRAL, linewidth=0.8, zorder=1)
    for one in tried:
        axes.plot(one.diversity, one.ndcg, seen[one.arm].marker, color=seen[one.arm].colour)
    return figure
