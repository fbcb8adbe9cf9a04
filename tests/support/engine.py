"""Workers without a cluster: each in a thread of this process, which a test may let die."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.cluster.actors import RayActors, WorkerLostError
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Worker

PATIENCE = 20.0
"""Seconds after which a test that waits for a unit fails."""


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

    return {"multiply": multiply}


def recipe(by: int = 2) -> dict[str, Any]:
    """The recipe of such a model."""
    return {"maker": f"{__name__}:jobs_of", "by": by}


class ThreadActors(RayActors):
    """Real workers, of which one computes at a time, as attention is not made for threads.

    Args:
        store: its URL.
        count: of workers.
        facts: of every worker, in place of what it says itself.

    Attributes:
        deadly: numbers of parts under which the process of their worker dies, before it computes them.
        losses: machines still to be lost, each with the next unit.
        computed: the number of each part that a worker began, in order.
        asked: times that a worker said its facts.
    """

    def __init__(self, store: str, count: int, **facts: Any) -> None:
        self._store, self._count, self._facts = store, count, facts
        self._one = ThreadPoolExecutor(1)
        self._places: dict[Worker, str] = {}
        self.deadly: set[int] = set()
        self.losses = self.asked = 0
        self.computed: list[Any] = []

    def change(self, count: int, **facts: Any) -> None:
        """Let workers join that have other facts."""
        self._count, self._facts = count, facts

    def nodes(self) -> set[str]:
        """The machines that are not lost."""
        return set(self._places.values())

    def room(self) -> int:
        """The number of workers."""
        return self._count

    def hire(self) -> Worker:
        """Make a worker."""
        return Worker(self._store, "cpu", torch.get_num_threads())

    def facts(self, actor: Worker) -> dict[str, Any]:
        """Return its facts: it is on a machine of its own, a new one after a loss."""
        return self._one.submit(self._said, actor).result()

    def compute(self, actor: Worker, order: Sequence[Any]) -> bytes | Exception:
        """Compute, or die."""
        return self._one.submit(self._computed, actor, order).result()

    def _said(self, actor: Worker) -> dict[str, Any]:
        self.asked += 1
        self._places.setdefault(actor, f"node {self.asked}")
        return {**actor.facts(), "node": self._places[actor], **self._facts}

    def _computed(self, actor: Worker, order: Sequence[Any]) -> bytes | Exception:
        number = order[2].get("number")
        self.computed.append(number)
        if self.losses and number is not None:
            self.losses -= 1
            del self._places[actor]
            raise WorkerLostError("its machine is gone")
        if number in self.deadly:
            raise WorkerLostError("it is gone")
        return actor.compute(*order)

    def close(self) -> None:
        """Begin no unit more."""
        self._one.shutdown(cancel_futures=True)
