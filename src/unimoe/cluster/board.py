"""What a driver on a cluster has done, is doing and has left: kept in the store, and read by ``unimoe status``."""

from __future__ import annotations

import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from unimoe.cluster.units import UnitStore
from unimoe.core.errors import UnimoeError, UsageError
from unimoe.core.io import Strict

SCOPE = "drivers"
"""The folder of a store that has the board of each driver."""

SILENCE = 30.0
"""Seconds without a change of its board after which a driver is not running."""

_EVERY = 5.0  # seconds between two writes, for which one is tried again while the store is out of reach


Moment = Annotated[float, Field(allow_inf_nan=False)]


@dataclass
class Line:
    """The state of one evaluation or training, named by task, dataset, arm and seed.

    Attributes:
        items: pairs, texts or steps in all; None where that is not known.
        done: items done.
        found: of these, items that the store had from before.
        running: units that workers compute now.
        failed: reasons of what failed or was set aside.
        state: how far it is; whoever opened the line says when it ends, and how.
        begun: when it began, in seconds since the epoch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    what: str
    items: int | None = None
    done: int = 0
    found: int = 0
    running: int = 0
    failed: list[str] = field(default_factory=list)
    state: Literal["running", "done", "failed"] = "running"
    begun: Moment = field(default_factory=time.time)


class _Written(Strict):
    """The lines of a driver as its store has them."""

    machine: str
    updated: Moment
    ended: bool
    workers: int
    lines: list[Line]


class Board:
    """The lines of one driver; a thread writes them every few seconds.

    ``workers`` returns their number, ``running`` by ``what`` how many units they compute now.
    """

    def __init__(
        self, store: UnitStore, workers: Callable[[], int], running: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._store, self._workers, self._running = UnitStore(store.url, patience=_EVERY), workers, running
        self._name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}.json"
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

    def count(self, line: Line, items: int, *, found: bool) -> None:
        """Count items as done, from any thread; ``found`` where the store had them."""
        with self._lock:
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
        own = {"machine": platform.node(), "started": self._started, "workers": self._workers()}
        with suppress(UnimoeError):  # a store out of reach fails where units are written
            content = {**own, "updated": time.time(), "ended": ended, "lines": lines}
            self._store.write_json(SCOPE, self._name, content)


def read_status(store: UnitStore) -> dict[str, Any]:
    """Return the state of a store as JSON values: its ``drivers``, the latest first, and ``progress`` by name.

    ``running`` says whether a driver runs, ``failed`` whether something failed or was set aside. A driver is ``lost``
    where it ended without saying so. Where several drivers have a line of one name, that of a driver that runs counts,
    and of several such the one with the most items done; else the latest.
    """
    names = sorted(store.keys(SCOPE), reverse=True)
    if not names:
        raise UsageError(
            f"{store.shown}: not a store, or not yet (no driver has written there); give an experiment's folder, "
            "or what --store named"
        )
    drivers: list[dict[str, Any]] = []
    best: dict[str, tuple[tuple[bool, int, float], dict[str, Any]]] = {}
    for name in names:
        board = store.read_json(SCOPE, name, _Written)
        if board is None:  # deleted meanwhile
            continue
        silent = max(0.0, time.time() - board.updated)
        runs = not board.ended and silent <= SILENCE
        state = "ended" if board.ended else "running" if runs else "lost"
        own = {"name": name.removesuffix(".json"), "machine": board.machine, "state": state}
        drivers.append({**own, "workers": board.workers, "seconds_ago": silent})
        for line in board.lines:
            rank = (runs, line.done if runs else 0, board.updated)
            if line.what not in best or rank > best[line.what][0]:
                best[line.what] = (rank, _progress(line, board.updated, runs))
    progress = [best[what][1] for what in sorted(best)]
    running = any(driver["state"] == "running" for driver in drivers)
    failed = any(one["state"] == "failed" or one["failed"] for one in progress)
    return {"running": running, "failed": failed, "drivers": drivers, "progress": progress}


def _progress(line: Line, updated: float, runs: bool) -> dict[str, Any]:
    """Return how far a line is: what is ``left``, and ``hours`` at the rate so far, None where they are not known.

    It is ``stopped`` where its driver no longer runs and it is neither done nor failed.
    """
    at_work, computed = runs and line.state == "running", line.done - line.found
    left = None if line.items is None else max(0, line.items - line.done)
    if line.state == "done":
        left = 0  # what was done before there was a store, no driver counts
    hours = left * (updated - line.begun) / computed / 3600 if at_work and left is not None and computed > 0 else None
    return {
        "what": line.what,
        "state": "stopped" if line.state == "running" and not runs else line.state,
        "items": line.items,
        "done": line.done,
        "running": line.running if at_work else 0,
        "left": left,
        "hours": hours,
        "failed": line.failed,
    }
