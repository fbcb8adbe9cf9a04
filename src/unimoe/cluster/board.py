"""What a run on a cluster has done, is doing and has left: kept in the store, for ``unimoe status``."""

from __future__ import annotations

import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Literal

from unimoe.cluster.units import UnitStore
from unimoe.core.errors import UnimoeError

SCOPE = "drivers"
"""The folder of a store that has the board of each driver."""

_EVERY = 5.0
"""Seconds between two writes, and for which one is tried again while the store is out of reach."""


@dataclass
class Line:
    """The state of one evaluation or training.

    Attributes:
        what: task, dataset, arm and seed.
        items: pairs, texts or steps in all; None where that is not known.
        done: items done.
        found: of these, items that the store had from before.
        units: parts of the work done, each an object of the store.
        running: units that workers compute now.
        failed: reasons of what failed or was set aside.
        state: how far it is; whoever opened the line says when it ends, and how.
        begun: when it began, in seconds since the epoch.
    """

    what: str
    items: int | None = None
    done: int = 0
    found: int = 0
    units: int = 0
    running: int = 0
    failed: list[str] = field(default_factory=list)
    state: Literal["running", "done", "failed"] = "running"
    begun: float = field(default_factory=time.time)


class Board:
    """The lines of one driver; writes them every few seconds.

    Args:
        store: where.
        workers: returns the number of workers.
        running: returns by ``what`` how many units they compute now.

    Attributes:
        name: of its object in the store.
    """

    def __init__(
        self, store: UnitStore, workers: Callable[[], int], running: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._store, self._workers, self._running = UnitStore(store.url, patience=_EVERY), workers, running
        self.name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}.json"
        self._started, self._lines = time.time(), dict[str, Line]()
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()

    def line(self, what: str, items: int | None = None) -> Line:
        """Return the line of an evaluation or training, a new one where there is none."""
        with self._lock:
            line = self._lines.setdefault(what, Line(what))
            line.items = line.items if items is None else items
        return line

    def count(self, line: Line, items: int, *, found: bool = False) -> None:
        """Count a unit of some items as done; ``found`` where the store had it."""
        with self._lock:
            line.units += 1
            line.done += items
            line.found += items * found

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
        self._write()
        while not self._closing.wait(_EVERY):
            self._write()

    def _write(self, *, ended: bool = False) -> None:
        running = {} if ended else self._running()
        with self._lock:
            lines = [asdict(line) | {"running": running.get(line.what, 0)} for line in self._lines.values()]
        content = {
            "machine": platform.node(),
            "started": self._started,
            "updated": time.time(),
            "ended": ended,
            "workers": self._workers(),
            "lines": lines,
        }
        with suppress(UnimoeError):  # a store out of reach fails where units are written
            self._store.write_json(SCOPE, self.name, content)
