"""The driver of a cluster: hands units to workers, reads those that the store has, and knows the state of all work."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from unimoe.cluster.actors import RayActors, WorkerLostError
from unimoe.cluster.board import Board
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import PROBE, VERSIONS, Part, Recipe, unpacked
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.io import hash_json
from unimoe.results.provenance import package_versions

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
        what: the work that it belongs to, as the board calls it; ``name`` is how messages call it beside that.
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


@dataclass(eq=False)
class _Hired:
    """A worker that may be used, on the machine ``node``, and the model that it holds."""

    actor: Any
    node: str
    model: str | None = None


class Cluster:
    """The workers of one driver, each of which gets one unit after the other.

    One thread does all that changes what is known here, as the inbox says; callers and Ray put things there.

    ``actors`` is where workers come from, and the ``store`` keeps finished units. ``board`` has what the driver has
    done, is doing and has left; ``readers`` are threads that read the store.
    """

    def __init__(self, actors: RayActors, store: UnitStore, *, allow_devices: bool = False) -> None:
        store.write(PROBE, PROBE, b"")
        self._actors, self.store, self._allow_devices = actors, store, allow_devices
        self._first: Future[Mapping[str, Any]] = Future()
        self._hired, self._at_work = 0, 0
        self._free: list[_Hired] = []
        self._waiting, self._running = list[Unit](), set[Unit]()
        self._failure: UnimoeError | None = None
        self._open, self._lock = set[Unit](), threading.Lock()  # units whose reply somebody waits for
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.readers = ThreadPoolExecutor(_READERS)
        self.board = Board(store, lambda: self._at_work, lambda: Counter(unit.what for unit in list(self._running)))
        self._thread = threading.Thread(target=self._lead, name="cluster", daemon=True)
        self._thread.start()

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

    def workers(self, what: str, scope: str, recipe: Recipe, identity: str = "") -> ClusterWorkers:
        """Return the workers of a model for some work, which the board calls ``what``; ``scope`` has its units.

        ``identity`` is the hash of all that units depend on besides the part and the device.
        """
        return ClusterWorkers(self, what, scope, recipe, identity)

    def submit(self, unit: Unit) -> Future[bytes]:
        """Let a unit be computed, and return its reply."""
        with self._lock:
            if self._failure:
                raise self._failure
            self._open.add(unit)
        self._inbox.put(partial(self._waiting.append, unit))
        return unit.reply

    def close(self) -> None:
        """Let the workers go, and write the last state; whoever waits for a unit gets an error."""
        self._end(DataError("the engine was closed"))
        self._inbox.put(self._assign)  # wakes the thread
        self._thread.join()
        self._actors.close()
        self.readers.shutdown(cancel_futures=True)
        self.board.close()

    def _lead(self) -> None:
        """Do what the inbox says; an error ends the run, as whoever waits for a unit must hear of it."""
        looked = -_LOOK
        try:
            while not self._failure:
                if time.monotonic() - looked > _LOOK:
                    looked = time.monotonic()
                    for _ in range(self._actors.room() - self._hired):  # machines may have joined
                        self._hired += 1
                        self._greet(self._actors.hire())
                with suppress(Empty):
                    self._inbox.get(timeout=_LOOK)()
                self._assign()
        except Exception as error:
            self._end(error if isinstance(error, UnimoeError) else DataError(f"{type(error).__name__}: {error}"))

    def _end(self, error: UnimoeError) -> None:
        with self._lock:
            self._failure = self._failure or error
            left, self._open = self._open, set()
            if not self._first.done():
                self._first.set_exception(self._failure)
        for unit in left:
            unit.reply.set_exception(self._failure)

    def _greet(self, actor: Any) -> None:
        """Ask an actor who it is; where it died, Ray starts it again, on this machine or another."""
        self._on_reply(self._actors.facts(actor), partial(self._greeted, actor))

    def _greeted(self, actor: Any, call: Future[Any]) -> None:
        try:
            facts = self._actors.result(call)
        except WorkerLostError:  # for good, as Ray would have started it again: the next look hires another
            self._hired -= 1
            return
        if self._admit(facts):  # else Ray ends the actor, which nobody holds any more
            self._at_work += 1
            self._free.append(_Hired(actor, facts["node"]))

    def _assign(self) -> None:
        """Give waiting units to free workers: first those of the model that a worker holds.

        A worker that has to load one takes the model with the most units for each worker.
        """
        while self._free and self._waiting and not self._failure:
            held = {worker.model: worker for worker in reversed(self._free)}
            unit = next((unit for unit in self._waiting if unit.model in held), None)
            if unit is None:
                left, busy = (Counter(unit.model for unit in units) for units in (self._waiting, self._running))
                unit = max(self._waiting, key=lambda unit: left[unit.model] / (1 + busy[unit.model]))
            worker = held.get(unit.model, self._free[0])
            self._free.remove(worker)
            self._waiting.remove(unit)
            self._running.add(unit)
            worker.model = unit.model
            self._on_reply(self._actors.compute(worker.actor, unit.order), partial(self._computed, worker, unit))

    def _computed(self, worker: _Hired, unit: Unit, call: Future[Any]) -> None:
        """Hand a reply to whoever waits for it; a unit whose worker was lost goes to the next free one.

        Machines may be lost under a unit any number of times, but not processes. A lost machine still counts as alive
        when its worker's loss is heard of, but no longer when the next one's is.
        """
        self._running.remove(unit)
        try:
            reply: bytes | Exception = self._actors.result(call)
            self._free.append(worker)
        except WorkerLostError as lost:
            self._at_work -= 1
            self._greet(worker.actor)
            unit.lost_on.append(worker.node)
            alive = self._actors.nodes()
            if sum(node in alive for node in unit.lost_on) < _DEATHS:
                self._waiting.insert(0, unit)
                return
            reply = SetAsideError(
                f"{unit.what}, {unit.name}: set aside, {_DEATHS} worker processes died under it ({lost}); give "
                "workers more memory, or make the batches smaller with evaluation.token_budget"
            )
        with self._lock:
            if unit not in self._open:  # the run has ended, and with it the unit
                return
            self._open.remove(unit)
        if isinstance(reply, Exception):
            unit.reply.set_exception(reply)
        else:
            unit.reply.set_result(reply)

    def _on_reply(self, call: Future[Any], act: Callable[[Future[Any]], None]) -> None:
        call.add_done_callback(lambda done: self._inbox.put(partial(act, done)))

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
        with self._lock:  # another thread may end the cluster
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
    """The workers of one model on a cluster, for some work; see ``Cluster.workers``."""

    def __init__(self, cluster: Cluster, what: str, scope: str, recipe: Recipe, identity: str) -> None:
        self._cluster, self._what, self._scope, self._recipe = cluster, what, scope, recipe
        self._model = hash_json(recipe)
        self._identity = [identity, cluster.kind(), package_versions()["unimoe"]]
        self._finished: set[str] | None = None

    @property
    def size(self) -> int:
        """Workers there are now."""
        return self._cluster.size

    def ask(self, job: str, part: Part) -> Any:
        """Let one worker do a job whose reply is not kept."""
        return unpacked(self._submit(job, part, None).result())

    def compute(self, job: str, parts: Iterable[Part]) -> Iterator[Any]:
        """Yield what a job makes of each part, in order; what the store has is read.

        A part may give the number of its items as ``items``, and what messages call it as ``label``. Where a part is
        set aside, the others are computed before the error is raised.
        """
        store, board, scope = self._cluster.store, self._cluster.board, self._scope
        line, aside = board.line(self._what), list[str]()
        waiting = deque[tuple[Part, str, bool, Future[bytes]]]()
        if self._finished is None:
            self._finished = store.keys(scope)

        def first() -> Iterator[Any]:
            part, key, found, reply = waiting.popleft()
            try:
                body = reply.result()
            except SetAsideError as error:
                aside.append(str(error))
                line.failed.append(str(error))
                return
            try:
                value = unpacked(body)
            except (ValueError, KeyError) as error:
                raise DataError(f"{store.shown}/{scope}/{key} is damaged: delete it, and run again") from error
            board.count(line, part.get("items", 1), found=found)
            if not aside:
                yield value

        for part in parts:
            key = hash_json([self._identity, job, _sent(part)])
            found = key in self._finished
            reply = self._cluster.readers.submit(store.content, scope, key) if found else self._submit(job, part, key)
            waiting.append((part, key, found, reply))
            if len(waiting) > _AHEAD * self.size:
                yield from first()
        while waiting:
            yield from first()
        if aside:
            raise SetAsideError("; ".join(aside))

    def _submit(self, job: str, part: Part, key: str | None) -> Future[bytes]:
        order = (self._recipe, job, _sent(part), (self._scope, key) if key else None)
        return self._cluster.submit(Unit(self._model, self._what, part.get("label", job), order))


def _sent(part: Part) -> Part:
    return {name: value for name, value in part.items() if name not in _OF_THE_DRIVER}
