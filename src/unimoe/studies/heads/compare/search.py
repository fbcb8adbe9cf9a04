"""A grid over evolution's four knobs, scored on dev alone, with a heat map."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl

from unimoe.analysis.figures.files import save
from unimoe.analysis.figures.style import STYLE
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.analysis.tables.cells import count_cell
from unimoe.console import Steps
from unimoe.data.catalog import result_name
from unimoe.studies.heads.compare.arms import changed
from unimoe.studies.heads.compare.heat_map import Grid, heat_map
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.trainer import HeadTrainer

SIGMAS = (0.05, 0.15, 0.5)
POPULATIONS = (64, 256, 512)
RATES = (3e-4, 1e-3, 3e-3)
SIZES = (64, 128, 256)

_COLUMNS = ("sigma", "population", "learning rate", "head size", "dev", "start", "gain", "s")


def grid_search(base: TrainConfig, data: HeadData, output_dir: Path, num_steps: int) -> tuple[Table, Path]:
    """Train evolution once with each of 81 settings, for a few steps; what is done already is skipped.

    Args:
        base: data, head and scoring.
        data: the pools.
        output_dir: the comparison's folder; trainings go to its ``grid/``.
        num_steps: of each training.

    Returns:
        All settings, the best on dev first, and the PNG file of the heat map.
    """
    shared: dict[str, Any] = {"method": "eggroll", "num_steps": num_steps, "eval_every": max(1, num_steps // 4)}
    rows, grid = [], Grid(SIZES, POPULATIONS, RATES, SIGMAS)
    steps = Steps(len(SIZES) * len(POPULATIONS))
    for size, population in product(SIZES, POPULATIONS):
        with steps.step(f"head size {size}, population {population}", 9) as step:
            for rate, sigma in product(RATES, SIGMAS):
                knobs = {"sigma": sigma, "population_size": population, "learning_rate": rate, "head_output_size": size}
                name = "-".join(f"{value:g}" for value in knobs.values())
                config = changed(base, {**shared, **knobs, "output_dir": str(output_dir / "grid" / name)})
                facts = HeadTrainer(config, data).fit()
                grid.values[size, population, rate, sigma] = facts["val"]
                rows.append((sigma, population, rate, size, facts))
                step.advance(1)
            step.outcome = f"best {100 * grid.best_of(size, population):.2f}"
    rows.sort(key=lambda row: -row[4]["val"])
    table = Table(
        name="grid",
        caption=f"Evolution on {result_name(base.task)} after {num_steps} steps: ndcg@{base.ndcg_k} on dev, one seed.",
        columns=_COLUMNS,
        groups=(RowGroup("", tuple(_row(*row) for row in rows)),),
        notes=("Scores x 100, of the best step on dev. start: the head before training. Nothing here was tested.",),
        title="Grid",
    )
    with mpl.rc_context(STYLE):
        figure = heat_map(grid, f"nDCG@{base.ndcg_k} on dev x 100")
    return table, save(figure, output_dir / "analysis" / "grid")


def _row(sigma: float, population: int, rate: float, size: int, facts: dict[str, float]) -> tuple[Cell, ...]:
    dev, start = 100 * facts["val"], 100 * facts["start"]
    return (
        Cell(f"{sigma:g}", value=sigma),
        count_cell(population),
        Cell(f"{rate:g}", value=rate),
        count_cell(size),
        Cell(f"{dev:.2f}", value=dev),
        Cell(f"{start:.2f}", value=start),
        Cell(f"{dev - start:+.2f}", value=dev - start),
        Cell(f"{facts['seconds']:.1f}", value=facts["seconds"]),
    )
