"""A folder that is copied to a store, so that another machine can go on with what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_path

_LIST = "files.json"
_HERE = "@FOLDER@"
"""Stands in the copy for the folder's own path, which files in JSON and Markdown may name."""


class Mirror:
    """The copy of a folder in a store: its files, and a list of them that is written last.

    Args:
        folder: on this machine.
        store: where the copy is.
        scope: its place there.
    """

    def __init__(self, folder: Path, store: UnitStore, scope: str) -> None:
        self._folder, self._store, self._scope = folder, store, scope
        self._sent: dict[str, tuple[int, int]] = {}

    def push(self) -> None:
        """Copy the files that changed since the last push, and list those that there are."""
        now = {str(path.relative_to(self._folder)): _stamp(path) for path in self._files()}
        for name, stamp in now.items():
            if self._sent.get(name) != stamp:
                self._store.write(f"{self._scope}/files", _key(name), self._translated(name, to_store=True))
        if now != self._sent:
            self._store.write_json(self._scope, _LIST, sorted(now))
            self._sent = now

    def fetch(self, *, but: str | None = None) -> bool:
        """Copy the listed files into the folder, except those whose names end with ``but``.

        Returns:
            Whether there is a list.

        Raises:
            DataError: a file is missing or damaged.
        """
        listed: Any = self._store.read_json(self._scope, _LIST)
        for name in listed or ():
            if but is not None and name.endswith(but):
                continue
            content = self._store.read(f"{self._scope}/files", _key(name))
            if content is None:
                raise DataError(f"{self._store.shown}: {self._scope}, {name} is missing or damaged; delete this folder")
            with atomic_path(self._folder / name) as temporary:
                temporary.write_bytes(self._translated(name, content))
        return listed is not None

    def _translated(self, name: str, content: bytes | None = None, *, to_store: bool = False) -> bytes:
        """Return a file's content with its folder's path in the store's words, or in this machine's."""
        content = (self._folder / name).read_bytes() if content is None else content
        if not name.endswith((".json", ".jsonl", ".md")):
            return content
        own, stored = str(self._folder).encode(), _HERE.encode()
        return content.replace(own, stored) if to_store else content.replace(stored, own)

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _key(name: str) -> str:
    return name.replace("/", "--")


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
