"""Workers without a cluster: a pool that a test drives by hand, and one of threads that hold real workers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.cluster.dispatch import Arrived, Event, Lost, Replied, Seat
from unimoe.cluster.schedule import Unit
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part
from unimoe.cluster.worker import Worker

PATIENCE = 20.0
"""Seconds after which a test that waits for a unit fails."""


def unit(name: str = "part", system: str = "one", what: str = "work") -> Unit:
    """A unit that says nothing of its work."""
    return Unit(system, what, name, {})


class HandPool:
    """Workers that do what a test says, one thing after the other."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event | Exception] = queue.Queue()
        self._started: queue.Queue[tuple[Seat, Unit]] = queue.Queue()
        self.closed = False

    def start(self, seat: Seat, unit: Unit) -> None:
        """Keep what the dispatcher asks for."""
        self._started.put((seat, unit))

    def wait(self, seconds: float) -> list[Event]:
        """Return what the test lets happen."""
        try:
            event = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return []
        if isinstance(event, Exception):
            raise event
        return [event]

    def close(self) -> None:
        """Remember it."""
        self.closed = True

    def arrive(self, *names: str, **facts: Any) -> None:
        """Let workers arrive."""
        for name in names:
            self._events.put(Arrived(Seat(name, facts)))

    def started(self) -> tuple[Seat, Unit]:
        """Wait for the next unit that a worker was given."""
        return self._started.get(timeout=PATIENCE)

    def nothing_started(self) -> bool:
        """Whether no worker has been given a unit that the test did not see."""
        return self._started.empty()

    def reply(self, seat: Seat, unit: Unit, content: bytes = b"done") -> None:
        """Let a worker reply."""
        self._events.put(Replied(seat, unit, content))

    def lose(self, seat: Seat, unit: Unit, *, crashed: bool = False) -> None:
        """Let a worker's machine be lost, or its process die."""
        self._events.put(Lost(seat, unit, crashed, "it is gone"))

    def fail(self, error: Exception) -> None:
        """Let the pool itself fail."""
        self._events.put(error)


@dataclass
class Calls:
    """Counts what workers do, across threads."""

    made: int = 0
    numbers: int = 0


calls = Calls()


def jobs_of(recipe: Mapping[str, Any], device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """The jobs of a model that multiplies by ``recipe["by"]``: numbers below zero are refused."""
    calls.made += 1

    def multiply(part: Part) -> NDArray[Any]:
        calls.numbers += 1
        if part["number"] < 0:
            raise ValueError(f"{part['number']} is below zero")
        return np.array([part["number"] * recipe["by"]], dtype=np.float32)

    def look_up(part: Part) -> list[str]:
        calls.numbers += 1
        return [part["shared"].queries[key] for key in part["keys"]]

    return {"multiply": multiply, "look up": look_up}


def recipe(by: int = 2) -> dict[str, Any]:
    """The recipe of such a model."""
    return {"maker": f"{__name__}:jobs_of", "by": by}


class ThreadPool:
    """Real workers, each in a thread of this process; one computes at a time, as attention is not made for threads."""

    def __init__(self, store: str, count: int) -> None:
        self._news: queue.Queue[Event] = queue.Queue()
        self._turn = threading.Lock()
        self.tokens: dict[str, Any] = {}
        self.used = 0  # units whose token ids were made for another
        self._coming = [Worker(store, "cpu", torch.get_num_threads()) for _ in range(count)]

    def start(self, seat: Seat, unit: Unit) -> None:
        """Compute in a thread of its own."""
        fetch: Callable[[], Any] | None = None if unit.shared is None else lambda: unit.shared

        def compute() -> None:
            tokens = unit.order["part"].get("tokens")
            with self._turn:
                known = self.tokens.get(tokens)
                reply, made = seat.handle.compute(unit.order, fetch, None if known is None else lambda: known)
            if made is not None:
                self.tokens[tokens] = made
            self.used += known is not None
            self._news.put(Replied(seat, unit, reply))

        threading.Thread(target=compute, daemon=True).start()

    def share(self, value: Any) -> Any:
        """Return the value: threads see it as it is."""
        return value

    def wait(self, seconds: float) -> list[Event]:
        """Return what happened."""
        while self._coming:
            worker = self._coming.pop()
            self._news.put(Arrived(Seat(worker, worker.facts())))
        try:
            return [self._news.get(timeout=seconds) if seconds else self._news.get_nowait()]
        except queue.Empty:
            return []

    def close(self) -> None:
        """Do nothing: threads end with their units."""
