"""What a run on a cluster has done, is doing and has left: kept in the store, for ``unimoe status``."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from unimoe.engine.units import UnitStore
from unimoe.errors import UnimoeError

SCOPE = "drivers"
"""Of the boards in a store; there is one for each driver."""

_EVERY = 5.0
"""Seconds between two writes."""


@dataclass
class Line:
    """The state of one evaluation or training.

    Attributes:
        what: task, dataset, arm and seed.
        items: pairs, texts or steps in all; None where that is not known.
        done: items done.
        units: units done, and how many of them were in the store before.
        found: of these.
        running: units that workers compute now, or that wait.
        failed: reasons of what failed.
        state: ``running``, ``done`` or ``failed``.
    """

    what: str
    items: int | None = None
    done: int = 0
    units: int = 0
    found: int = 0
    running: int = 0
    failed: list[str] = field(default_factory=list)
    state: str = "running"
    begun: float = field(default_factory=time.time)


class Board:
    """The lines of one driver; writes them every few seconds.

    Args:
        store: where.
        workers: returns the number of workers.
    """

    def __init__(self, store: UnitStore, workers: Callable[[], int]) -> None:
        self._store, self._workers = store, workers
        self.name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}.json"
        self._started, self._lines = time.time(), dict[str, Line]()
        self.lock, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()

    def line(self, what: str, items: int | None = None) -> Line:
        """Return the line of an evaluation, a new one where there is none."""
        with self.lock:
            line = self._lines.setdefault(what, Line(what))
        line.items = line.items if items is None else items
        return line

    @contextmanager
    def noted(self, what: str, items: int | None) -> Iterator[None]:
        """Keep how an evaluation of so many items ends."""
        line = self.line(what, items)
        try:
            yield
        except Exception as error:
            line.state = "failed"
            if str(error) not in line.failed:
                line.failed.append(str(error))
            raise
        line.state = "done"

    def close(self) -> None:
        """Write the last state."""
        self._closing.set()
        self._thread.join()
        self._write(ended=True)

    def _run(self) -> None:
        while not self._closing.wait(_EVERY):
            self._write()

    def _write(self, *, ended: bool = False) -> None:
        with self.lock:
            lines = [asdict(line) for line in self._lines.values()]
        content: dict[str, Any] = {
            "started": self._started,
            "updated": time.time(),
            "ended": ended,
            "workers": self._workers(),
            "lines": lines,
        }
        with suppress(UnimoeError):  # a store out of reach fails where units are written
            self._store.write_json(SCOPE, self.name, content)
