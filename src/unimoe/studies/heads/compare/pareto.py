"""Relevance against diversity: which of the heads that were tried no other beats in both, on dev."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from unimoe.analysis.figures.files import save
from unimoe.analysis.figures.style import NEUTRAL, ONE_COLUMN, STYLE, page
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.data.catalog import result_name
from unimoe.studies.heads.compare.methods import MethodComparison
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.objectives import diversity, first_documents, pareto_front
from unimoe.studies.heads.pools import PoolSet
from unimoe.studies.heads.scores import chosen_by, pool_scores


@dataclass(frozen=True)
class Point:
    """A head by its two objectives on dev.

    Attributes:
        method: the arm.
        setting: its knobs in words.
        relevance: nDCG at the cutoff.
        diversity: mean of one minus the cosine over pairs of the first documents, as the frozen encoder embeds them.
    """

    method: str
    setting: str
    relevance: float
    diversity: float


def mean_diversity(weight: Tensor, pools: PoolSet, config: TrainConfig) -> float:
    """Mean over queries of the diversity of the first documents in a head's order."""
    scores = pool_scores(weight, pools, config).masked_fill(~pools.valid, -torch.inf).unsqueeze(2)
    top = first_documents(scores, pools.valid, config.ndcg_k)
    return float(diversity(top, pools.documents[pools.rows]).mean())


def pareto(compared: MethodComparison, methods: Sequence[str]) -> tuple[Table, Path]:
    """Every setting tried of some methods, as a table and a figure; what was not trained yet is trained.

    Args:
        compared: the comparison.
        methods: names of its arms.

    Returns:
        All points, the front first, and the PNG file.
    """
    dev, points = compared.data.dev, []
    for name in methods:
        for knobs, trainer in compared.tuned(name):
            trainer.fit()
            weight, _ = trainer.head()
            shown = ", ".join(f"{knob} {value:g}" for knob, value in knobs.items())
            found = chosen_by(weight, dev, trainer.config), mean_diversity(weight, dev, trainer.config)
            points.append(Point(name, shown, *found))
    front = set(pareto_front([(point.relevance, point.diversity) for point in points]))
    order = sorted(range(len(points)), key=lambda i: (i not in front, -points[i].relevance))
    base = compared.comparison.base
    table = Table(
        name="pareto",
        caption=f"nDCG@{base.ndcg_k} and diversity of the first {base.ndcg_k} documents on dev, "
        f"{result_name(base.task)}.",
        columns=("method", "nDCG", "diversity", "front", "setting"),
        groups=(RowGroup("", tuple(_row(points[i], i in front) for i in order)),),
        notes=("nDCG x 100. On the front: no other head is at least as good in both and better in one.",),
        title="Pareto front",
    )
    with mpl.rc_context(STYLE):
        figure = pareto_figure(points, sorted(front))
    return table, save(figure, compared.output_dir / "analysis" / "pareto")


def pareto_figure(points: Sequence[Point], front: Sequence[int]) -> Figure:
    """All points, a marker for each method, and a line through the front.

    Args:
        points: of one collection.
        front: places of those no other dominates.
    """
    figure, axes = page(ONE_COLUMN, 2.2, left=0.5, right=0.1, top=0.15, bottom=0.4)
    line = sorted((points[i].diversity, 100 * points[i].relevance) for i in front)
    axes.plot(*zip(*line, strict=True), color=NEUTRAL, linewidth=0.8, zorder=1)
    markers = iter("osv^DPX<>*")
    for method in dict.fromkeys(point.method for point in points):
        own = [(p.diversity, 100 * p.relevance) for p in points if p.method == method]
        axes.plot(*zip(*own, strict=True), next(markers), markersize=3.5, label=method, alpha=0.8)
    axes.set_xlabel("diversity of the first documents")
    axes.set_ylabel("nDCG x 100")
    axes.legend(loc="best")
    return figure


def _row(point: Point, on_front: bool) -> tuple[Cell, ...]:
    return (
        Cell(point.method),
        Cell(f"{100 * point.relevance:.2f}", value=100 * point.relevance),
        Cell(f"{point.diversity:.4f}", value=point.diversity),
        Cell("yes" if on_front else ""),
        Cell(point.setting),
    )
