"""The options of where work is computed, and the engine that they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.options import Device, Threads, refuse_torchrun
from unimoe.core.errors import UsageError, did_you_mean

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
