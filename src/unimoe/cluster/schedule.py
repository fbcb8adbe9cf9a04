"""Which worker computes which unit: units wait by system, so that a worker seldom loads another model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

CRASHES = 3
"""Deaths of a worker's process under one unit after which the unit is set aside."""


@dataclass(eq=False)
class Unit:
    """A part of an evaluation, on its way through the workers.

    Attributes:
        system: hash of the recipe of the model that computes it.
        what: task, dataset, arm and seed of the evaluation.
        name: how messages call it beside these.
        order: what a worker is given: recipe, job and part as JSON values, and where the unit is kept.
        shared: handle of the texts it reads; None without them.
        reply: becomes the bytes that a worker returned.
        crashes: worker processes that died under it.
    """

    system: str
    what: str
    name: str
    order: Mapping[str, Any]
    shared: Any = None
    reply: Future[bytes] = field(default_factory=Future)
    crashes: int = 0

    def wanted(self) -> bool:
        """Return whether somebody waits for it; from then on nobody can cancel it."""
        return self.reply.running() or self.reply.set_running_or_notify_cancel()


class Schedule:
    """The units that wait."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Unit]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __contains__(self, system: object) -> bool:
        return system in self._waiting

    def add(self, unit: Unit, *, first: bool = False) -> None:
        """Add a unit behind the others of its system, or before them."""
        queue = self._waiting.setdefault(unit.system, deque())
        (queue.appendleft if first else queue.append)(unit)

    def take(self, loaded: str | None, busy: Counter[str]) -> Unit | None:
        """Return the next unit for a worker, None where none waits.

        Units of the model that it holds come first, then those of the system with the most units for each worker.

        Args:
            loaded: the system whose model the worker holds.
            busy: workers by the system they compute for.
        """
        if loaded not in self._waiting:
            if not self._waiting:
                return None
            loaded = max(self._waiting, key=lambda system: len(self._waiting[system]) / (1 + busy[system]))
        queue = self._waiting[loaded]
        unit = queue.popleft()
        if not queue:
            del self._waiting[loaded]
        return unit

    def drain(self) -> list[Unit]:
        """Return all units, and forget them."""
        units = [unit for queue in self._waiting.values() for unit in queue]
        self._waiting.clear()
        return units
