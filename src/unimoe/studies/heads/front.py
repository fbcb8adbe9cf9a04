"""Relevance against diversity on dev: the choice of a setting on their front, and the front as table and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from unimoe.analysis.figures.style import NEUTRAL, in_style, legend_of, looks, panels, save
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.studies.common.study import Chosen
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.objectives import diversity, first_documents, pareto_front
from unimoe.studies.heads.model import pool_scores
from unimoe.studies.heads.pools import PoolSet


def mean_diversity(weight: Tensor, pools: PoolSet, config: TrainConfig) -> float:
    """Return the mean diversity of each query's first documents, in a head's order."""
    scores = pool_scores(weight, pools, config).masked_fill(~pools.valid, -torch.inf).unsqueeze(2)
    top = first_documents(scores, pools.valid, config.ndcg_k)
    return float(diversity(top, pools.documents[pools.rows]).mean())


def chosen_on_front(points: Sequence[tuple[float, float]], give_up: float) -> int:
    """Return the index of the most diverse point on the front that gives up little relevance; of equals the first.

    Args:
        points: relevance and diversity of each.
        give_up: the most relevance below the best.
    """
    best = max(relevance for relevance, _ in points)
    eligible = [index for index in pareto_front(points) if points[index][0] >= best - give_up]
    return max(eligible, key=lambda index: (points[index][1], -index))


class Point(NamedTuple):
    """A head by its arm, its setting as text, and its two objectives on dev."""

    method: str
    setting: str
    relevance: float
    diversity: float


def front_of(chosen: Mapping[str, Chosen], dataset: str, cutoff: int, folder: Path) -> tuple[Table, Path]:
    """Place the tried settings of all arms by relevance and diversity on dev.

    Returns:
        All points, the front first, and the PNG file.
    """
    points = [
        Point(name, setting, facts["val"], facts["diversity"])
        for name, own in chosen.items()
        for setting, facts in own.tried.items()
    ]
    front = set(pareto_front([(point.relevance, point.diversity) for point in points]))
    order = sorted(range(len(points)), key=lambda i: (i not in front, -points[i].relevance))
    table = Table(
        name="pareto",
        caption=f"nDCG@{cutoff} and diversity of the first {cutoff} documents on dev, {dataset}.",
        columns=("method", "nDCG", "diversity", "front", "setting"),
        groups=(RowGroup("", tuple(_row(points[i], i in front) for i in order)),),
        notes=("nDCG x 100. On the front: no other head is at least as good in both and better in one.",),
        title="Pareto front",
    )
    return table, save(pareto_figure(points, sorted(front)), folder / "pareto")


@in_style
def pareto_figure(points: Sequence[Point], front: Sequence[int]) -> Figure:
    """Draw all points, a marker for each method, and a line through those at the indices ``front``."""
    methods = {point.method: point.method for point in points}
    seen = looks(methods)
    legend = legend_of(methods, seen, ls="")
    figure, (axes,) = panels([""], "diversity of the first documents", "nDCG x 100", height=1.8, legend=legend)
    line = sorted((points[i].diversity, 100 * points[i].relevance) for i in front)
    axes.plot(*zip(*line, strict=True), color=NEUTRAL, linewidth=0.8, zorder=1)
    for point in points:
        look = seen[point.method]
        axes.plot(point.diversity, 100 * point.relevance, look.marker, color=look.colour)
    return figure


def _row(point: Point, on_front: bool) -> tuple[Cell, ...]:
    return (
        Cell(point.method),
        Cell(f"{100 * point.relevance:.2f}", value=100 * point.relevance),
        Cell(f"{point.diversity:.4f}", value=point.diversity),
        Cell("yes" if on_front else ""),
        Cell(point.setting),
    )
