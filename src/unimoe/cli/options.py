"""The options that several commands share, those of where work is computed among them, and what comes before work."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from unimoe.core import console
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.memory import keep_freed_memory

if TYPE_CHECKING:
    import torch

    from unimoe.cluster.processes import Processes
    from unimoe.config import DenseExperiment, Experiment
    from unimoe.evaluation.system import System

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
Shuffles = Annotated[
    int,
    typer.Option(
        min=0,
        max=9,
        help="Let models that read all candidates of a query together read them in so many random orders too, each as "
        "a run, so that intervals hold for other orders.",
    ),
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


def refuse_shuffles(shuffles: int, systems: Iterable[System], mteb: str | None = None) -> None:
    """Refuse random orders of candidates where no system reads them in an order, or where MTEB gives them."""
    if shuffles and mteb:
        raise UsageError("--shuffles is for collections, not for tasks of MTEB; leave it out, or name --dataset")
    names = {system.name: system.order for system in systems}
    if shuffles and all(order is None for order in names.values()):
        raise UsageError(
            f"--shuffles {shuffles}: {' and '.join(names)} score each pair alone, so that every order gives the same; "
            "leave it out"
        )


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
    """Return the device of this name, by default the best there is; with a GPU, all cores tokenise."""
    from unimoe.models.device import choose_device

    device = choose_device(name)
    if device.type != "cpu" and _TOKENIZERS_PARALLELISM is None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // beside)))
    return device


def quiet_libraries() -> None:
    """Set up this process, which is a command's own: no bars and warnings of libraries, and their memory small.

    Tokenizers take one core, since texts are tokenised while a model computes on the others; see ``chosen_device``.
    oneDNN keeps a megabyte of code for each shape of a product, of which a training step has about a hundred. Torch
    reads its level of logging when it is imported: its profiler would warn of memory that is older than a profile, and
    write a line at every start and end. Library calls set nothing of this.
    """
    keep_freed_memory()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


if TYPE_CHECKING:
    from unimoe.evaluation.engines import Engine

DEFAULT_STORE = "outputs/store"


@dataclass(frozen=True)
class EngineSettings:
    """The options of where work is computed, as typer reads them."""

    device: Device = None
    threads: Threads = None
    engine: Annotated[str, typer.Option(help="Where to compute: local, or ray for a Ray cluster.")] = "local"
    address: Annotated[
        str | None, typer.Option(help="Of the cluster: auto, or HOST:PORT; by default Ray runs on this machine alone.")
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers at most; by default as many as the cluster has room for.")
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            help=f"Where finished units of work are kept: a folder that all machines share, or s3://BUCKET/FOLDER; "
            f"{DEFAULT_STORE} by default."
        ),
    ] = None
    allow_devices: Annotated[
        bool, typer.Option("--allow-devices", help="Let workers of several kinds of device work together.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse an unknown name, and an option of the cluster without one."""
        known = ("local", "ray")
        if self.engine not in known:
            raise UsageError(f"--engine {self.engine}: unknown{did_you_mean(self.engine, known)}; use local or ray")
        if self.engine == "local":
            self.refuse_unused()

    @property
    def here(self) -> str | None:
        """The device of this process: workers have their own."""
        return self.device if self.engine == "local" else "cpu"

    def use_threads(self) -> None:
        """Compute in this process with the threads that were asked for, and with as many as workers on a cluster.

        The last bits of products, and so the identity of what is made of them, depend on that number.
        """
        from unimoe.models.device import use_threads

        use_threads(self.threads or (1 if self.engine == "ray" else None))

    def refuse_unused(self) -> None:
        """Refuse options of a cluster where there is none."""
        for option in ("address", "workers", "store", "allow_devices"):
            if getattr(self, option):
                raise UsageError(f"--{option.replace('_', '-')} belongs to --engine ray; give both, or neither")


def with_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has these options where the given one takes ``where``, their settings."""
    own = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(EngineSettings, eval_str=True).parameters

    @wraps(command)
    def with_options(**given: Any) -> None:
        where = EngineSettings(**{name: given.pop(name) for name in options if name in given})
        command(**given, where=where)

    parameters = [*(own[name] for name in own if name != "where"), *options.values()]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


@contextmanager
def opened_engine(settings: EngineSettings) -> Iterator[Engine]:
    """Start what the options mean, and let it go after the block."""
    from unimoe.evaluation.engines import Engine

    refuse_torchrun("an evaluation", "--engine ray uses several GPUs")
    if settings.engine == "local":
        yield Engine()
        return
    from unimoe.cluster.actors import RayActors
    from unimoe.cluster.cluster import Cluster
    from unimoe.cluster.units import UnitStore

    url = settings.store or DEFAULT_STORE
    store = UnitStore(url if "://" in url else str(Path(url).resolve()))
    actors = RayActors(settings.address, store.url, settings.device, settings.threads or 1, settings.workers)
    cluster = Cluster(actors, store, allow_devices=settings.allow_devices)
    try:
        yield Engine(cluster)
    finally:
        cluster.close()
