"""The command ``study``, and what the scripts that run shipped studies share with it; heavy imports come last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unimoe.cli.options import (
    EngineSettings,
    Override,
    comma_separated,
    given_options,
    opened_engine,
    quiet_libraries,
    refuse_torchrun,
    with_engine,
)

Only = Annotated[
    str | None, typer.Option(help="Arms, separated by commas; by default all. ARM:VARIANT tries this variant of it.")
]
NumSeeds = Annotated[int | None, typer.Option(min=0, help="Reported trainings of each arm; 0 for dev alone.")]
StudyDir = Annotated[Path | None, typer.Option(help="By default the study's. One study has one folder.")]
Plan = Annotated[bool, typer.Option("--plan", help="Say what the study would cost, from a few steps of each arm.")]


@with_engine
def study(
    config: Annotated[Path, typer.Argument(help="A YAML file, or the name of a shipped one: studies/losses.")],
    only: Only = None,
    seeds: NumSeeds = None,
    plan: Plan = False,
    output_dir: StudyDir = None,
    override: Override = None,
    *,
    where: EngineSettings,
) -> None:
    """Run a study: choose settings on dev, train all seeds, test once, and judge the gates registered beforehand.

    Rerun the command to resume. ``analyze`` reads the folder too.
    """
    run_study(config, where, override or (), only=only, seeds=seeds, output_dir=output_dir, plan=plan)


def run_study(
    config: Path,
    where: EngineSettings,
    overrides: Sequence[str],
    *,
    only: str | None = None,
    seeds: int | None = None,
    output_dir: Path | None = None,
    plan: bool = False,
) -> None:
    """Run a study by its file, or with ``plan`` print what it would cost; results record the options."""
    from unimoe.core.console import stderr
    from unimoe.studies.common.study import load_study

    refuse_torchrun("a study")
    quiet_libraries()
    options = {"seeds": seeds, "output_dir": None if output_dir is None else str(output_dir)}
    read = load_study(config, overrides, options).of_arms(comma_separated(only))
    tried = sum(len(read.settings_of(arm)) for arm in read.arms)
    sizes = f"arms {len(read.arms)}, settings {tried}, seeds {len(read.seeds)}"
    stderr.print(f"{read.name}: {sizes}", soft_wrap=True)  # before seconds of imports
    from unimoe.core.io import sole_use
    from unimoe.models.device import choose_device
    from unimoe.studies.common.family import family_of
    from unimoe.studies.common.runner import StudyRunner, dtype_of_gpus

    where.use_threads()
    given = given_options(config, overrides, only=only, seeds=seeds)
    with opened_engine(where) as engine:
        device = choose_device(where.here) if where.here else None
        family = family_of(read.family)(read, device, given)
        family.with_dtype(dtype_of_gpus(engine))
        runner = StudyRunner(family, engine)
        if plan:
            runner.plan()
            return
        with sole_use(family.root):
            runner.report(runner.run())


def changes(keys: Mapping[str, Any], override: Sequence[str] | None) -> list[str]:
    """Return the keys of a study that a script's options give, and those of ``--set``, as overrides."""
    given = {key: value for key, value in keys.items() if value is not None}
    return [*(f"{key}={json.dumps(value, default=str)}" for key, value in given.items()), *(override or ())]


COMMANDS = {"study": study}
