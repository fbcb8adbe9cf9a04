"""The driver of a cluster: hands units to workers, reads those that the store has, and knows the state of all work."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from unimoe.cluster.actors import RayActors, WorkerLostError
from unimoe.cluster.board import Board
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import PROBE, VERSIONS, Part, Recipe, unpacked
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.io import hash_json
from unimoe.results import package_versions

T = TypeVar("T")

_DEATHS = 3  # of a worker's process under one unit, after which the unit is set aside
_AHEAD = 4  # parts for each worker that an evaluation makes ahead: their texts travel with them
_LOOK = 1.0  # seconds between two looks for room for workers
_SILENCE = 60.0  # seconds after which a wait for the first worker is explained
_READERS = 16  # objects read from the store at a time
_OF_THE_DRIVER = ("items", "label")  # keys of a part that a worker does not get


class SetAsideError(DataError):
    """A unit killed its worker each time."""


@dataclass(eq=False)
class Unit:
    """A part on its way through the workers.

    Attributes:
        model: hash of the recipe of the model that computes it.
        what: the work that it belongs to, as the board calls it; messages call it ``name`` too.
        order: the arguments of ``Worker.compute``.
        reply: becomes the bytes that a worker returned.
        lost_on: machines on which a worker was lost under it.
    """

    model: str
    what: str
    name: str
    order: Sequence[Any]
    reply: Future[bytes] = field(default_factory=Future)
    lost_on: list[str] = field(default_factory=list)


class Cluster:
    """The workers of one driver, each led by a thread that gives it one unit after the other.

    ``_changed`` guards what the threads share, and wakes those with a worker that waits for a unit.

    ``actors`` is where workers come from, and the ``store`` keeps finished units. ``board`` has what the driver has
    done, is doing and has left; ``readers`` are threads that read the store.
    """

    def __init__(self, actors: RayActors, store: UnitStore, *, allow_devices: bool = False) -> None:
        store.write(PROBE, PROBE, b"")
        self._actors, self.store, self._allow_devices = actors, store, allow_devices
        self._first: Future[Mapping[str, Any]] = Future()
        self._hired, self._at_work = 0, 0
        self._free: list[str | None] = []  # the model that each worker without a unit holds
        self._waiting, self._running = list[Unit](), set[Unit]()
        self._failure: UnimoeError | None = None
        self._changed = threading.Condition()
        self.readers = ThreadPoolExecutor(_READERS)
        self.board = Board(store, lambda: self._at_work, lambda: Counter(unit.what for unit in list(self._running)))
        self._hiring = self._start(self._hire)

    @property
    def size(self) -> int:
        """Workers there are now, one at least."""
        return max(1, self._at_work)

    def facts(self) -> Mapping[str, Any]:
        """Wait for the first worker, and return what it said of itself."""
        with suppress(TimeoutError):
            return self._first.result(_SILENCE)
        stderr.print("waiting for a worker: the cluster has no free GPU, or not --threads free CPUs", soft_wrap=True)
        return self._first.result()

    def kind(self) -> str | None:
        """Return the kind of device that all workers have; None where several kinds may work together."""
        kind: str | None = None if self._allow_devices else self.facts()["device"]
        return kind

    def submit(self, unit: Unit) -> Future[bytes]:
        """Let a unit be computed, and return its reply."""
        with self._changed:
            if self._failure:
                raise self._failure
            self._waiting.append(unit)
            self._changed.notify_all()
        return unit.reply

    def close(self) -> None:
        """Let the workers go, and write the last state; whoever waits for a unit gets an error."""
        self._end(DataError("the engine was closed"))
        self._hiring.join()
        self._actors.close()
        self.readers.shutdown(cancel_futures=True)
        self.board.close()

    def _start(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        """Work in a thread; an error ends the run, as whoever waits for a unit must hear of it."""

        def run() -> None:
            try:
                work(*given)
            except Exception as error:
                said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                self._end(error if isinstance(error, UnimoeError) else DataError(said))

        thread = threading.Thread(target=run, name="cluster", daemon=True)
        thread.start()
        return thread

    def _end(self, error: UnimoeError) -> None:
        with self._changed:
            self._failure = self._failure or error
            pending: list[Future[Any]] = [self._first, *(unit.reply for unit in (*self._waiting, *self._running))]
            for future in pending:
                if not future.done():
                    future.set_exception(self._failure)
            self._changed.notify_all()

    def _hire(self) -> None:
        """Hire a worker wherever there is room, until the run ends: machines may join."""
        while not self._failure:
            with self._changed:
                for _ in range(self._actors.room() - self._hired):
                    self._hired += 1
                    self._start(self._lead, self._actors.hire())
                self._changed.wait_for(lambda: self._failure, _LOOK)

    def _lead(self, actor: Any) -> None:
        """Ask a worker who it is, and give it one unit after the other; where it died, Ray starts it again."""
        try:
            facts = self._actors.facts(actor)
        except WorkerLostError:  # for good, as Ray would have started it again: the next look hires another
            with self._changed:
                self._hired -= 1
            return
        if not self._admit(facts):  # Ray ends the actor, which nobody holds any more
            return
        with self._changed:
            self._at_work += 1
        unit = self._next(None)
        while unit:
            try:
                self._replied(unit, self._actors.compute(actor, unit.order))
            except WorkerLostError as lost:
                self._lost(unit, facts["node"], lost)
                self._start(self._lead, actor)
                return
            unit = self._next(unit.model)

    def _next(self, model: str | None) -> Unit | None:
        """Wait for a unit for a worker that holds a model; None once the run ends.

        A unit goes to a free worker that holds its model. A worker that has to load one takes the model with the most
        units for each worker.
        """
        with self._changed:
            self._free.append(model)
            while not self._failure:
                fit = [unit for unit in self._waiting if unit.model == model]
                if fit := fit or [unit for unit in self._waiting if unit.model not in self._free]:
                    left, busy = (Counter(unit.model for unit in units) for units in (self._waiting, self._running))
                    unit = max(fit, key=lambda unit: left[unit.model] / (1 + busy[unit.model]))
                    self._free.remove(model)
                    self._waiting.remove(unit)
                    self._running.add(unit)
                    self._changed.notify_all()  # others need no longer leave this model to this worker
                    return unit
                self._changed.wait()
        return None

    def _replied(self, unit: Unit, reply: bytes | Exception) -> None:
        """Hand a reply to whoever waits for it, if the run did not end."""
        with self._changed:
            self._running.remove(unit)
            if isinstance(reply, bytes) and not unit.reply.done():
                unit.reply.set_result(reply)
            elif isinstance(reply, Exception) and not unit.reply.done():
                unit.reply.set_exception(reply)

    def _lost(self, unit: Unit, node: str, lost: WorkerLostError) -> None:
        """Let the next free worker compute a unit of a lost worker.

        Machines may be lost under a unit any number of times, but not processes. A lost machine still counts as alive
        when its worker's loss is heard of, but no longer when the next one's is.
        """
        with self._changed:
            self._at_work -= 1
            unit.lost_on.append(node)
            alive = self._actors.nodes()
            if sum(node in alive for node in unit.lost_on) < _DEATHS:
                self._running.remove(unit)
                self._waiting.insert(0, unit)
                self._changed.notify_all()
                return
        reply = SetAsideError(
            f"{unit.what}, {unit.name}: set aside, {_DEATHS} worker processes died under it ({lost}); give "
            "workers more memory, or make the batches smaller with evaluation.token_budget"
        )
        self._replied(unit, reply)

    def _admit(self, facts: Mapping[str, Any]) -> bool:
        """Say whether a worker may be used: it must compute what the others compute."""
        own, machine = package_versions(), facts["machine"]
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
        with self._changed:  # another thread may end the cluster
            if not self._first.done():
                self._first.set_result(facts)
        first = self._first.result()["device"]
        if facts["device"] == first or self._allow_devices:
            return True
        stderr.print(
            f"left idle: {machine}, {facts['device']}, because the others compute on {first} and scores differ in "
            "their last digits; --allow-devices uses both",
            style="yellow",
            soft_wrap=True,
        )
        return False


class ClusterWorkers:
    """The workers of one model on a cluster, for some work, which the board calls ``what``; ``scope`` has its units.

    ``identity`` is the hash of all that units depend on besides the part and the device.
    """

    def __init__(self, cluster: Cluster, what: str, scope: str, recipe: Recipe, identity: str = "") -> None:
        self._cluster, self._what, self._scope, self._recipe = cluster, what, scope, recipe
        self._model = hash_json(recipe)
        self._identity = [identity, cluster.kind(), package_versions()["unimoe"]]
        self._finished: set[str] | None = None

    @property
    def size(self) -> int:
        """Workers there are now."""
        return self._cluster.size

    def ask(self, job: str, part: Part) -> Any:
        """Let one worker do a job without keeping the reply."""
        return unpacked(self._submit(job, part, None).result())

    def compute(
        self, job: str, parts: Iterable[Part], read: Callable[[Any, Part], T] = lambda reply, _: reply
    ) -> Iterator[T]:
        """Yield what a job makes of each part, in order, as ``read`` takes it; what the store has is read.

        A store is a shared place: ``read`` raises a ``ValueError`` about what is no reply to a part.
        A part may give the number of its items as ``items``, and what messages call it as ``label``. Where a part is
        set aside, the others are computed before the error is raised.
        """
        line, aside = self._cluster.board.line(self._what), list[str]()
        for part, key, found, reply in self._begun(job, parts):
            try:
                body = reply.result()
            except SetAsideError as error:
                aside.append(str(error))
                line.failed.append(str(error))
                continue
            value = self._cluster.store.checked(self._scope, key, partial(_read, read, body, part))
            self._cluster.board.count(line, part.get("items", 1), found=found)
            if not aside:
                yield value
        if aside:
            raise SetAsideError("; ".join(aside))

    def _begun(self, job: str, parts: Iterable[Part]) -> Iterator[tuple[Part, str, bool, Future[bytes]]]:
        """Yield each part with its key, whether the store has it, and the reply; some are begun ahead."""
        store, waiting = self._cluster.store, deque[tuple[Part, str, bool, Future[bytes]]]()
        if self._finished is None:
            self._finished = store.keys(self._scope)
        for part in parts:
            key = hash_json([self._identity, job, _sent(part)])
            if found := key in self._finished:
                reply = self._cluster.readers.submit(store.content, self._scope, key)
            else:
                reply = self._submit(job, part, key)
            waiting.append((part, key, found, reply))
            if len(waiting) > _AHEAD * self.size:
                yield waiting.popleft()
        yield from waiting

    def _submit(self, job: str, part: Part, key: str | None) -> Future[bytes]:
        order = (self._recipe, job, _sent(part), (self._scope, key) if key else None)
        return self._cluster.submit(Unit(self._model, self._what, part.get("label", job), order))


def _read(read: Callable[[Any, Part], T], body: bytes, part: Part) -> T:
    return read(unpacked(body), part)


def _sent(part: Part) -> Part:
    return {name: value for name, value in part.items() if name not in _OF_THE_DRIVER}
