"""Options that several commands share, and what a command does before it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimoe.errors import UsageError

if TYPE_CHECKING:
    import torch

    from unimoe.config import Experiment

DEFAULT_EXPERIMENT = Path("experiments/bundled")

Config = Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one.")]
Override = Annotated[list[str] | None, typer.Option("--set", help="Override a config key: training.steps=50.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps; by default the best there is.")]
OutputDir = Annotated[Path | None, typer.Option(help="The experiment's folder; by default the config's output_dir.")]
MaxQueries = Annotated[
    int | None, typer.Option(min=1, help="Score at most this many queries of each dataset; results say so.")
]


def comma_separated(text: str | None) -> list[str] | None:
    """Return the names in a text such as ``ridge,mlp1``; None where it names none."""
    return [name.strip() for name in (text or "").split(",") if name.strip()] or None


def given_options(config: Path | None, override: list[str] | None, **options: object) -> list[str]:
    """Return what the user set by hand, for the provenance of results; every other option had its default."""
    named = [f"--{name.replace('_', '-')} {value}" for name, value in options.items() if value not in (None, False)]
    return [*([f"--config {config}"] if config else []), *named, *(f"--set {text}" for text in override or [])]


def placed(experiment: Experiment, output_dir: Path | None) -> Experiment:
    """Return the experiment with another output folder, where one is given."""
    return experiment if output_dir is None else experiment.model_copy(update={"output_dir": str(output_dir)})


def refuse_torchrun(what: str) -> None:
    """Raise a usage error in a process that torchrun started."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(f"{what} runs in one process; start it without torchrun")


def chosen_device(name: str | None) -> torch.device:
    """Return the device of this name, by default the best there is."""
    from unimoe.models.device import choose_device

    return choose_device(name)


def quiet_libraries() -> None:
    """Keep the progress bars and advice of tokenizers and transformers off the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
