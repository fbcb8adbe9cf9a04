"""The command ``train-biencoder``. Heavy modules are imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import Device, Override, given_options, quiet_libraries, refuse_torchrun


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


COMMANDS = {"train-biencoder": train_biencoder}
