"""``unimoe demo`` and ``scripts/run_experiment.py``: train, evaluate and judge all arms of an experiment."""

from __future__ import annotations

import os
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.analyze import analyze
from unimoe.cli.engine import (
    Address,
    Allow,
    EngineName,
    EngineSettings,
    StoreUrl,
    WorkerCount,
    opened_engine,
)
from unimoe.cli.options import (
    DEFAULT_EXPERIMENT,
    Config,
    Device,
    OutputDir,
    Override,
    Threads,
    chosen_device,
    given_options,
    placed,
    quiet_libraries,
    refuse_torchrun,
)
from unimoe.core.console import stderr, stdout

if TYPE_CHECKING:
    from unimoe.config import Experiment
    from unimoe.experiment.job import ExperimentRun
    from unimoe.experiment.run_record import RunRecord
    from unimoe.models.loader import ModelLoader


def run_experiment(
    config: Config = DEFAULT_EXPERIMENT,
    override: Override = None,
    output_dir: OutputDir = None,
    device: Device = None,
    threads: Threads = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print time and work; run only a probe of some seconds.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Few steps, one seed, unfit for decisions.")] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in the browser at the end.")] = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: WorkerCount = None,
    store: StoreUrl = None,
    allow: Allow = None,
) -> None:
    """Run an experiment: train, evaluate and judge every arm and seed.

    Without arguments it runs the bundled model on the bundled collection, offline, in minutes. It skips what is done,
    so you can restart a killed run. With --engine ray, every
    training, and every unit of an evaluation, is a task for the workers of a cluster.
    """
    started = time.perf_counter()
    from unimoe.config.files import load_experiment
    from unimoe.core.io import sole_use
    from unimoe.experiment.job import ANALYZE, ExperimentRun, smoke_version
    from unimoe.experiment.run_record import RunRecord
    from unimoe.models.work import counted_products

    refuse_torchrun("an experiment")
    experiment = load_experiment(config, override or [])
    if smoke:
        experiment = smoke_version(experiment).model_copy(update={"output_dir": f"{experiment.output_dir}-smoke"})
    experiment = placed(experiment, output_dir)
    quiet_libraries()
    settings = EngineSettings(engine, address, workers, store, allow, device, threads)
    settings.use_threads()
    target = chosen_device(settings.here)
    if plan:
        settings.refuse_unused()
        from unimoe.experiment.estimate import planned

        for line in planned(experiment, target, started):
            stdout.print(line, soft_wrap=True)
        return
    with sole_use(Path(experiment.output_dir)), opened_engine(settings) as opened, counted_products() as counted:
        run = ExperimentRun(experiment, target, given_options(config, override, smoke=smoke), opened)
        record = RunRecord(Path(experiment.output_dir), lambda: counted.flop, started)
        record.note(_facts(run.loader))
        _announce(experiment, run)
        expected = _estimated(experiment, run, record, started) if engine == "local" else None
        run.train_and_evaluate(record, expected)
        stderr.print()
        with record.phase(ANALYZE):
            analyze(output_dir=Path(experiment.output_dir))
        for line in run.next_look():
            stdout.print(line, soft_wrap=True)
    if open_report:
        _open(Path(experiment.output_dir))
    stdout.print(f"Next:   {_next_command(experiment)}", soft_wrap=True)


def _facts(loader: ModelLoader) -> dict[str, Any]:
    """Return what a run's cost depends on besides its config."""
    import torch

    from unimoe.models.device import describe_device
    from unimoe.results.provenance import git_state

    return {
        "device": describe_device(loader.device),
        "dtype": loader.dtype_name,
        "threads": torch.get_num_threads(),
        "git_commit": git_state()[0],
    }


def _announce(experiment: Experiment, run: ExperimentRun) -> None:
    """Print what will run, and on which device."""
    from unimoe.models.device import describe_device

    loader, arms, seeds = run.loader, len(experiment.arms), len(experiment.seeds)
    stderr.print(
        f"{experiment.name}: {arms} arm{'s' * (arms > 1)} x {seeds} seed{'s' * (seeds > 1)}, {experiment.model.base}, "
        f"{describe_device(loader.device)}, {loader.dtype_name}; results in {experiment.output_dir}",
        soft_wrap=True,
    )


def _estimated(experiment: Experiment, run: ExperimentRun, record: RunRecord, started: float) -> Mapping[str, float]:
    """Print the expected time; return the seconds of a unit of each phase, the first run's where it is resumed."""
    from unimoe.experiment.estimate import estimate, in_words

    if run.is_done():
        return {}
    known: Mapping[str, float] | None = record.noted("unit_seconds")
    if known is not None:  # it was begun before: it goes on at once
        return known
    expected = estimate(experiment, run.loader, started, run.training_data)
    low, high = expected.cost.range
    record.note({"estimate_seconds": {"low": round(low, 1), "high": round(high, 1)}}, keep=True)
    record.note({"unit_seconds": {phase: round(seconds, 3) for phase, seconds in expected.units.items()}})
    for line in (f"{in_words(expected.cost)} on this machine", *expected.shorter):
        stderr.print(line, soft_wrap=True)
    return expected.units


def _open(folder: Path) -> None:
    """Open the report in the browser, never on a machine of continuous integration."""
    from unimoe.analysis.report import SUBFOLDER

    report = folder / SUBFOLDER / "report.html"
    if os.environ.get("CI") or not webbrowser.open(report.resolve().as_uri()):
        stderr.print(f"--open: no browser here; open {report} in one", soft_wrap=True)


def _next_command(experiment: Experiment) -> str:
    from unimoe.experiment.job import judged_checkpoint

    checkpoint = judged_checkpoint(experiment, next(reversed(experiment.arms)), experiment.seeds[0])
    return f"uv run scripts/evaluate.py --checkpoint {checkpoint} --eval-tier fast"
