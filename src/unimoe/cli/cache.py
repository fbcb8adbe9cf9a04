"""``unimoe cache``: what evaluations keep for later ones, and its removal."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from unimoe.core.console import stderr, stdout
from unimoe.core.errors import MissingPartError, UsageError, did_you_mean, first_few
from unimoe.core.limits import visible
from unimoe.data.published import SHORT_NAMES

_COMPUTED = ("vectors", "dense", "bm25", "index", "embeddings")
"""Kinds that an evaluation makes again by itself; others were downloaded, or paid for at a server."""

SERVED = "served:"
"""How the identity of a model behind a server begins: its vectors were paid for too."""


_HASH = "[0-9a-f]{16}"
_OWN_NAMES = {
    "vectors": f"{_HASH}-{_HASH}",
    "embeddings": f"{_HASH}-{_HASH}",  # vectors of earlier versions
    "dense": rf"{_HASH}(-\d+)?\.(trec|safetensors)",
    "bm25": rf"{_HASH}(-\d+)?\.trec",
    "index": _HASH,
    "votes": rf"{_HASH}\.json",
    "served": rf"{_HASH}\.json|vectors",
    "models": r"smollm2-135m-instruct-[\w.]+",
    "checkpoints": f"{_HASH}(-{_HASH})?",
    "collections": f"beir|zips|apidocs-{_HASH}",
    "mteb": "results|remote|leaderboard",  # of the library, which unimoe sends here
}
"""How unimoe calls an entry, by kind: after the content hash of what it is made from."""

_OWN_CONTENT = {
    "vectors": r"(store|made_from|ids)\.json|vectors\.npy",
    "embeddings": r"(store|made_from|ids)\.json|vectors\.npy",
    "index": r"(words|made_from)\.json|(starts|lengths|documents|counts)\.npy",
    "served/vectors": rf"{_HASH}/{_HASH}\.npy",
    "collections/beir": rf"({'|'.join(sorted({name.partition('/')[0] for name in SHORT_NAMES}))})/.+",
    "collections/zips": rf"[^/]+-{_HASH}/.+",
}
"""Files of a folder that is unimoe's, by kind or by the folder alone; with another it is somebody else's."""


class Entry(NamedTuple):
    """A file or folder of the cache; model and collection are empty where they are not known."""

    kind: str
    name: str
    model: str
    collection: str
    bytes: int
    last_use: float

    @property
    def names(self) -> set[str]:
        """What a user may call it by: its own name, its model, with or without a hash, or its collection."""
        return {self.name, self.model, self.model.partition("@")[0], self.collection} - {""}


def cache(
    action: Annotated[Literal["list", "clear"], typer.Argument(help="List what is kept, or remove it.")] = "list",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Entries, or all of a model or a collection.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind: vectors, dense, bm25, index.")] = None,
    older_than: Annotated[float, typer.Option(metavar="DAYS", min=0, help="Only what lay unused for so long.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List or remove what evaluations keep in the user's cache (UNIMOE_CACHE): vectors, indexes, rankings.

    A line of ``list`` has kind, name, model, collection, size and last use. ``clear`` says how much it removes. Without
    --kind it removes what can be computed again: neither downloads nor what servers answered. What a running
    evaluation writes is kept and named, and the exit code is 4. What unimoe has not made is neither listed nor removed.
    """
    from unimoe.core.io import cache_dir

    root = cache_dir()
    there, strange = _entries(root)
    if strange:
        listed = first_few([f"{path.parent.name}/{path.name}" for path in strange])
        stderr.print(f"{root}: left alone, as unimoe has not made it: {listed}", soft_wrap=True)
    if action == "clear" and not kind:
        there = [one for one in there if one.kind in _COMPUTED and not one.model.startswith(SERVED)]
    known = {*_COMPUTED, *(one.kind for one in there)}, {name for one in there for name in one.names}
    for given, some, option in ((kind, known[0], "--kind "), (names, known[1], "")):
        for name in given or ():
            if name not in some:
                raise UsageError(f"{option}{name}: {root} keeps nothing of it{did_you_mean(name, some)}")
    latest = time.time() - older_than * 24 * 3600
    chosen = [one for one in there if (not kind or one.kind in kind) and one.last_use <= latest]
    chosen = [one for one in chosen if not names or not one.names.isdisjoint(names)]
    in_use = []
    if action == "clear":
        stderr.print(f"{root}: removing {_total(chosen)}", soft_wrap=True)
        in_use = [one for one in chosen if not _removed(root / one.kind / one.name)]
        chosen = [one for one in chosen if one not in in_use]
    if as_json:
        stdout.out(json.dumps({"folder": str(root), "entries": [one._asdict() for one in chosen]}, allow_nan=False))
    elif action == "list":
        _print(chosen)
    else:
        stdout.print(f"removed {_total(chosen)}")
    if in_use:
        raise MissingPartError(f"kept, since it is in use: {', '.join(one.name for one in in_use)}")


def _entries(root: Path) -> tuple[list[Entry], list[Path]]:
    """Return what unimoe keeps, by kind and falling last use, and what somebody else does."""
    found, strange = list[Entry](), list[Path]()
    for path in (path for kind in sorted(root.iterdir()) if kind.is_dir() for path in sorted(kind.iterdir())):
        if path.name.startswith("."):  # a lock, or what is being written
            continue
        with suppress(FileNotFoundError):  # removed meanwhile
            if not _is_own(path):
                strange.append(path)
                continue
            files = [file.stat() for file in path.rglob("*") if file.is_file()] or [path.stat()]
            size, used = sum(file.st_size for file in files), max(file.st_mtime for file in files)
            found.append(Entry(path.parent.name, path.name, *_made_from(path), size, used))
    return sorted(found, key=lambda one: (one.kind, -one.last_use)), strange


def _is_own(path: Path) -> bool:
    """Return whether unimoe has made an entry: by its name, and by the files in it where it is a folder."""
    kind = path.parent.name
    if path.is_symlink() or kind not in _OWN_NAMES or not re.fullmatch(_OWN_NAMES[kind], path.name):
        return False
    if path.is_file():
        return True
    if kind in ("models", "checkpoints"):
        return (path / "unimoe.json").is_file()
    content = _OWN_CONTENT.get(kind) or _OWN_CONTENT.get(f"{kind}/{path.name}", ".+")
    files = (file.relative_to(path) for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    return all(re.fullmatch(content, name.as_posix()) or _is_unfinished(name) for name in files)


def _is_unfinished(name: Path) -> bool:
    """Return whether a file is one that is being written, or a lock."""
    return name.name.startswith(".") and name.suffix in (".tmp", ".old", ".lock")


def _made_from(path: Path) -> tuple[str, str]:
    """Return the model and the collection that a run, an index or a folder of vectors names."""
    with suppress(OSError, ValueError, LookupError):  # a damaged one can be removed too
        if path.suffix == ".trec":
            with path.open(encoding="utf-8") as file:
                model, _, collection = file.readline().split(" ")[5].rstrip().partition("#")
            return model, collection
        named = json.loads((path / "made_from.json").read_text("utf-8"))
        return str(named["model"]), str(named["collection"])
    return "", ""


def _removed(path: Path) -> bool:
    """Remove an entry unless a process writes it, and return whether it is gone."""
    import filelock

    try:
        with filelock.FileLock(path.parent / f".{path.name}.lock", timeout=0):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except (filelock.Timeout, PermissionError):  # Windows removes no file that is open
        return False
    return True


def _total(entries: Sequence[Entry]) -> str:
    size = sum(one.bytes for one in entries) / 2**20
    return f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}, {size:,.1f} MiB"


def _print(entries: Sequence[Entry]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("kind", "name", "model", "collection", "MiB", "last use"):
        table.add_column(name, overflow="fold")
    for one in entries:
        used = datetime.fromtimestamp(one.last_use).astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(*map(visible, one[:4]), f"{one.bytes / 2**20:,.1f}", used)
    stdout.print(table)
    stdout.print(_total(entries))
