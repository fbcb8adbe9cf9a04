"""Where evaluations compute: one after the other in this process, or many on a cluster."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from unimoe.cluster.cluster import Cluster
from unimoe.config.base import Dtype
from unimoe.core.errors import UsageError
from unimoe.data.mteb_names import random_state_kept
from unimoe.evaluation.reranking.cluster_model import ClusterModel
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.worker_jobs import with_files
from unimoe.models.device import choose_dtype
from unimoe.results import safe_name


class LocalEngine:
    """This process; ``ClusterEngine`` has the same methods.

    Attributes:
        remote: whether workers elsewhere hold the models and keep finished units, so that evaluations run side by side.
    """

    remote = False

    def model(self, system: System, what: str, identity: str | None) -> Any:
        """Return the model of a system for some work; a store keeps its units in a folder that ``what`` names.

        ``identity`` is the hash of all that units depend on besides what they say themselves and the device; None where
        nothing tells the model from every other, so that no later run may find them.
        """
        return system.model()

    def noted(self, what: str, size: int | None) -> AbstractContextManager[None]:
        """Keep nothing of work that runs: the terminal shows it."""
        return nullcontext()

    def dtype(self, device: torch.device, setting: Dtype, *, trains: bool = False) -> torch.dtype:
        """Return the dtype in which this process computes."""
        return choose_dtype(device, setting, trains=trains)

    def refuse_server(self) -> None:
        """Refuse nothing: one process may ask a server."""

    def run(self, jobs: Iterable[Callable[[], None]], at_once: int) -> None:
        """Run jobs that submit work and wait for it, one after the other; the first error ends them."""
        for job in jobs:
            job()


class ClusterEngine:
    """The workers of a cluster."""

    remote = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._run = cluster, uuid.uuid4().hex  # which names what no later run may find

    def model(self, system: System, what: str, identity: str | None) -> Any:
        """Return a stand-in for the model, which workers load; one that asks a server asks from here."""
        if system.recipe is None:
            return system.model()
        recipe = with_files(system.recipe, self.cluster.store)
        workers = self.cluster.workers(what, f"units/{safe_name(what)}", recipe, identity or self._run)
        return ClusterModel(workers, workers.ask("facts", {"options": dict(system.experiment.evaluation.batches)}))

    def noted(self, what: str, size: int | None) -> AbstractContextManager[None]:
        """Keep on the board in the store, for ``unimoe status``, that work on so many items runs."""
        return self.cluster.board.noted(what, size)

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
