"""The command ``train-cross-encoder``; heavy imports happen when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import Device, Override, given_options, quiet_libraries, refuse_torchrun


def train_cross_encoder(
    config: Annotated[
        Path, typer.Option(help="A YAML file, or the name of a shipped one: cross_encoder/seed001.")
    ] = Path("cross_encoder/default"),
    override: Override = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the head, dropout and order of lists; by default the config's.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default the config's output_dir.")] = None,
    device: Device = None,
) -> None:
    """Train a cross-encoder on lists of documents with a listwise loss; print its test scores with BM25's.

    Run it again to resume a killed training from its last saved state.
    """
    refuse_torchrun("training a cross-encoder")
    quiet_libraries()
    from unimoe.config.files import load_config
    from unimoe.models.device import choose_device
    from unimoe.studies.cross_encoder.config import CrossEncoderConfig
    from unimoe.studies.cross_encoder.evaluation import train_and_evaluate

    changes = [*(override or ())]
    if seed is not None:
        changes.append(f"seed={seed}")
    read = load_config(CrossEncoderConfig, config, changes)
    if output_dir is not None:
        read = read.model_copy(update={"output_dir": str(output_dir)})
    train_and_evaluate(read, choose_device(device), given_options(config, changes))


COMMANDS = {"train-cross-encoder": train_cross_encoder}
