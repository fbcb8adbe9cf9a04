"""Where evaluations compute: one after the other in this process, or many on a cluster."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from unimoe.cluster.cluster import Assignment, Cluster
from unimoe.cluster.work import ALONE, Workers
from unimoe.config import Batches
from unimoe.config.base import Dtype
from unimoe.core.errors import UsageError
from unimoe.data.mteb_names import random_state_kept
from unimoe.evaluation.reranking.cluster_model import ClusterModel
from unimoe.evaluation.spec import Evaluation
from unimoe.evaluation.systems.system import System
from unimoe.models.device import choose_dtype
from unimoe.results import safe_name


@dataclass(frozen=True)
class Purpose:
    """What a model is held for.

    Attributes:
        title: in words.
        place: names of the folders below which a store keeps its units.
        identity: of all that units depend on besides what they say themselves and the device; None where nothing tells
            the model from every other, so that no later run may find them.
    """

    title: str
    place: tuple[str, ...]
    identity: str | None

    @classmethod
    def of(cls, spec: Evaluation) -> Purpose:
        """Return that of an evaluation."""
        place = (spec.system, str(spec.seed), spec.task, spec.dataset)
        return cls(spec.title, place, spec.fingerprint if spec.reusable else None)


@dataclass(frozen=True)
class Held:
    """A system's model as this process sees it, and the workers that share its work."""

    model: Any
    workers: Workers


class LocalEngine:
    """This process; ``ClusterEngine`` has the same methods.

    Attributes:
        remote: whether workers elsewhere hold the models and keep finished units, so that evaluations run side by side.
    """

    remote = False

    def held(self, source: System, purpose: Purpose, batches: Batches) -> Held:
        """Return the model of a system, loaded.

        Raises:
            UnimoeError: it cannot be loaded.
        """
        return Held(source.model(), ALONE)

    def noted(self, spec: Evaluation, size: int | None) -> AbstractContextManager[None]:
        """Keep nothing of an evaluation that runs: the terminal shows it."""
        return nullcontext()

    def dtype(self, device: torch.device, setting: Dtype, *, trains: bool = False) -> torch.dtype:
        """Return the dtype in which this process computes."""
        return choose_dtype(device, setting, trains=trains)

    def refuse_server(self) -> None:
        """Refuse nothing: one process may ask a server."""

    def run(self, jobs: Iterable[Callable[[], None]], at_once: int) -> None:
        """Run jobs that submit work and wait for it, one after the other.

        Raises:
            Exception: of the first job that failed.
        """
        for job in jobs:
            job()


class ClusterEngine:
    """The workers of a cluster."""

    remote = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._run = cluster, uuid.uuid4().hex  # which names what no later run may find

    def held(self, source: System, purpose: Purpose, batches: Batches) -> Held:
        """Return a stand-in for the model, which a worker loads; one that asks a server asks from here."""
        if source.recipe is None:
            return Held(source.model(), ALONE)
        workers = self.cluster.workers(
            Assignment(
                what=purpose.title,
                scope="/".join(["units", *map(safe_name, purpose.place)]),
                recipe=source.recipe(self.cluster.store),
                identity={"scores": purpose.identity or self._run},
            )
        )
        return Held(ClusterModel(workers, workers.ask("facts", {"options": dict(batches)})), workers)

    def noted(self, spec: Evaluation, size: int | None) -> AbstractContextManager[None]:
        """Keep on the board in the store, for ``unimoe status``, that an evaluation of so many items runs."""
        return self.cluster.board.noted(spec.title, size)

    def dtype(self, device: torch.device, setting: Dtype, *, trains: bool = False) -> torch.dtype:
        """Return the setting, or what the first worker finds faster, for training too."""
        dtype: torch.dtype = getattr(torch, self.cluster.facts()["dtype"] if setting == "auto" else setting)
        return dtype

    def refuse_server(self) -> None:
        """Refuse to ask a server."""
        raise UsageError(
            "a model behind a server is asked by one process; leave --engine out, and raise served.requests_in_flight "
            "for more requests at a time"
        )

    def run(self, jobs: Iterable[Callable[[], None]], at_once: int) -> None:
        """Run some jobs at a time in threads; an error of one is raised after the others have ended."""
        with random_state_kept():  # now: while one thread imports transformers, another finds half of it
            importlib.import_module("unimoe.evaluation.mteb.tasks")
            _ = importlib.import_module("transformers").PreTrainedTokenizerBase
        running: set[Future[None]] = set()
        over: list[Future[None]] = []
        threads = ThreadPoolExecutor(at_once)
        try:
            for job in jobs:  # each loads its data when it is taken, so no more of them are than run
                running.add(threads.submit(job))
                if len(running) >= at_once:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    over += done
            wait(running)
            for ended in [*over, *running]:
                ended.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


Engine = LocalEngine | ClusterEngine
"""Where evaluations compute."""
