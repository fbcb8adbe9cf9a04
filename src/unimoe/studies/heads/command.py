"""The command ``train-head``, which imports its work when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimoe.cli.options import Config, Device, Override, quiet_libraries, refuse_torchrun
from unimoe.core.errors import UsageError

if TYPE_CHECKING:
    from unimoe.studies.heads.config import TrainConfig


def train_head(
    config: Config = Path("studies/heads"),
    task: Annotated[
        str | None,
        typer.Option(help="A collection: scifact, NanoMSMARCO, path:DIR. By default SciFact's folder, else apidocs."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="eggroll, score_es, genetic, hybrid, or a loss: infonce, lambdaloss, pg_rank, ..."),
    ] = None,
    num_steps: Annotated[
        int | None, typer.Option("--num-steps", "--num_steps", min=1, help="Steps, or generations.")
    ] = None,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of noise and batches.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder of checkpoint and log.")] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Also print nDCG on the test queries, once settings are chosen on dev.")
    ] = False,
    override: Override = None,
) -> None:
    """Train one projection head over a frozen encoder, choose its step on dev; print nDCG on dev and train."""
    from unimoe.config.files import find_config, overridden, parse_config, read_yaml
    from unimoe.studies.heads.config import TrainConfig, collection_at_hand

    refuse_torchrun("training heads")
    quiet_libraries()
    file = find_config(config)
    raw = read_yaml(file)
    if not isinstance(raw, dict | None):
        raise UsageError(f"{file}: holds no keys; write key: value lines")
    options = {
        "task": task,
        "method": method,
        "num_steps": num_steps,
        "device": device,
        "seed": seed,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    given = {key: value for key, value in options.items() if value is not None}
    named = {"task": collection_at_hand(), **(raw or {}), **given}
    wanted = parse_config(TrainConfig, overridden(named, override or ()), source=str(file))
    for change in override or ():
        wanted.refuse_unread([change.partition("=")[0].strip()], f"--set {change}")
    _train(wanted, test=test)


def _train(config: TrainConfig, *, test: bool) -> None:
    """Train one head and print nDCG on dev and train, and on test where asked, with what it has to beat."""
    from unimoe.checks import lines
    from unimoe.core.console import Steps, stderr, stdout
    from unimoe.studies.heads.trainer import HeadTrainer, load_data

    with Steps(1).step(f"{config.task}: vectors and pools", None) as step:
        data = load_data(config, step.advance)
        data = data.with_votes(config.soft_labels)  # kept for the trainer; voters may take minutes
        step.outcome = data.sizes
    for note in data.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    trainer = HeadTrainer(config, data)
    with Steps(1).step(f"{config.method} on {config.task}", config.num_steps) as step:
        found = trainer.train(lambda number, facts: step.advance(1), test=test)
        step.outcome = f"best on dev after step {found['best_step']:.0f}"
    for split, pools in {"val": data.dev, "train": data.train, **({"test": data.test} if test else {})}.items():
        name = f"{split}/ndcg@{config.ndcg_k}"
        beside = ", ".join(f"{other} {score:.4f}" for other, score in trainer.baselines(pools).items())
        stdout.print(f"{name:<16}{found[name]:.4f} ({beside})", soft_wrap=True)
    for caveat in lines(data.splits.test.checks, "caveat"):
        stdout.print(f"caveat: {caveat}", soft_wrap=True)
    stdout.print(f"{'head':<16}{trainer.head_path}", soft_wrap=True)


COMMANDS = {"train-head": train_head}
