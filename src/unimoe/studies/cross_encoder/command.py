"""The command ``train-cross-encoder`` and the script ``compare_losses.py``; heavy imports happen when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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

DEFAULT_CROSS_ENCODER = Path("cross_encoder/default")
DEFAULT_LOSSES = Path("cross_encoder/losses")
LOSSES = Path("studies/losses")


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
    from unimoe.studies.cross_encoder.evaluation import train_and_evaluate

    changes = [*(override or ())]
    if seed is not None:
        changes.append(f"seed={seed}")
    read = load_config(CrossEncoderConfig, config, changes)
    if output_dir is not None:
        read = read.model_copy(update={"output_dir": str(output_dir)})
    train_and_evaluate(read, choose_device(device), given_options(config, changes))


@with_engine
def compare_losses(
    config: Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one.")] = DEFAULT_LOSSES,
    losses: Annotated[str | None, typer.Option(help="Losses, separated by commas; by default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each loss.")] = 3,
    rates: Annotated[
        str | None, typer.Option(help="Learning rates, separated by commas: each loss gets its best on dev.")
    ] = None,
    override: Override = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default the config's output_dir.")] = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Compare ranking losses on a cross-encoder: MAP, MRR@10 and nDCG@10 beside BM25's, with paired tests.

    Run it again to resume a killed comparison. ``analyze`` reads its folder too.
    """
    from unimoe.config.files import load_config
    from unimoe.core.console import stderr
    from unimoe.studies.common.study import load_study
    from unimoe.studies.cross_encoder.config import CrossEncoderConfig

    base = load_config(CrossEncoderConfig, config, override or [])
    tried = sorted({_rate(text) for text in comma_separated(rates) or ()})
    changes: dict[str, Any] = {"name": base.name, "config": str(config), "seeds": seeds}
    changes["output_dir"] = str(output_dir or base.output_dir)
    changes["grid"] = {"learning_rate": tried} if tried else {}
    study = load_study(LOSSES, override or (), changes).of_arms(comma_separated(losses))
    if study.gates and not tried:  # the shared rate suits some losses better than others
        stderr.print(
            "note: no gate is registered, since all losses share one rate; give --rates, so that each has its own",
            soft_wrap=True,
        )
        study = study.model_copy(update={"gates": {}})
    run_study(study, where, given_options(config, override, losses=losses, seeds=seeds, rates=rates), plan=plan)


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
