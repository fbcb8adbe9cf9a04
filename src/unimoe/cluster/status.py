"""The state of all work in a store, from the boards of its drivers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unimoe.cluster.board import SCOPE, Line
from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError, UsageError

SILENCE = 30.0
"""Seconds after which a driver whose board did not change is not running."""


@dataclass(frozen=True)
class Driver:
    """A process that gave out work.

    Attributes:
        name: of its board.
        machine: where it runs or ran.
        state: ``lost`` where it ended without saying so.
        workers: that it has or had.
        seconds_ago: since its board changed.
    """

    name: str
    machine: str
    state: Literal["running", "ended", "lost"]
    workers: int
    seconds_ago: float


@dataclass(frozen=True)
class Progress:
    """How far an evaluation or training is.

    Attributes:
        what: task, dataset, arm and seed.
        state: ``stopped`` where its driver no longer runs and it is neither done nor failed.
        items: pairs, texts or steps in all; None where that is not known.
        done: items done.
        running: units that workers compute now.
        left: items left; None where ``items`` is.
        hours: to go, at the rate of the items computed so far; None where that is not known.
        failed: reasons of what failed or was set aside.
    """

    what: str
    state: Literal["running", "done", "failed", "stopped"]
    items: int | None
    done: int
    running: int
    left: int | None
    hours: float | None
    failed: Sequence[str]


@dataclass(frozen=True)
class Status:
    """The state of a store: its drivers, the latest first, and its evaluations and trainings by name."""

    drivers: Sequence[Driver]
    progress: Sequence[Progress]

    @property
    def runs(self) -> bool:
        """Whether a driver runs."""
        return any(driver.state == "running" for driver in self.drivers)

    @property
    def failed(self) -> bool:
        """Whether something failed or was set aside."""
        return any(one.state == "failed" or one.failed for one in self.progress)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"running": self.runs, "failed": self.failed, **asdict(self)}


def read_status(store: UnitStore) -> Status:
    """Read the boards of a store.

    Where several drivers have a line of one name, that of a driver that runs counts, and of several such the one with
    the most items done; else the latest.

    Raises:
        UsageError: no driver has used it as a store.
        DataError: a board has other fields, as those of another version of unimoe may have.
    """
    names = sorted(store.keys(SCOPE), reverse=True)
    if not names:
        raise UsageError(
            f"{store.shown}: not a store, or not yet (no driver has written there); give the folder or URL that "
            "--store named"
        )
    now, drivers = time.time(), list[Driver]()
    lines: dict[str, tuple[tuple[Any, ...], Progress]] = {}
    for name in names:
        if (board := store.read_json(SCOPE, name)) is None:
            continue  # cut short by a crash
        try:
            driver = _driver(name, board, now)
            found = list(_lines(board, driver))
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{store.shown}/{SCOPE}/{name}: unknown fields ({error}); use the version of unimoe that wrote it, or "
                "delete it"
            ) from None
        drivers.append(driver)
        for progress in found:
            runs = driver.state == "running"
            rank = (runs, progress.done if runs else 0, board["updated"])
            lines[progress.what] = max(lines.get(progress.what, (rank, progress)), (rank, progress), key=_first)
    return Status(drivers, [progress for _, (_, progress) in sorted(lines.items())])


def _first(pair: tuple[tuple[Any, ...], Progress]) -> tuple[Any, ...]:
    return pair[0]


def _driver(name: str, board: Mapping[str, Any], now: float) -> Driver:
    silent = max(0.0, now - board["updated"])
    state: Literal["running", "ended", "lost"] = "ended" if board["ended"] else "running"
    if silent > SILENCE and not board["ended"]:
        state = "lost"
    return Driver(name.removesuffix(".json"), board["machine"], state, board["workers"], silent)


def _lines(board: Mapping[str, Any], driver: Driver) -> Iterator[Progress]:
    for values in board["lines"]:
        line, runs = Line(**values), driver.state == "running"
        left = None if line.items is None else max(0, line.items - line.done)
        if line.state == "done":
            left = 0  # what was done before there was a store, no driver counts
        computed, seconds = line.done - line.found, board["updated"] - line.begun
        at_work = runs and line.state == "running"
        yield Progress(
            what=line.what,
            state="stopped" if line.state == "running" and not runs else line.state,
            items=line.items,
            done=line.done,
            running=line.running if at_work else 0,
            left=left,
            hours=left * seconds / computed / 3600 if at_work and left is not None and computed > 0 else None,
            failed=line.failed,
        )
