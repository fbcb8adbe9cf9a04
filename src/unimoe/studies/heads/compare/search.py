"""A grid search over four keys of evolution, scored on dev alone, as a table and a heat map."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from unimoe.analysis.figures.style import in_style, panels, save
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.core.console import Steps
from unimoe.data.catalog import result_name
from unimoe.evaluation.engines import Engine
from unimoe.studies.heads.compare.arms import Comparison, changed
from unimoe.studies.heads.compare.distant import train_by_workers
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.trainer import HeadTrainer

SIGMAS = (0.05, 0.15, 0.5)
POPULATIONS = (64, 256, 512)
RATES = (3e-4, 1e-3, 3e-3)
SIZES = (64, 128, 256)

Scores = dict[tuple[int, int, float, float], float]
"""Score by head size, population, learning rate and sigma."""

_COLUMNS = ("sigma", "population", "learning rate", "head size", "dev", "start", "gain", "s")


def grid_search(
    comparison: Comparison, data: HeadData, num_steps: int, engine: Engine | None = None
) -> tuple[Table, Path]:
    """Train evolution once with each of 81 settings, for a few steps; finished trainings are skipped.

    Args:
        comparison: its ``base`` says data, head and scoring; trainings go to ``grid/`` in its folder.
        data: the pools.
        num_steps: of each training.
        engine: lets workers of a cluster do the trainings; by default this process does.

    Returns:
        All settings, the best on dev first, and the PNG file of the heat map.
    """
    base, output_dir = comparison.base, Path(comparison.base.output_dir)
    shared: dict[str, Any] = {"method": "eggroll", "num_steps": num_steps, "eval_every": max(1, num_steps // 4)}
    configs = {}
    for size, population, rate, sigma in product(SIZES, POPULATIONS, RATES, SIGMAS):
        setting = {"sigma": sigma, "population_size": population, "learning_rate": rate, "head_output_size": size}
        name = "-".join(f"{value:g}" for value in setting.values())
        own = {**shared, **setting, "output_dir": str(output_dir / "grid" / name)}
        configs[size, population, rate, sigma] = changed(base, own)
    trainers = (HeadTrainer(config, data) for config in configs.values())
    train_by_workers(engine, comparison, trainers, tested=False)
    rows, scores = [], Scores()
    steps = Steps(len(SIZES) * len(POPULATIONS))
    for size, population in product(SIZES, POPULATIONS):
        with steps.step(f"head size {size}, population {population}", 9) as step:
            for rate, sigma in product(RATES, SIGMAS):
                facts = HeadTrainer(configs[size, population, rate, sigma], data).fit()
                scores[size, population, rate, sigma] = facts["val"]
                rows.append((sigma, population, rate, size, facts))
                step.advance(1)
            best = max(scores[size, population, rate, sigma] for rate, sigma in product(RATES, SIGMAS))
            step.outcome = f"best {100 * best:.2f}"
    rows.sort(key=lambda row: -row[4]["val"])
    table = Table(
        name="grid",
        caption=f"Evolution on {result_name(base.task)} after {num_steps} steps: ndcg@{base.ndcg_k} on dev, one seed.",
        columns=_COLUMNS,
        groups=(RowGroup("", tuple(_row(*row) for row in rows)),),
        notes=("Scores x 100, of the best step on dev. start: the head before training. Nothing here was tested.",),
        title="Grid",
    )
    figure = heat_map(scores, f"nDCG@{base.ndcg_k} on dev x 100")
    return table, save(figure, output_dir / "analysis" / "grid")


@in_style
def heat_map(scores: Scores, label: str) -> Figure:
    """Draw a panel per head size and population, learning rate against sigma, on one scale with this label."""
    cells = list(product(SIZES, POPULATIONS))
    titles = [f"head {size}, population {population}" for size, population in cells]
    figure, grid = panels(
        titles, "sigma, relative to the weights", "learning rate", columns=len(POPULATIONS), height=1.0
    )
    low, high = 100 * min(scores.values()), 100 * max(scores.values())
    for axes, cell in zip(grid, cells, strict=True):
        values = np.array([[100 * scores[*cell, rate, sigma] for sigma in SIGMAS] for rate in RATES])
        image = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower")
        axes.set_xticks(range(len(SIGMAS)), [f"{sigma:g}" for sigma in SIGMAS])
        axes.set_yticks(range(len(RATES)), [f"{rate:g}" for rate in RATES])
        axes.tick_params(length=0)
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=grid, aspect=40, label=label)
    return figure


def _row(sigma: float, population: int, rate: float, size: int, facts: dict[str, float]) -> tuple[Cell, ...]:
    dev, start = 100 * facts["val"], 100 * facts["start"]
    return (
        Cell(f"{sigma:g}", value=sigma),
        Cell.count(population),
        Cell(f"{rate:g}", value=rate),
        Cell.count(size),
        Cell(f"{dev:.2f}", value=dev),
        Cell(f"{start:.2f}", value=start),
        Cell(f"{dev - start:+.2f}", value=dev - start),
        Cell(f"{facts['seconds']:.1f}", value=facts["seconds"]),
    )
