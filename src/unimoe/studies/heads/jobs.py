"""The work of the commands ``train-head`` and ``compare-heads``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.tables import Table
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import UsageError
from unimoe.data.catalog import available
from unimoe.evaluation.engines import Engine
from unimoe.results import safe_name
from unimoe.results.folder import Results, load_all_results
from unimoe.studies.common.registered_gates import verdict
from unimoe.studies.heads.compare import Part
from unimoe.studies.heads.compare.arms import Comparison
from unimoe.studies.heads.compare.flatness import flatness_table
from unimoe.studies.heads.compare.methods import Chosen, MethodComparison
from unimoe.studies.heads.compare.pareto import pareto
from unimoe.studies.heads.compare.search import grid_search
from unimoe.studies.heads.compare.table import method_table, overlap_table
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.trainer import HeadTrainer, load_data

ANALYSIS = "analysis"
GRID_STEPS = 40
"""The most steps of each training in a grid search."""


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


def comparison(
    path: Path, base: Mapping[str, Any], options: Mapping[str, Any], seeds: int | None, overrides: Sequence[str]
) -> Comparison:
    """Read a comparison, and change it by options that are given and ``key=value`` overrides.

    Args:
        path: of its file.
        base: options of the trainings, for the section ``base``.
        options: of the comparison.
        seeds: how many seeds, from 0; None for those of the file.
        overrides: a key that is none of a comparison's is one of its base.

    Raises:
        UsageError: no such file, an unknown key, method or task, or an impossible value.
    """
    file = find_config(path)
    raw = _section(read_yaml(file), file) | _given(options)
    if seeds is not None:
        raw |= {"seeds": [*range(seeds)], "tuning_seed": seeds + 100}
    raw["base"] = _with_task(_section(raw.get("base"), file) | _given(base))
    own = {*Comparison.model_fields}
    keys = [text if re.split(r"[.=]", text)[0] in own else f"base.{text}" for text in overrides]
    raw = overridden(raw, keys)
    raw["base"].setdefault("output_dir", f"outputs/heads-{safe_name(str(raw['base']['task']))}")
    return parse_config(Comparison, raw, source=str(file))


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


def compare(compared: Comparison, part: Part, given: Sequence[str], engine: Engine | None = None) -> None:
    """Run a part of a comparison, its trainings by workers where ``engine`` has some; finished ones are skipped."""
    folder, eligible = Path(compared.base.output_dir), _eligible(compared, part)
    data = _load(compared.base)
    _print_notes(data)
    for caveat in compared.caveats:
        stderr.print(f"caveat: {caveat}", soft_wrap=True)
    if part is Part.GRID:
        table, figure = grid_search(compared, data, min(GRID_STEPS, compared.base.num_steps), engine)
        _print_table(table, folder / ANALYSIS)
        stdout.print(f"Map:    {figure}", soft_wrap=True)
        return
    run = MethodComparison(compared, data, given, engine)
    if part is Part.PARETO:
        table, figure = pareto(run, eligible)
        _print_table(table, folder / ANALYSIS)
        stdout.print(f"Figure: {figure}", soft_wrap=True)
        return
    chosen = run.run()
    if part is Part.FLATNESS:
        _print_table(flatness_table(run, chosen), folder / ANALYSIS)
    else:
        _print_methods(load_all_results(folder), compared, chosen, data)


def _eligible(compared: Comparison, part: Part) -> list[str]:
    """Return the methods that a part can show.

    Raises:
        UsageError: there is none.
    """
    names = [name for name in compared.methods if part is not Part.FLATNESS or name != "zero_shot"]
    if part is Part.PARETO:
        names = [name for name in names if name in ("eggroll", "eggroll_objectives")]
    if not names:
        shown = "eggroll and eggroll_objectives" if part is Part.PARETO else "trained heads"
        raise UsageError(f"{part}: shows {shown}, and --methods names none; name another method")
    return names


def _print_methods(results: Results, compared: Comparison, chosen: Mapping[str, Chosen], data: HeadData) -> None:
    folder = results.output_dir / ANALYSIS
    _print_table(method_table(results, compared, chosen, data.notes), folder)
    _print_table(overlap_table(results, compared, data.splits, list(chosen)), folder)
    analysis = Analysis(results)
    if analysis.registration is not None:
        stdout.print(f"\n{verdict(analysis)}", soft_wrap=True)
    stdout.print(f"\nMore:   unimoe analyze --output-dir {results.output_dir}", soft_wrap=True)


def _print_table(table: Table, folder: Path) -> None:
    table.write(folder)
    stdout.print(table.to_rich(), crop=False)
    stdout.print(f"\nTable:  {folder / table.name}.md, .tex and .csv", soft_wrap=True)


def _load(config: TrainConfig) -> HeadData:
    with Steps(1).step(f"{config.task}: vectors and pools", None) as step:
        data = load_data(config, step.advance)
        data.with_votes(config.soft_labels)  # kept for the trainings; voters may take minutes
        step.outcome = f"{len(data.train):,} queries to train on, {len(data.dev):,} dev, {len(data.test):,} test"
    return data


def _print_notes(data: HeadData) -> None:
    for note in data.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
