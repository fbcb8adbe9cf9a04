"""Work that writes a folder, such as a training: done by a worker, whose folder is in the store while it works."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unimoe.engine.cluster import Assignment, Cluster
from unimoe.engine.mirror import Mirror
from unimoe.engine.units import UnitStore
from unimoe.engine.work import Compute, Part, nowhere
from unimoe.io import cache_dir

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
    """
    with cluster.board.noted(what, items):
        workers = cluster.workers(Assignment(what, "units/folders", recipe, {}))
        (found,) = workers.compute(_JOB, [part if items is None else {**part, "items": items}], nowhere)
    Mirror(folder, cluster.store, _scope(part)).fetch(but=_STATE)
    return found


def folder_jobs(write: Write, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job of a worker that writes folders.

    Args:
        write: does a part in a folder, where it finds what a worker before it left.
        store: keeps the folder.
    """

    def compute(part: Part) -> Any:
        folder = cache_dir("folders") / part["key"]
        shutil.rmtree(folder, ignore_errors=True)  # the store knows how far the work is
        mirror, last = Mirror(folder, store, _scope(part)), time.monotonic()
        mirror.fetch()

        def tick() -> None:
            nonlocal last
            if time.monotonic() - last > _EVERY:
                mirror.push()
                last = time.monotonic()

        found = write(part, folder, tick)
        mirror.push()
        shutil.rmtree(folder, ignore_errors=True)
        return found

    return {_JOB: compute}


def _scope(part: Part) -> str:
    return f"folders/{part['key']}"
