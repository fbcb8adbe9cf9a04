"""The command behind ``scripts/compare_losses.py``; light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.comparison.cross_encoder_command import Override, prepare

_DEFAULT = Path("cross_encoder/losses")


def compare_losses(
    config: Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one.")] = _DEFAULT,
    losses: Annotated[str | None, typer.Option(help="Some of the losses, with commas; by default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each loss.")] = 3,
    override: Override = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default the config's output_dir.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; by default the best there is.")] = None,
) -> None:
    """Compare ranking losses on a cross-encoder: MAP, MRR@10 and nDCG@10 beside BM25's, with paired tests.

    What is done is skipped, so a killed comparison goes on when it is started again. ``analyze`` reads the folder too.
    """
    prepare()
    from unimoe.comparison import losses as compared
    from unimoe.config.cross_encoder import CrossEncoderConfig
    from unimoe.config.files import load_config
    from unimoe.models.device import choose_device

    read = load_config(CrossEncoderConfig, config, override or [])
    if output_dir is not None:
        read = read.model_copy(update={"output_dir": str(output_dir)})
    names = [name.strip() for name in losses.split(",") if name.strip()] if losses else None
    given = [f"--config {config}", f"--seeds {seeds}", *(f"--set {change}" for change in override or ())]
    compared.compare_losses(read, names, range(seeds), choose_device(device), given)
