"""The work of the commands ``train-head`` and ``compare-heads``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.loading import Results, load_all_results
from unimoe.analysis.tables import Table
from unimoe.config.files import overridden, parse_config
from unimoe.console import Steps, stderr, stdout
from unimoe.data.catalog import available
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


def head_config(keys: Mapping[str, Any], overrides: Sequence[str]) -> TrainConfig:
    """Make a training's configuration from keys, without those that are None, and ``key=value`` overrides.

    Raises:
        UsageError: an unknown key or an impossible value; names it.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    return parse_config(TrainConfig, overridden(given, overrides), source="heads")


def comparison(base: TrainConfig, *, methods: list[str] | None, seeds: int, **facts: Any) -> Comparison:
    """Make a comparison over seeds 0, 1, ...

    Raises:
        UsageError: an unknown method, or an impossible value.
    """
    raw = {"base": base.model_dump(), "seeds": [*range(seeds)], "tuning_seed": seeds + 100, **facts}
    return parse_config(Comparison, raw | ({"methods": methods} if methods else {}), source="compare-heads")


def train_one(config: TrainConfig) -> None:
    """Train one head and print nDCG on train, dev and test."""
    data = _load(config)
    trainer = HeadTrainer(config, data)
    with Steps(1).step(f"{config.method} on {config.task}", config.num_steps) as step:
        found = trainer.train(lambda number, facts: step.advance(1))
        step.outcome = f"best on dev after step {found['best_step']:.0f}"
    for split in ("train", "val", "test"):
        name = f"{split}/ndcg@{config.ndcg_k}"
        stdout.print(f"{name:<16}{found[name]:.4f}")
    stdout.print(f"{'head':<16}{trainer.head_path}", soft_wrap=True)


def compare(compared: Comparison, part: Part, given: Sequence[str]) -> None:
    """Run a part of a comparison; finished trainings are skipped."""
    folder = Path(compared.base.output_dir)
    data = _load(compared.base)
    for caveat in compared.caveats:
        stderr.print(f"caveat: {caveat}", soft_wrap=True)
    if part is Part.GRID:
        table, figure = grid_search(compared.base, data, folder, min(GRID_STEPS, compared.base.num_steps))
        _print_table(table, folder / ANALYSIS)
        stdout.print(f"Map:    {figure}", soft_wrap=True)
        return
    run = MethodComparison(compared, data, given)
    if part is Part.PARETO:
        table, figure = pareto(run, [name for name in compared.methods if name in ("eggroll", "eggroll_objectives")])
        _print_table(table, folder / ANALYSIS)
        stdout.print(f"Figure: {figure}", soft_wrap=True)
        return
    chosen = run.run()
    if part is Part.FLATNESS:
        _print_table(flatness_table(run, chosen), folder / ANALYSIS)
    else:
        _print_methods(load_all_results(folder), compared, chosen, data)


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
    """Load the pools, and print what is unusual about them."""
    with Steps(1).step(f"{config.task}: texts embedded, pools made", None) as step:
        data = load_data(config, step.advance)
        step.outcome = f"{len(data.train):,} queries to train on, {len(data.dev):,} dev, {len(data.test):,} test"
    for note in data.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    return data
