"""Work that writes a folder, such as a training: done by a worker, with the folder in the store while it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, TypeAdapter

from unimoe.cluster.cluster import Cluster, ClusterWorkers
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Recipe
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_path, hash_json
from unimoe.core.limits import path_problem

T = TypeVar("T")

_JOB, _LIST = "write folder", "files.json"
_EVERY = 10.0  # seconds between two copies of a folder to the store
_STATE = "state.safetensors"  # of unfinished trainings; it stays in the store
_HERE = b"@FOLDER@"  # in the store, the folder's own path, which files in JSON and Markdown may name


def _checked_name(name: str) -> str:
    if problem := path_problem(name):
        raise ValueError(f"{name!r} {problem}")
    if any(part.startswith(".") or not part.strip() for part in name.split("/")):  # none such is ever sent
        raise ValueError(f"{name!r} is hidden, or no name of a file")
    return name


_FileName = Annotated[str, AfterValidator(_checked_name)]
"""A file's name below a folder: a store is a shared place, and says what is written here."""

Tick = Callable[[], None]
"""Called often: copies the folder to the store from time to time."""

Write = Callable[[Part, Path, Tick], Any]
"""Does a part in a folder; returns JSON values."""


def done_by_worker(
    cluster: Cluster,
    what: str,
    recipe: Recipe,
    part: Part,
    folder: Path,
    kind: type[T],
    *,
    items: int | None = None,
    below: str = "",
) -> T:
    """Let a worker do a part, or go on with it, copy what it wrote into a folder, and return what the work returned.

    ``recipe`` is how a worker makes what does it: its ``maker`` returns ``folder_jobs``. The part's ``key`` is the
    content hash of all that the result depends on. Files of other parts in ``folder`` are not touched: a store that
    lists one which is not ``below`` this folder there is refused. ``kind`` is the type of what is returned.
    """
    own = {**part, "key": hash_json([part["key"], cluster.kind()])}  # no training goes on with another device's state
    with cluster.board.noted(what, items):
        workers = ClusterWorkers(cluster, what, "units/folders", recipe)
        parts = [own if items is None else {**own, "items": items}]
        (found,) = workers.compute(_JOB, parts, lambda reply, _: TypeAdapter(kind).validate_python(reply, strict=True))
    if not _Mirror(folder, cluster.store, own, "finished").fetch(but=_STATE, below=below):
        raise DataError(f"{cluster.store.shown}: folders/{own['key']} is missing; delete units/folders there")
    return found


def folder_jobs(write: Write, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job of a worker that writes folders; ``write`` finds there what a worker before it left."""

    def compute(part: Part) -> Any:
        # The store knows how far the work is; another driver may let a worker of this machine do the same.
        with TemporaryDirectory(prefix="unimoe-") as name:
            folder = Path(name)
            mirror, last = _Mirror(folder, store, part, "unfinished"), time.monotonic()
            mirror.fetch()

            def tick() -> None:
                nonlocal last
                if time.monotonic() - last > _EVERY:
                    mirror.push()
                    last = time.monotonic()

            found = write(part, folder, tick)
            _Mirror(folder, store, part, "finished").push()
        return found

    return {_JOB: compute}


class _Mirror:
    """The copy of a part's folder in a store: its files, and a list of them that is written last."""

    def __init__(self, folder: Path, store: UnitStore, part: Part, state: str) -> None:
        self._folder, self._store, self._scope = folder, store, f"folders/{part['key']}/{state}"
        self._sent: dict[str, tuple[int, int]] = {}

    def push(self) -> None:
        """Copy the files that changed since the last push, and list those that there are."""
        files = {
            path.relative_to(self._folder).as_posix(): path.stat() for path in self._folder.rglob("*") if path.is_file()
        }
        now = {name: (stat.st_mtime_ns, stat.st_size) for name, stat in files.items() if "/." not in f"/{name}"}
        for name in now:
            if self._sent.get(name) != now[name]:
                content = (self._folder / name).read_bytes()
                self._store.write(f"{self._scope}/files", _key(name), self._moved(name, content, to_store=True))
        if now != self._sent:
            self._store.write_json(self._scope, _LIST, sorted(now))
            self._sent = now

    def fetch(self, *, but: str | None = None, below: str = "") -> bool:
        """Copy the listed files into the folder, but not those with names that end in ``but``; return whether any are.

        All have to be ``below`` a folder in it.
        """
        listed = self._store.read_json(self._scope, _LIST, list[_FileName])
        for name in listed or ():  # all are looked at before the first is written
            self._refuse_outside(name)
            if below and not name.startswith(f"{below}/"):
                where = f"{self._store.shown}/{self._scope}/{_LIST}"
                raise DataError(
                    f"{where}: {name} is no file of this work, which is below {below}; delete it, and run again"
                )
        for name in listed or ():
            if but is not None and name.endswith(but):
                continue
            content = self._store.content(f"{self._scope}/files", _key(name))
            with atomic_path(self._folder / name) as temporary:
                temporary.write_bytes(self._moved(name, content))
        return listed is not None

    def _refuse_outside(self, name: str) -> None:
        """Refuse a name that a link in the folder leads out of it."""
        there, folder = (self._folder / name).parent.resolve(), self._folder.resolve()
        if not there.is_relative_to(folder):
            raise DataError(
                f"{self._store.shown}/{self._scope}/{_LIST}: {name} leads out of {folder} by a link there; remove the "
                "link, or choose another output_dir"
            )

    def _moved(self, name: str, content: bytes, *, to_store: bool = False) -> bytes:
        """Return a file's content with the folder's path in the store's words, or in this machine's."""
        if not name.endswith((".json", ".jsonl", ".md")):
            return content
        here = str(self._folder).encode()
        return content.replace(here, _HERE) if to_store else content.replace(_HERE, here)


def _key(name: str) -> str:
    return name.replace("/", "--")
