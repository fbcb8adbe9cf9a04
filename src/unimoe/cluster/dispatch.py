"""Hands units to workers, and gives those of lost workers to others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from unimoe.cluster.schedule import CRASHES, Schedule, Unit
from unimoe.core.errors import DataError, UnimoeError

_PAUSE = 0.2
"""Seconds after which a dispatcher looks for new workers and units, if nothing happens before."""


@dataclass(eq=False)
class Seat:
    """A worker as the dispatcher sees it.

    Attributes:
        handle: the pool's own.
        facts: what it said of itself.
        system: whose model it holds.
    """

    handle: Any
    facts: Mapping[str, Any]
    system: str | None = None


@dataclass(frozen=True)
class Arrived:
    """A worker is ready."""

    seat: Seat


@dataclass(frozen=True)
class Replied:
    """A worker computed a unit."""

    seat: Seat
    unit: Unit
    reply: bytes


@dataclass(frozen=True)
class Lost:
    """A worker is no more.

    Attributes:
        seat: the worker.
        unit: what it was computing.
        crashed: whether its process died, and not its machine.
        reason: in words.
    """

    seat: Seat
    unit: Unit
    crashed: bool
    reason: str


Event = Arrived | Replied | Lost


class Pool(Protocol):
    """Workers that come and go."""

    def start(self, seat: Seat, unit: Unit) -> None:
        """Let a worker compute a unit."""

    def wait(self, seconds: float) -> list[Event]:
        """Return what happened, as soon as something did or the time is over.

        Raises:
            UnimoeError: no worker can be used.
        """

    def close(self) -> None:
        """Let all workers go."""


class SetAsideError(DataError):
    """A unit killed its worker each time."""


class Dispatcher:
    """Keeps every worker of a pool at work, in a thread of its own.

    A unit whose machine is lost is tried again without limit; one under which the worker's process died three times is
    set aside. An error that the work itself raises is a reply, and never tried again.

    Args:
        pool: the workers.
        admit: says whether an arrived worker may be used; raises a ``UnimoeError`` where the run must end.

    Attributes:
        failure: why no unit is computed any more; None while they are.
        seats: workers there are.
    """

    def __init__(self, pool: Pool, admit: Callable[[Seat], bool] = lambda seat: True) -> None:
        self._pool, self._admit = pool, admit
        self._schedule, self._lock = Schedule(), threading.Lock()
        self._idle: list[Seat] = []
        self._busy: Counter[str] = Counter()
        self._computed: set[Unit] = set()
        self._news, self._closing = threading.Event(), False
        self.failure: UnimoeError | None = None
        self.seats = 0
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._thread.start()

    @property
    def running(self) -> Counter[str]:
        """Units that workers compute now, by the evaluation that they are of."""
        with self._lock:
            return Counter(unit.what for unit in self._computed)

    def submit(self, unit: Unit) -> None:
        """Let a unit be computed; its ``reply`` is set once it is, or is set aside."""
        with self._lock:
            if self.failure:
                unit.reply.set_exception(self.failure)
                return
            self._schedule.add(unit)
        self._news.set()

    def close(self) -> None:
        """Let the workers go; units that wait are cancelled."""
        self._closing = True
        self._news.set()
        self._thread.join()
        self._pool.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._assign()
                if not self._busy.total():
                    self._news.wait(_PAUSE)
                self._news.clear()
                for event in self._pool.wait(_PAUSE if self._busy.total() else 0):
                    self._take(event)
        except Exception as error:  # whoever waits for a unit must hear of it
            self._fail(error if isinstance(error, UnimoeError) else DataError(f"{type(error).__name__}: {error}"))
        else:
            self._fail(DataError("the engine was closed"))

    def _assign(self) -> None:
        """Give waiting units to idle workers: first to those that hold their model, last to those that hold another."""
        with self._lock:
            ready = [seat for seat in self._idle if seat.system in self._schedule]
            others = sorted(
                (seat for seat in self._idle if seat not in ready), key=lambda seat: seat.system is not None
            )
            self._idle = []
            for seat in [*ready, *others]:
                while (unit := self._schedule.take(seat.system, self._busy)) and not unit.wanted():
                    pass
                if unit is None:
                    self._idle.append(seat)
                    continue
                seat.system = unit.system
                self._busy[unit.system] += 1
                self._computed.add(unit)
                self._pool.start(seat, unit)

    def _take(self, event: Event) -> None:
        if isinstance(event, Arrived):
            if self._admit(event.seat):
                self.seats += 1
                self._idle.append(event.seat)
            return
        with self._lock:
            self._busy[event.unit.system] -= 1
            self._computed.discard(event.unit)
        if isinstance(event, Replied):
            self._idle.append(event.seat)
            event.unit.reply.set_result(event.reply)
            return
        self.seats -= 1
        event.unit.crashes += event.crashed
        if event.unit.crashes < CRASHES:
            with self._lock:
                self._schedule.add(event.unit, first=True)
            return
        event.unit.reply.set_exception(
            SetAsideError(
                f"{event.unit.what}, {event.unit.name}: set aside, {CRASHES} worker processes died under it "
                f"({event.reason}); give workers more memory, or make the batches smaller with evaluation.token_budget"
            )
        )

    def _fail(self, error: UnimoeError) -> None:
        with self._lock:
            self.failure = error
            left = [*self._schedule.drain(), *self._computed]
        for unit in left:
            if unit.wanted():
                unit.reply.set_exception(error)
