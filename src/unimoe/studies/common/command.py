"""The command ``study``, and what the studies' own commands share with it. Heavy modules are imported when one runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from unimoe.studies.common.runner import StudyRunner
    from unimoe.studies.common.study import ChosenSetting, Study

Plan = Annotated[bool, typer.Option("--plan", help="Say what the study would cost, from a few steps of each arm.")]


@with_engine
def study(
    config: Annotated[Path, typer.Argument(help="A YAML file, or the name of a shipped one: studies/losses.")],
    only: Annotated[str | None, typer.Option(help="Arms, separated by commas; by default all.")] = None,
    seeds: Annotated[int | None, typer.Option(min=0, help="Reported trainings of each arm; 0 for dev alone.")] = None,
    plan: Plan = False,
    output_dir: Annotated[Path | None, typer.Option(help="By default the study's. One study has one folder.")] = None,
    override: Override = None,
    *,
    where: EngineSettings,
) -> None:
    """Run a study: choose settings on dev, train all seeds, test once, and judge the gates registered beforehand.

    Rerun the command to resume. ``analyze`` reads the folder too.
    """
    from unimoe.studies.common.study import load_study

    options = {"seeds": seeds, "output_dir": None if output_dir is None else str(output_dir)}
    read = load_study(config, override or (), options).of_arms(comma_separated(only))
    run_study(read, where, given_options(config, override, only=only, seeds=seeds), plan=plan)


def run_study(
    study: Study,
    where: EngineSettings,
    given: Sequence[str],
    *,
    plan: bool = False,
    show: Callable[[StudyRunner, Mapping[str, ChosenSetting]], None] | None = None,
) -> None:
    """Run a study, or with ``plan`` print what it would cost; results record the options that are ``given``.

    ``show`` prints the outcome in place of the tables and the verdict.
    """
    refuse_torchrun("a study")
    quiet_libraries()
    from unimoe.core.io import sole_use
    from unimoe.models.device import choose_device
    from unimoe.studies.common.family import family_of
    from unimoe.studies.common.runner import StudyRunner, dtype_of_gpus

    where.use_threads()
    with opened_engine(where) as engine:
        device = choose_device(where.here) if where.here else None
        family = family_of(study.family)(study, device, given)
        family.with_dtype(dtype_of_gpus(engine))
        runner = StudyRunner(family, engine)
        if plan:
            runner.plan()
            return
        with sole_use(family.root):
            (show or StudyRunner.report)(runner, runner.run())


COMMANDS = {"study": study}
