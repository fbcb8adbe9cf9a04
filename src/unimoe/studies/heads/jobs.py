"""The work of the commands ``train-head`` and ``compare-heads``, and the figures of two parts of the comparison.

``grid`` is a search over four keys of evolution, as a heat map. ``pareto`` shows the tried settings by relevance and
diversity on dev, with their front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from unimoe.analysis.figures.style import NEUTRAL, in_style, legend_of, looks, panels, save
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import UsageError
from unimoe.data.catalog import available
from unimoe.results import safe_name
from unimoe.studies.common.runner import ANALYSIS, StudyRunner
from unimoe.studies.common.study import ChosenSetting, Study
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.objectives import pareto_front
from unimoe.studies.heads.trainer import HeadTrainer, load_data

GRID = Path("studies/heads_grid")
GRID_KEYS = ("head_output_size", "population_size", "learning_rate", "sigma")
"""Keys of the rows of panels, the columns of panels, and the rows and columns within a panel."""

_ON_FRONT = ("eggroll", "eggroll_objectives")


def head_config(path: Path, options: Mapping[str, Any], overrides: Sequence[str]) -> TrainConfig:
    """Read a training's configuration, and change it by options that are given and ``key=value`` overrides."""
    file = find_config(path)
    raw = read_yaml(file)
    if not isinstance(raw, dict | None):
        raise UsageError(f"{file}: holds no keys; write key: value lines")
    return parse_config(TrainConfig, overridden(_with_given(raw or {}, options), overrides), source=str(file))


def placed(study: Study, base: Mapping[str, Any], margin: float | None) -> Study:
    """Return a study with keys of its base that are given, its collection, its folder, and the margin of its gates."""
    keys = _with_given(study.base, base)
    folder = study.output_dir or f"outputs/heads-{safe_name(str(keys['task']))}"
    gates = {name: gate | ({} if margin is None else {"margin": margin}) for name, gate in study.gates.items()}
    return study.model_copy(update={"base": keys, "output_dir": folder, "gates": gates})


def _with_given(raw: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with the options that are given; by default of SciFact's folder, else of the bundled collection.

    Neither of the two needs a network.
    """
    task = "scifact" if available("scifact") else "apidocs"
    return {"task": task, **raw, **{key: value for key, value in options.items() if value is not None}}


def front_methods(methods: Sequence[str] | None) -> list[str]:
    """Return the methods that the front of relevance and diversity can show; a UsageError where there is none."""
    names = [name for name in _ON_FRONT if methods is None or name in methods]
    if not names:
        raise UsageError("pareto: shows eggroll and eggroll_objectives, and --methods names neither; name one of them")
    return names


def train_one(config: TrainConfig, *, test: bool = False) -> None:
    """Train one head and print nDCG on dev and train, and on test where asked, beside what it has to beat."""
    with Steps(1).step(f"{config.task}: vectors and pools", None) as step:
        data = load_data(config, step.advance)
        data = data.with_votes(config.soft_labels)  # kept for the trainer; voters may take minutes
        step.outcome = data.sizes
    for note in data.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    trainer = HeadTrainer(config, data)
    with Steps(1).step(f"{config.method} on {config.task}", config.num_steps) as step:
        found = trainer.train(lambda number, facts: step.advance(1), test=test)
        step.outcome = f"best on dev after step {found['best_step']:.0f}"
    for split, pools in {"val": data.dev, "train": data.train, **({"test": data.test} if test else {})}.items():
        name = f"{split}/ndcg@{config.ndcg_k}"
        beside = ", ".join(f"{other} {score:.4f}" for other, score in trainer.baselines(pools).items())
        stdout.print(f"{name:<16}{found[name]:.4f} ({beside})", soft_wrap=True)
    stdout.print(f"{'head':<16}{trainer.head_path}", soft_wrap=True)


def show_grid(runner: StudyRunner, chosen: Mapping[str, ChosenSetting]) -> None:
    """Print the settings of a grid over evolution's keys, and save its heat map."""
    runner.report(chosen)
    scores = {
        tuple(float(setting.changes[key]) for key in GRID_KEYS): own.tried[setting.name]["val"]
        for arm, own in chosen.items()
        for setting in runner.study.settings_of(arm)
    }
    label = f"nDCG@{runner.family.base.ndcg_k} on dev x 100"
    stdout.print(f"Map:    {save(heat_map(scores, label), runner.family.root / ANALYSIS / 'grid')}", soft_wrap=True)


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
        values = np.array([[100 * scores[*cell, rate, sigma] for sigma in sigmas] for rate in rates])
        image = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower")
        axes.set_xticks(range(len(sigmas)), [f"{sigma:g}" for sigma in sigmas])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.tick_params(length=0)
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=grid, aspect=40, label=label)
    return figure


def show_front(runner: StudyRunner, chosen: Mapping[str, ChosenSetting]) -> None:
    """Print the tried settings by relevance and diversity, and save their figure."""
    folder, cutoff = runner.family.root / ANALYSIS, runner.family.base.ndcg_k
    tried = [
        (name, setting, 100 * facts["val"], facts["diversity"])
        for name, own in chosen.items()
        for setting, facts in own.tried.items()
    ]
    front = pareto_front([point[2:] for point in tried])
    order = sorted(range(len(tried)), key=lambda place: (place not in front, -tried[place][2]))
    rows = []
    for place in order:
        name, setting, ndcg, spread = tried[place]
        on_it = "yes" if place in front else ""
        numbers = Cell.number(ndcg, ".2f"), Cell.number(spread, ".4f")
        rows.append((Cell(name), *numbers, Cell(on_it), Cell(setting)))
    table = Table(
        name="pareto",
        caption=f"nDCG@{cutoff} and diversity of the first {cutoff} documents on dev, {runner.family.datasets[0]}.",
        columns=("method", "nDCG", "diversity", "front", "setting"),
        groups=(RowGroup("", tuple(rows)),),
        notes=("nDCG x 100. On the front: no other head is at least as good in both and better in one.",),
        title="Pareto front",
    )
    table.write(folder)
    stdout.print(table.to_rich(), crop=False)
    points = [(name, spread, ndcg) for name, _, ndcg, spread in tried]
    figure = save(pareto_figure(points, [points[place][1:] for place in front]), folder / "pareto")
    stdout.print(f"\nTable:  {folder / table.name}.md, .tex and .csv\nFigure: {figure}", soft_wrap=True)


@in_style
def pareto_figure(points: Sequence[tuple[str, float, float]], front: Sequence[tuple[float, float]]) -> Figure:
    """Draw methods' points by diversity and nDCG, a marker for each method, and a line through those on the front."""
    methods = {name: name for name, *_ in points}
    seen = looks(methods)
    legend = legend_of(methods, seen, ls="")
    figure, (axes,) = panels([""], "diversity of the first documents", "nDCG x 100", height=1.8, legend=legend)
    axes.plot(*zip(*sorted(front), strict=True), color=NEUTRAL, linewidth=0.8, zorder=1)
    for name, diversity, ndcg in points:
        axes.plot(diversity, ndcg, seen[name].marker, color=seen[name].colour)
    return figure
