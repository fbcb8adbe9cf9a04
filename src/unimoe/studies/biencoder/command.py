"""The command ``train-biencoder``, and the tuning. Heavy modules are imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import (
    Device,
    EngineSettings,
    Override,
    comma_separated,
    given_options,
    quiet_libraries,
    refuse_torchrun,
    with_engine,
)
from unimoe.studies.common.command import Plan, run_study

SETTINGS = Path("studies/biencoder")


def train_biencoder(
    config: Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one: biencoder/seed002.")] = Path(
        "biencoder/default"
    ),
    collection: Annotated[
        str | None, typer.Option("--dataset", help="scifact, path:DIR, ...; by default the config's collection.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of batches, draws and dropout; by default the config's.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="One folder for each base; by default the config's.")] = None,
    device: Device = None,
    override: Override = None,
) -> None:
    """Train a bi-encoder by contrast, choose its epoch on dev, and print its test scores before and after.

    Run it again to resume a killed training. Seeds trained into one folder are reported together.
    """
    from unimoe.config.files import load_config
    from unimoe.studies.biencoder.config import BiEncoderConfig

    refuse_torchrun("this study")
    quiet_libraries()
    given = {"collection": collection, "seed": seed, "output_dir": output_dir}
    named = [f"{key}={value}" for key, value in given.items() if value is not None]
    settings = load_config(BiEncoderConfig, config, [*(override or []), *named])
    from unimoe.models.device import choose_device
    from unimoe.studies.biencoder.evaluation import train_and_report

    train_and_report(settings, choose_device(device), given_options(config, [*(override or ()), *named]))


@with_engine
def tune_biencoder(
    config: Annotated[Path, typer.Option(help="The config that the configurations change.")] = Path(
        "biencoder/default"
    ),
    collection: Annotated[str | None, typer.Option("--dataset", help="By default the config's collection.")] = None,
    only: Annotated[str | None, typer.Option(help="Configurations, separated by commas; by default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of the best configuration.")] = 3,
    output_dir: Annotated[Path, typer.Option(help="One folder for each tuning.")] = Path("outputs/biencoder-tuning"),
    plan: Plan = False,
    override: Override = None,
    *,
    where: EngineSettings,
) -> None:
    """Choose a bi-encoder's settings on dev, train the best with several seeds, and score them on test.

    Run it again to resume a killed tuning.
    """
    from unimoe.core.errors import UsageError, did_you_mean
    from unimoe.studies.common.study import load_study

    named = [*(override or []), *([f"collection={collection}"] if collection else [])]
    changes = {"config": str(config), "seeds": seeds, "output_dir": str(output_dir)}
    study = load_study(SETTINGS, named, changes)
    ((arm, own),) = study.arms.items()
    wanted = comma_separated(only) or [*own.variants]
    for name in wanted:
        if name not in own.variants:
            known = ", ".join(own.variants)
            raise UsageError(f"configuration {name!r}: unknown{did_you_mean(name, own.variants)}; there is {known}")
    kept = {name: keys for name, keys in own.variants.items() if name in wanted}
    study = study.model_copy(update={"arms": {arm: own.model_copy(update={"variants": kept})}})
    run_study(study, where, given_options(config, named, seeds=seeds, only=only), plan=plan)


COMMANDS = {"train-biencoder": train_biencoder}
