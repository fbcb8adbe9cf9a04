"""Relevance against diversity on dev: the tried heads that no other beats in both, as a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from unimoe.analysis.figures.style import NEUTRAL, in_style, legend_of, looks, panels, save
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.data.catalog import result_name
from unimoe.studies.heads.compare.arms import in_words
from unimoe.studies.heads.compare.front import mean_diversity
from unimoe.studies.heads.compare.methods import MethodComparison
from unimoe.studies.heads.eggroll.objectives import pareto_front
from unimoe.studies.heads.model import chosen_by


@dataclass(frozen=True)
class Point:
    """A head by its arm, its setting as text, and its two objectives on dev."""

    method: str
    setting: str
    relevance: float
    diversity: float


def pareto(compared: MethodComparison, methods: Sequence[str]) -> tuple[Table, Path]:
    """Train every setting of some arms that is not trained yet, and place them by relevance and diversity.

    Returns:
        All points, the front first, and the PNG file.
    """
    compared.tune_by_workers(methods)
    dev, points = compared.data.dev, []
    for name in methods:
        for setting, trainer in compared.tuned(name):
            trainer.fit()
            weight, _ = trainer.head()
            found = chosen_by(weight, dev, trainer.config), mean_diversity(weight, dev, trainer.config)
            points.append(Point(name, in_words(setting), *found))
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
    return table, save(pareto_figure(points, sorted(front)), compared.output_dir / "analysis" / "pareto")


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
