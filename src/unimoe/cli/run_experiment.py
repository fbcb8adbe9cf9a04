"""``unimoe run`` and ``scripts/run_experiment.py``: train, evaluate and judge all arms of an experiment."""

from __future__ import annotations

import os
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.analyze import analyze
from unimoe.cli.options import (
    DEFAULT_EXPERIMENT,
    Config,
    EngineSettings,
    OutputDir,
    Override,
    chosen_device,
    given_options,
    opened_engine,
    placed,
    quiet_libraries,
    refuse_torchrun,
    with_engine,
)
from unimoe.core.advice import run_command
from unimoe.core.console import stderr, stdout


@with_engine
def run_experiment(
    config: Config = DEFAULT_EXPERIMENT,
    override: Override = None,
    output_dir: OutputDir = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print how long it will take; run only a probe of some seconds.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Few steps, one seed, unfit for decisions.")] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in the browser at the end.")] = False,
    *,
    where: EngineSettings,
) -> None:
    """Run an experiment: train, evaluate and judge every arm and seed.

    Without arguments it runs the bundled model on the bundled collection, offline, in minutes. It skips what is done,
    so you can restart a killed run. With --engine ray, every
    training, and every unit of an evaluation, is a task for the workers of a cluster.
    """
    started = time.perf_counter()
    from unimoe.config.files import load_experiment
    from unimoe.core.io import sole_use
    from unimoe.experiment.job import smoke_version
    from unimoe.experiment.running import trained_and_evaluated

    refuse_torchrun("an experiment")
    experiment = load_experiment(config, override or [])
    if smoke:
        experiment = smoke_version(experiment).model_copy(update={"output_dir": f"{experiment.output_dir}-smoke"})
    experiment = placed(experiment, output_dir)
    quiet_libraries()
    where.use_threads()
    target = chosen_device(where.here)
    if plan:
        where.refuse_unused()
        from unimoe.experiment.plan import planned

        for line in planned(experiment, target, started):
            stdout.print(line, soft_wrap=True)
        return
    options = given_options(config, override, smoke=smoke)
    with sole_use(Path(experiment.output_dir)), opened_engine(where) as opened:
        with trained_and_evaluated(experiment, target, options, opened, started) as run:
            analyze(output_dir=Path(experiment.output_dir))
        for line in run.next_look():
            stdout.print(line, soft_wrap=True)
    if open_report:
        _open(Path(experiment.output_dir))
    from unimoe.models.checkpoint import judged_checkpoint

    checkpoint = judged_checkpoint(experiment, next(reversed(experiment.arms)), experiment.seeds[0])
    evaluate = run_command(f"evaluate --checkpoint {checkpoint} --eval-tier fast")
    stdout.print(f"Next:   {evaluate}", soft_wrap=True)


def _open(folder: Path) -> None:
    """Open the report in the browser, never on a machine of continuous integration."""
    from unimoe.analysis.report import SUBFOLDER

    report = folder / SUBFOLDER / "report.html"
    if os.environ.get("CI") or not webbrowser.open(report.resolve().as_uri()):
        stderr.print(f"--open: no browser here; open {report} in one", soft_wrap=True)
