"""The command ``train-cross-encoder`` and the script ``compare_losses.py``; heavy imports happen when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.engine import (
    Address,
    Allow,
    EngineName,
    EngineSettings,
    StoreUrl,
    TrainingThreads,
    WorkerCount,
    opened_engine,
)
from unimoe.cli.options import Device, Override, comma_separated, quiet_libraries, refuse_torchrun

DEFAULT_CROSS_ENCODER = Path("cross_encoder/default")
DEFAULT_LOSSES = Path("cross_encoder/losses")


def train_cross_encoder(
    config: Annotated[
        Path, typer.Option(help="A YAML file, or the name of a shipped one: cross_encoder/seed001.")
    ] = DEFAULT_CROSS_ENCODER,
    override: Override = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the head, dropout and order of lists; by default the config's.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default the config's output_dir.")] = None,
    device: Device = None,
) -> None:
    """Train a cross-encoder on lists of documents with a listwise loss; print its test scores beside BM25's.

    Run it again to resume a killed training from its last saved state.
    """
    refuse_torchrun("training a cross-encoder")
    quiet_libraries()
    from unimoe.config.files import load_config
    from unimoe.models.device import choose_device
    from unimoe.studies.cross_encoder.config import CrossEncoderConfig
    from unimoe.studies.cross_encoder.jobs import train_and_evaluate

    changes = [*(override or ())]
    if seed is not None:
        changes.append(f"seed={seed}")
    read = load_config(CrossEncoderConfig, config, changes)
    if output_dir is not None:
        read = read.model_copy(update={"output_dir": str(output_dir)})
    given = [f"--config {config}", *(f"--set {change}" for change in changes)]
    train_and_evaluate(read, choose_device(device), given)


def compare_losses(
    config: Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one.")] = DEFAULT_LOSSES,
    losses: Annotated[str | None, typer.Option(help="Losses, separated by commas; by default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each loss.")] = 3,
    rates: Annotated[
        str | None, typer.Option(help="Learning rates, separated by commas: each loss gets its best on dev.")
    ] = None,
    override: Override = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default the config's output_dir.")] = None,
    device: Device = None,
    threads: TrainingThreads = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: WorkerCount = None,
    store: StoreUrl = None,
    allow: Allow = None,
) -> None:
    """Compare ranking losses on a cross-encoder: MAP, MRR@10 and nDCG@10 beside BM25's, with paired tests.

    Run it again to resume a killed comparison. ``analyze`` reads its folder too.
    """
    refuse_torchrun("training a cross-encoder")
    quiet_libraries()
    from unimoe.config.files import load_config
    from unimoe.models.device import choose_device
    from unimoe.studies.cross_encoder import compare_losses as compared
    from unimoe.studies.cross_encoder.config import CrossEncoderConfig

    read = load_config(CrossEncoderConfig, config, override or [])
    if output_dir is not None:
        read = read.model_copy(update={"output_dir": str(output_dir)})
    names = comma_separated(losses)
    tried = [_rate(text) for text in comma_separated(rates) or ()]
    options = {"--config": config, "--losses": losses, "--seeds": seeds, "--rates": rates}
    given = [
        *(f"{name} {value}" for name, value in options.items() if value is not None),
        *(f"--set {change}" for change in override or ()),
    ]
    where = EngineSettings(engine, address, workers, store, allow, device, threads)
    where.use_threads()
    with opened_engine(where) as opened:
        compared.compare_losses(read, names, range(seeds), choose_device(where.here), given, tried, opened)


def _rate(text: str) -> float:
    from unimoe.core.errors import UsageError

    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1:
        raise UsageError(f"--rates {text}: a learning rate lies between 0 and 1, such as 3e-5")
    return rate


COMMANDS = {"train-cross-encoder": train_cross_encoder}
