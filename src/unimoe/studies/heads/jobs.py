"""The work of the commands ``train-head`` and ``compare-heads``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unimoe.analysis.figures.style import save
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import UsageError
from unimoe.data.catalog import available
from unimoe.results import safe_name
from unimoe.studies.common.runner import ANALYSIS, StudyRunner
from unimoe.studies.common.study import Chosen, Study
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.front import front_of
from unimoe.studies.heads.grid import GRID_KEYS, heat_map
from unimoe.studies.heads.trainer import HeadTrainer, load_data

GRID = Path("studies/heads_grid")
_ON_FRONT = ("eggroll", "eggroll_objectives")


def default_task() -> str:
    """Return SciFact if its folder exists, else the bundled collection: neither needs a network."""
    return "scifact" if available("scifact") else "apidocs"


def head_config(path: Path, options: Mapping[str, Any], overrides: Sequence[str]) -> TrainConfig:
    """Read a training's configuration, and change it by options that are given and ``key=value`` overrides.

    Raises:
        UsageError: no such file, an unknown key or an impossible value; names it.
    """
    file = find_config(path)
    raw = _section(read_yaml(file), file)
    return parse_config(TrainConfig, overridden(_with_task(raw | _given(options)), overrides), source=str(file))


def placed(study: Study, base: Mapping[str, Any], margin: float | None) -> Study:
    """Return a study with keys of its base that are given, its collection, its folder, and the margin of its gates."""
    keys = _with_task({**study.base, **_given(base)})
    folder = study.output_dir or f"outputs/heads-{safe_name(str(keys['task']))}"
    gates = {name: gate | ({} if margin is None else {"margin": margin}) for name, gate in study.gates.items()}
    return study.model_copy(update={"base": keys, "output_dir": folder, "gates": gates})


def on_front(methods: Sequence[str] | None) -> list[str]:
    """Return the methods that the front of relevance and diversity can show; a UsageError where there is none."""
    names = [name for name in _ON_FRONT if methods is None or name in methods]
    if not names:
        raise UsageError("pareto: shows eggroll and eggroll_objectives, and --methods names neither; name one of them")
    return names


def show_grid(runner: StudyRunner, chosen: Mapping[str, Chosen]) -> None:
    """Print the settings of a grid over evolution's keys, and save its heat map."""
    runner.report(chosen)
    scores = {
        tuple(float(setting.changes[key]) for key in GRID_KEYS): own.tried[setting.name]["val"]
        for arm, own in chosen.items()
        for setting in runner.study.settings_of(arm)
    }
    label = f"nDCG@{runner.family.base.ndcg_k} on dev x 100"
    stdout.print(f"Map:    {save(heat_map(scores, label), runner.family.root / ANALYSIS / 'grid')}", soft_wrap=True)


def show_front(runner: StudyRunner, chosen: Mapping[str, Chosen]) -> None:
    """Print the tried settings by relevance and diversity, and save their figure."""
    family, folder = runner.family, runner.family.root / ANALYSIS
    table, figure = front_of(chosen, family.datasets[0], family.base.ndcg_k, folder)
    table.write(folder)
    stdout.print(table.to_rich(), crop=False)
    stdout.print(f"\nTable:  {folder / table.name}.md, .tex and .csv\nFigure: {figure}", soft_wrap=True)


def _section(raw: Any, file: Path) -> dict[str, Any]:
    if not isinstance(raw, dict | None):
        raise UsageError(f"{file}: holds no keys; write key: value lines")
    return dict(raw or {})


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _with_task(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"task": default_task(), **raw}


def train_one(config: TrainConfig, *, test: bool = False) -> None:
    """Train one head and print nDCG on dev and train, and on test where asked."""
    trainer = HeadTrainer(config, _load(config))
    _print_notes(trainer.data)
    with Steps(1).step(f"{config.method} on {config.task}", config.num_steps) as step:
        found = trainer.train(lambda number, facts: step.advance(1), test=test)
        step.outcome = f"best on dev after step {found['best_step']:.0f}"
    for split in ("val", "train", *(["test"] if test else [])):
        name = f"{split}/ndcg@{config.ndcg_k}"
        stdout.print(f"{name:<16}{found[name]:.4f}")
    stdout.print(f"{'head':<16}{trainer.head_path}", soft_wrap=True)


def _load(config: TrainConfig) -> HeadData:
    with Steps(1).step(f"{config.task}: vectors and pools", None) as step:
        data = load_data(config, step.advance)
        data.with_votes(config.soft_labels)  # kept for the trainings; voters may take minutes
        step.outcome = f"{len(data.train):,} queries to train on, {len(data.dev):,} dev, {len(data.test):,} test"
    return data


def _print_notes(data: HeadData) -> None:
    for note in data.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
