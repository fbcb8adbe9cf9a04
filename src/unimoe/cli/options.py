"""The options that several commands share, and what commands do before they start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from unimoe.core import console
from unimoe.core.errors import UsageError

if TYPE_CHECKING:
    import torch

    from unimoe.cluster.processes import Processes
    from unimoe.config import DenseExperiment, Experiment

    E = TypeVar("E", Experiment, DenseExperiment)

DEFAULT_EXPERIMENT = Path("experiments/bundled")

Config = Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one.")]
Override = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the config: KEY=VALUE, or SECTION.KEY=VALUE.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps; by default the best there is.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads on a CPU; by default all, and 1 for a worker of a cluster.")
]
OutputDir = Annotated[Path | None, typer.Option(help="The experiment's folder; by default the config's output_dir.")]
MaxQueries = Annotated[
    int | None, typer.Option(min=1, help="Score at most this many queries of each dataset; results say so.")
]
Iterations = Annotated[int, typer.Option(min=1, help="Bootstrap resamples and permutations.")]
ResamplingSeed = Annotated[int, typer.Option("--resampling-seed", min=0, help="Seed of the resampling.")]
Depth = Annotated[int | None, typer.Option(help="Score only this many documents of each query, its first ones.")]
RelevanceLevel = Annotated[
    int | None,
    typer.Option(
        help="The lowest grade that counts as relevant in map, mrr, recall and other binary measures; TREC DL counts "
        "from 2. By default what QRELS.json or the collection's collection.json states, else 1."
    ),
]


_TOKENIZERS_PARALLELISM = os.environ.get("TOKENIZERS_PARALLELISM")
"""As the user set it, before ``quiet_libraries``."""


def comma_separated(text: str | None) -> list[str] | None:
    """Return the names in a text such as ``ridge,mlp1``; None where it names none."""
    return [name.strip() for name in (text or "").split(",") if name.strip()] or None


def given_options(config: Path | None, override: Sequence[str] | None, **options: object) -> list[str]:
    """Return the options that differ from their defaults, for the provenance of results."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    named = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
    return [*([f"--config {config}"] if config else []), *named, *(f"--set {text}" for text in override or [])]


def placed(experiment: E, output_dir: Path | None) -> E:
    """Return the experiment, in another output folder where one is given."""
    return experiment if output_dir is None else experiment.model_copy(update={"output_dir": str(output_dir)})


def refuse_torchrun(what: str, instead: str = "") -> None:
    """Refuse to run in a process that torchrun started.

    Raises:
        UsageError: it did.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        also = f"; {instead}" if instead else ""
        raise UsageError(f"{what} runs in one process; start it without torchrun{also}")


@contextmanager
def joined_quietly() -> Iterator[Processes]:
    """Join the processes that torchrun has started; all but the leader print errors alone.

    Raises:
        UsageError: some of them did not start.
    """
    from unimoe.cluster.processes import joined_processes

    with joined_processes() as processes:
        if not processes.leads:
            console.stdout.quiet = console.stderr.quiet = True  # another process prints all but errors
        yield processes


def chosen_device(name: str | None) -> torch.device:
    """Return the device of this name, by default the best there is; beside a GPU, all cores tokenise."""
    from unimoe.models.device import choose_device

    device = choose_device(name)
    if device.type != "cpu" and _TOKENIZERS_PARALLELISM is None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // beside)))
    return device


def quiet_libraries() -> None:
    """Keep the bars and warnings of tokenizers and transformers off the terminal, and their memory small.

    Tokenizers take one core, since texts are tokenised while a model computes on the others; see ``chosen_device``.
    oneDNN keeps a megabyte of code for each shape of a product, of which a training step has about a hundred. Torch
    reads its level of logging when it is imported: its profiler would warn of memory that is older than a profile.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
