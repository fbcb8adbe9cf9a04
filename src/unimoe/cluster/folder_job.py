"""Work that writes a folder, such as a training: done by a worker, whose folder is in the store while it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unimoe.cluster.cluster import Assignment, Cluster
from unimoe.cluster.mirror import Mirror
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, nowhere
from unimoe.core.errors import DataError
from unimoe.core.io import hash_json

_JOB = "write folder"
_EVERY = 10.0
"""Seconds between two copies of a folder to the store."""

_STATE = "state.safetensors"
"""Of unfinished trainings; it stays in the store."""

Tick = Callable[[], None]
"""Called often: copies the folder to the store from time to time."""

Write = Callable[[Part, Path, Tick], Any]
"""Does a part in a folder; returns JSON values."""


def done_by_worker(
    cluster: Cluster, what: str, recipe: Mapping[str, Any], part: Part, folder: Path, *, items: int | None = None
) -> Any:
    """Let a worker do a part, or go on with it, and copy what it wrote into a folder.

    Args:
        cluster: has the workers.
        what: names the work.
        recipe: how a worker makes what does it: its ``maker`` returns ``folder_jobs``.
        part: JSON values; ``key`` is the content hash of all that the result depends on.
        folder: here; files of other parts in it are not touched.
        items: such as steps, for ``unimoe status``.

    Returns:
        What the work returned.

    Raises:
        DataError: the store has lost what was written.
        Exception: of the work.
    """
    own = {**part, "key": hash_json([part["key"], cluster.kind()])}  # no training goes on with another device's state
    with cluster.board.noted(what, items):
        workers = cluster.workers(Assignment(what, "units/folders", recipe, {}))
        (found,) = workers.compute(_JOB, [own if items is None else {**own, "items": items}], nowhere)
    if not Mirror(folder, cluster.store, _finished(own)).fetch(but=_STATE):
        raise DataError(f"{cluster.store.shown}: {_finished(own)} is missing or damaged; delete units/folders there")
    return found


def folder_jobs(write: Write, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job of a worker that writes folders.

    Args:
        write: does a part in a folder, where it finds what a worker before it left.
        store: keeps the folder.
    """

    def compute(part: Part) -> Any:
        # The store knows how far the work is; another driver may let a worker of this machine do the same.
        with TemporaryDirectory(prefix="unimoe-") as name:
            folder = Path(name)
            mirror, last = Mirror(folder, store, _unfinished(part)), time.monotonic()
            mirror.fetch()

            def tick() -> None:
                nonlocal last
                if time.monotonic() - last > _EVERY:
                    mirror.push()
                    last = time.monotonic()

            found = write(part, folder, tick)
            Mirror(folder, store, _finished(part)).push()
        return found

    return {_JOB: compute}


def _unfinished(part: Part) -> str:
    return f"folders/{part['key']}/unfinished"


def _finished(part: Part) -> str:
    return f"folders/{part['key']}/finished"
