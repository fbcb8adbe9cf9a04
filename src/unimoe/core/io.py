"""Atomic writes, content hashes, locks, and the cache folder.

The library for such writes, atomicwrites, is no longer maintained and has none for folders.
"""

from __future__ import annotations

import codecs
import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import filelock
import platformdirs
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from unimoe.core.errors import DataError, UsageError, refused_code

T = TypeVar("T")

HASH_LENGTH = 16
"""Hexadecimal digits kept of a SHA-256: 64 bits, ample for the files of one user."""


def cache_dir(*parts: str) -> Path:
    """Return a folder in the user's cache, created if absent; ``UNIMOE_CACHE`` moves the cache."""
    root = os.environ.get("UNIMOE_CACHE") or platformdirs.user_cache_dir("unimoe", appauthor=False)
    return ensure_dir(Path(root, *parts))


def ensure_dir(path: Path) -> Path:
    """Create a folder and its parents, and return it; raise ``UsageError`` where this user cannot.

    What the system refuses whoever asks, such as a folder on a full disk, is an ``OSError`` with the folder's name.
    """
    for left in reversed(range(20)):
        try:
            path.mkdir(parents=True, exist_ok=True)
            break
        except OSError as error:
            # Another thread of a cluster's driver may have removed a parent while that was empty.
            if refused_code(error):
                raise OSError(error.errno, error.strerror, str(path)) from None
            if not left or not isinstance(error, FileNotFoundError | FileExistsError):
                problem = f"cannot create this folder ({error.strerror}); choose one you can write to"
                raise UsageError(f"{path}: {problem}") from None
    return path


@contextmanager
def named_writes(path: Path) -> Iterator[None]:
    """Run a block that writes a file or folder; what the system refuses names it, whatever library asked."""
    try:
        yield
    except Exception as error:
        if (code := refused_code(error)) in (None, errno.ENOMEM):
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` that replaces it if the block raises no error.

    The file is synced before it is renamed, so that a crash leaves the old content or the new, never a part. A killed
    process leaves its temporary file, which the next one that writes the same file removes.
    """
    if path.is_dir():
        raise UsageError(f"{path}: this is a folder, and a file is to be written here; choose another path")
    temporary = _temporary(path)
    try:
        with named_writes(path):
            yield temporary
            _sync(temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``path`` if the block raises no error.

    The old folder is renamed before it is deleted: a crash leaves the old one, none or the new, never a part.
    """
    if path.is_file():
        raise UsageError(f"{path}: this is a file, and a folder is to be written here; choose another path")
    temporary = _temporary(path)
    aside = temporary.with_suffix(".old")
    try:
        with named_writes(path):
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync(file)
            if path.exists():
                path.replace(aside)
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Return a temporary name next to a file or folder, and remove what killed processes of this machine left there.

    Each thread has a name of its own: workers of one machine fill one cache, and evaluations in threads share qrels.
    """
    prefix = f".{path.name}.{platform.node()}-"
    for left in ensure_dir(path.parent).glob(f"{glob.escape(prefix)}*"):
        writer = left.name.removeprefix(prefix).partition("-")[0]
        if writer.isdecimal() and not _runs(int(writer)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.parent / f"{prefix}{os.getpid()}-{threading.get_ident()}.tmp"


def _runs(process: int) -> bool:
    if sys.platform == "win32":  # there, signal 0 would be Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # else it is another user's
    return True


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, with Unix line ends on every platform."""
    write_bytes(path, text.encode("utf-8", "replace"))  # a collection's JSON may hold half a surrogate pair


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; NaN and infinity, which JSON lacks, raise ``ValueError``."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


WriteLine = Callable[[Path, Any], None]
"""Writes a value to a file, as ``write_line`` does."""


def write_line(path: Path, value: Any) -> None:
    """Write JSON as ``write_json`` does, in one line."""
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def written_behind() -> Iterator[WriteLine]:
    """Give a ``write_line`` that a thread does; the next call, or the end, raises its error."""
    last: list[Future[None]] = []
    with ThreadPoolExecutor(1) as thread:

        def write(path: Path, value: Any) -> None:
            for earlier in last:
                earlier.result()
            last[:] = [thread.submit(write_line, path, value)]

        yield write
        for earlier in last:
            earlier.result()


class Strict(BaseModel):
    """A file that the program writes: every value of its own type. Keys that somebody added are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # each takes a while to make


def read_json(path: Path, kind: type[T], remedy: str | None = None) -> T:
    """Read a JSON file as a value of a type, such as a pydantic model or ``dict[str, float]``.

    A file that is absent, or holds something else, is a DataError, which names the key and says what to do: ``remedy``
    for a file that a person brings, to run again for one that the program writes. A file of a newer schema is none to
    delete: it says so.
    """
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    try:
        return checked_json(content, kind)
    except ValueError as error:
        why = str(error)
        if newer := _newer_schema(content, kind):
            raise DataError(f"{path}: {newer}; read it with a newer unimoe") from None
        if remedy is None:
            why, remedy = f"is damaged or of another version ({why})", "delete it, and run again"
        raise DataError(f"{path}: {why}; {remedy}") from None


def _newer_schema(content: bytes, kind: Any) -> str | None:
    """Say that a file's ``schema_version`` is above the one that its class has."""
    field = getattr(kind, "model_fields", {}).get("schema_version")
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        if field and (stated := json.loads(content)["schema_version"]) > field.default:
            return f"is of schema {stated}, and this version reads {field.default}"
    return None


def checked_json(content: bytes, kind: type[T]) -> T:
    """Return JSON as a value of a type; a ``ValueError`` names the first key that holds something else."""
    try:
        value: T = _adapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}." for part in first["loc"]).removesuffix(".")
        raise ValueError(": ".join(filter(None, (where, first["msg"].removeprefix("Value error, "))))) from None
    return value


def read_bytes(path: Path) -> bytes:
    """Read a file; raise ``DataError`` with its name if that fails."""
    with named_errors(path):
        return path.read_bytes()


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files below a folder that match a pattern such as ``*/seed_*/logs/train.jsonl``, sorted.

    Unlike a glob it raises ``DataError`` for a folder that cannot be read: its content must not count as absent.
    """
    found = [folder]
    for part in pattern.split("/"):
        inside = []
        for parent in filter(Path.is_dir, found):
            with named_errors(parent):
                inside += sorted(path for path in parent.iterdir() if fnmatchcase(path.name, part))
        found = inside
    return found


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append one record as one line, in a single write."""
    ensure_dir(path.parent)
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    with named_writes(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(line)


def hash_parts(parts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of length-prefixed parts, so that ``["ab", "c"]`` and ``["a", "bc"]`` differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:HASH_LENGTH]


def hash_json(value: Any) -> str:
    """Return the content hash of a JSON value, whatever the order of its keys."""
    return hash_parts([json.dumps(value, sort_keys=True, ensure_ascii=False)])


def hash_files(folder: Path, but: Collection[str] = ()) -> dict[str, str]:
    """Return the content hash of every file below a folder by its name there, except those of these names."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in but]
    return {file.relative_to(folder).as_posix(): hash_file(file) for file in files}


def changed_file(folder: Path, hashes: Mapping[str, str]) -> Path | None:
    """Return the first file of ``hash_files`` that is absent or has changed since; None where none has."""
    files = ((folder / name, content) for name, content in hashes.items())
    return next((file for file, content in files if not file.is_file() or hash_file(file) != content), None)


def hash_bytes(content: bytes) -> str:
    """Return the content hash that ``hash_file`` returns of a file with this content."""
    return hashlib.sha256(content).hexdigest()[:HASH_LENGTH]


def hash_file(path: Path) -> str:
    """Return the content hash of a file; raise ``DataError`` with its name if it cannot be read."""
    with named_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:HASH_LENGTH]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes, a file next to ``path``, while the block runs: caches are shared."""
    with filelock.FileLock(ensure_dir(path.parent) / f".{path.name}.lock"):
        yield


@contextmanager
def sole_use(folder: Path, what: str = "unimoe") -> Iterator[None]:
    """Work alone in a folder, or on a part of it, while the block runs; a folder without any other file is removed.

    Raises:
        UsageError: another process works there.
    """
    lock = ensure_dir(folder) / f".{what}.lock"
    try:
        with filelock.FileLock(lock, timeout=0):
            try:
                yield
            finally:
                if [*folder.iterdir()] == [lock]:  # the work was refused before it began
                    lock.unlink()
                    with suppress(OSError):  # another thread begins another part of the work there
                        folder.rmdir()
    except filelock.Timeout:
        raise UsageError(f"{folder}: another process works in this folder; wait for it, or choose another") from None


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Run a block that reads a file or folder; what the system refuses becomes a ``DataError`` with its name."""
    try:
        yield
    except FileNotFoundError:
        there = Path(str(path).removeprefix("path:"))
        remedy = f"; write {_file_there(there) or there}" if there != path and there.exists() else ""
        raise DataError(f"{path}: no such file{remedy}") from None
    except OSError as error:
        if error.errno is None:  # of a library, such as gzip's of a damaged file
            raise
        judged = _file_there(path)
        remedy = f"; its judgments are {judged}" if judged else ""
        raise DataError(f"{path}: cannot be read ({error.strerror}){remedy}") from None


def _file_there(folder: Path) -> Path | None:
    """Return judgments of a collection where its folder is given in place of a file."""
    return min(folder.glob("qrels/*.tsv"), default=None)


def _sync(path: Path) -> None:
    with path.open("r+b") as file:  # Windows syncs only what is open for writing
        os.fsync(file.fileno())
