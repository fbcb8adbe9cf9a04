"""A cluster as the driver uses it: the workers of each model, their units in the store, and the state of all work."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from unimoe.cluster.board import Board, Line
from unimoe.cluster.dispatch import Dispatcher, Pool, Seat, SetAsideError
from unimoe.cluster.schedule import Unit
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, is_error, unpacked
from unimoe.cluster.worker import PROBE, VERSIONS
from unimoe.core.console import stderr
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.results.provenance import package_versions

_AHEAD = 4
"""Parts for each worker that are made ahead where their texts travel with them."""

_OF_THE_DRIVER = ("shared", "items", "label")
"""Keys of a part that a worker does not get."""

_SILENCE = 60.0
"""Seconds after which a wait for the first worker is explained."""

_READERS = 16
"""Objects read from the store at a time."""

_SHARED = 4
"""Sets of texts in the cluster's memory."""


class SharingPool(Pool, Protocol):
    """A pool with memory that its workers read."""

    def share(self, value: Any) -> Any:
        """Put a value there and return its handle."""


@dataclass(frozen=True)
class Handle:
    """Texts in the cluster's memory.

    Attributes:
        content: their hash.
        reference: the pool's own.
    """

    content: str
    reference: Any


@dataclass(frozen=True)
class Assignment:
    """A model's work on one evaluation.

    Attributes:
        what: how the board calls it.
        scope: the folder of its units in the store.
        recipe: how workers make the model.
        identity: all that units depend on besides the part and the device.
    """

    what: str
    scope: str
    recipe: Mapping[str, Any]
    identity: Mapping[str, Any]


class Cluster:
    """The workers of one driver.

    Args:
        pool: the workers.
        store: where finished units are kept.
        allow_devices: whether workers of several kinds of device may work together.
    """

    def __init__(self, pool: SharingPool, store: UnitStore, *, allow_devices: bool = False) -> None:
        store.write(PROBE, PROBE, b"")
        self._pool, self.store, self._allow_devices = pool, store, allow_devices
        self._facts: Mapping[str, Any] = {}
        self._first = threading.Event()
        self.readers = ThreadPoolExecutor(_READERS)
        self._shared: OrderedDict[str, Handle] = OrderedDict()
        self._lock = threading.Lock()
        self._dispatcher = Dispatcher(pool, self._admit)
        self.board = Board(store, lambda: self._dispatcher.seats, lambda: self._dispatcher.running)

    @property
    def size(self) -> int:
        """Workers there are now."""
        return max(1, self._dispatcher.seats)

    def facts(self) -> Mapping[str, Any]:
        """Wait for the first worker, and return what it said of itself."""
        begun, patient = time.monotonic(), True
        while not self._first.wait(0.5):
            if self._dispatcher.failure:
                raise self._dispatcher.failure
            if patient and time.monotonic() - begun > _SILENCE:
                patient = False
                stderr.print(
                    "waiting for a worker: the cluster has no free GPU, or not --threads free CPUs", soft_wrap=True
                )
        return self._facts

    def kind(self) -> str | None:
        """Return the kind of device that all workers have; None where several kinds may work together."""
        kind: str | None = None if self._allow_devices else self.facts()["device"]
        return kind

    def workers(self, assignment: Assignment) -> ClusterWorkers:
        """Return the workers of a model, for one evaluation."""
        return ClusterWorkers(self, self._dispatcher, assignment, self.kind())

    def share(self, value: Any) -> Handle:
        """Put texts into the cluster's memory, once."""
        with self._lock:
            if (handle := self._shared.get(value.content)) is None:
                handle = self._shared[value.content] = Handle(value.content, self._pool.share(value))
            self._shared.move_to_end(value.content)
            while len(self._shared) > _SHARED:
                self._shared.popitem(last=False)
            return handle

    def close(self) -> None:
        """Let the workers go, and write the last state."""
        self._dispatcher.close()
        self.readers.shutdown(cancel_futures=True)
        self.board.close()

    def _admit(self, seat: Seat) -> bool:
        """Say whether a worker may be used: it must compute what the others compute.

        Raises:
            UsageError: it cannot; what is wrong with it is wrong with the cluster.
        """
        facts, own = seat.facts, package_versions()
        machine = facts["machine"]
        if not facts["sees_store"]:
            raise UsageError(
                f"{machine} does not see the store {self.store.shown}; give --store a URL or a folder that all "
                "machines share"
            )
        for name in VERSIONS:
            if facts["versions"][name] != own[name]:
                raise UsageError(
                    f"{machine} has {name} {facts['versions'][name]}, the driver {own[name]}; install the same "
                    "packages on every machine"
                )
        self._facts = self._facts or facts
        if facts["device"] != self._facts["device"] and not self._allow_devices:
            stderr.print(
                f"left idle: {machine}, {facts['device']}, because the others compute on {self._facts['device']} and "
                "scores differ in their last digits; --allow devices uses both",
                style="yellow",
                soft_wrap=True,
            )
            return False
        self._first.set()
        return True


class ClusterWorkers:
    """The workers of one model on a cluster, for one evaluation; see ``Workers``."""

    def __init__(self, cluster: Cluster, dispatcher: Dispatcher, assignment: Assignment, device: str | None) -> None:
        self._cluster, self._dispatcher, self._assignment = cluster, dispatcher, assignment
        self._system = hash_json(assignment.recipe)
        self._identity = [dict(assignment.identity), device, package_versions()["unimoe"]]
        self._finished: set[str] | None = None

    @property
    def size(self) -> int:
        """Workers there are now."""
        return self._cluster.size

    @property
    def line(self) -> Line:
        """The evaluation's line on the board."""
        return self._cluster.board.line(self._assignment.what)

    def share(self, value: Any) -> Handle:
        """Put texts into the cluster's memory, to give them to a part as ``shared``."""
        return self._cluster.share(value)

    def ask(self, job: str, part: Part) -> Any:
        """Let one worker do a job whose reply is not kept."""
        return unpacked(self._submit(job, part, None).result())

    def compute(self, job: str, parts: Iterable[Part], own: Compute) -> Iterator[Any]:
        """Yield what a job makes of each part, in order; what the store has is read.

        A part names what makes it by ``content`` where it has ``shared`` texts, and the number of its items by
        ``items``; messages call it by its ``label``. Where a part is set aside, the others are computed before
        the error is raised.
        """
        waiting: deque[tuple[Part, Future[bytes]]] = deque()
        aside: list[str] = []

        def next_one() -> Any:
            _part, reply = waiting.popleft()
            try:
                value = unpacked(reply.result())
            except SetAsideError as error:
                aside.append(str(error))
                self.line.failed.append(str(error))
                return None
            return value

        for part in parts:
            waiting.append((part, self._reply(job, part)))
            while not isinstance(parts, Sequence) and len(waiting) > _AHEAD * self.size:
                value = next_one()
                if not aside:
                    yield value
        while waiting:
            value = next_one()
            if not aside:
                yield value
        if aside:
            raise SetAsideError("; ".join(aside))

    def _reply(self, job: str, part: Part) -> Future[bytes]:
        """Return the reply of a part, from the store where it is finished."""
        if self._finished is None:
            self._finished = self._cluster.store.keys(self._assignment.scope)
        known = {name: value for name, value in part.items() if name not in _OF_THE_DRIVER}
        key, items = hash_json([self._identity, job, known]), part.get("items", 1)
        if key in self._finished:
            return self._cluster.readers.submit(self._read, job, part, key, items)
        return self._computed(job, part, key, items)

    def _read(self, job: str, part: Part, key: str, items: int) -> bytes:
        """Return a reply from the store, or compute it where the object is damaged."""
        body = self._cluster.store.read(self._assignment.scope, key)
        if body is None:
            return self._computed(job, part, key, items).result()
        self._cluster.board.count(self.line, items, found=True)
        return body

    def _computed(self, job: str, part: Part, key: str, items: int) -> Future[bytes]:
        line = self.line

        def count(reply: Future[bytes]) -> None:
            if not reply.exception() and not is_error(reply.result()):
                self._cluster.board.count(line, items)

        reply = self._submit(job, part, (self._assignment.scope, key))
        reply.add_done_callback(count)
        return reply

    def _submit(self, job: str, part: Part, unit: tuple[str, str] | None) -> Future[bytes]:
        handle: Handle | None = part.get("shared")
        order = {
            "recipe": self._assignment.recipe,
            "job": job,
            "part": {name: value for name, value in part.items() if name not in _OF_THE_DRIVER},
            "unit": unit,
            "shared": handle and handle.content,
        }
        asked = Unit(self._system, self._assignment.what, part.get("label", job), order, handle and handle.reference)
        self._dispatcher.submit(asked)
        return asked.reply
