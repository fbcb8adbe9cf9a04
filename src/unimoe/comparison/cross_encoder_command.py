"""The command ``train-cross-encoder``; light to import, what it needs is imported when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from unimoe.errors import UsageError

DEFAULT_CROSS_ENCODER = Path("cross_encoder/default")

Override = Annotated[list[str] | None, typer.Option("--set", help="Override a config key: loss.name=lambdaloss.")]


def train_cross_encoder(
    config: Annotated[
        Path, typer.Option(help="A YAML file, or the name of a shipped one: cross_encoder/seed001.")
    ] = DEFAULT_CROSS_ENCODER,
    override: Override = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of head, dropout and order; by default the config's.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default the config's output_dir.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; by default the best there is.")] = None,
) -> None:
    """Train a cross-encoder on lists of documents with a listwise loss; print its test scores beside BM25's.

    What is done already is skipped, so a killed training goes on from its last saved state when started again.
    """
    prepare()
    from unimoe.comparison.cross_encoder import train_and_evaluate
    from unimoe.config.cross_encoder import CrossEncoderConfig
    from unimoe.config.files import load_config
    from unimoe.models.device import choose_device

    changes = [*(override or ())]
    if seed is not None:
        changes.append(f"seed={seed}")
    read = load_config(CrossEncoderConfig, config, changes)
    if output_dir is not None:
        read = read.model_copy(update={"output_dir": str(output_dir)})
    given = [f"--config {config}", *(f"--set {change}" for change in changes)]
    train_and_evaluate(read, choose_device(device), given)


def prepare() -> None:
    """One process, and libraries that keep their bars to themselves."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("a cross-encoder is trained in one process here; start it without torchrun")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
