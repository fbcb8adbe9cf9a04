"""Atomic writes, content hashes, locks, and the cache folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import filelock
import platformdirs
from pydantic import BaseModel, ValidationError

from unimoe.errors import DataError, UsageError

Model = TypeVar("Model", bound=BaseModel)

HASH_LENGTH = 16
"""Hexadecimal digits kept of a SHA-256: 64 bits, ample for the files of one user."""


def cache_dir(*parts: str) -> Path:
    """The user's cache folder for ``parts``, created when absent; ``UNIMOE_CACHE`` moves it."""
    root = os.environ.get("UNIMOE_CACHE") or platformdirs.user_cache_dir("unimoe", appauthor=False)
    return ensure_dir(Path(root, *parts))


def ensure_dir(path: Path) -> Path:
    """Create a folder and its parents; a folder that cannot be had is a usage error."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot create this folder ({error.strerror}); choose one you can write to") from None
    return path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    The file is synced before it is renamed, so that a crash leaves the old content or the new, never a part.
    """
    if path.is_dir():
        raise UsageError(f"{path}: a folder stands where a file is to be written; choose another path")
    ensure_dir(path.parent)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot write here ({error.strerror}); choose another folder") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``path`` when the block ends without an error.

    An old folder is moved aside before it is deleted: a crash leaves the old one, none or the new, never a part.
    """
    if path.is_file():
        raise UsageError(f"{path}: a file stands where a folder is to be written; choose another path")
    ensure_dir(path.parent)
    try:
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot write here ({error.strerror}); choose another folder") from None
    aside = temporary.with_suffix(".old")
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        temporary.chmod(0o777 & ~_umask())
        if path.exists():
            path.replace(aside)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, with Unix line ends on every platform."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write JSON atomically. NaN and infinity are refused: they are not JSON."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def read_json(path: Path) -> Any:
    """Read one JSON file; an absent or cut-off file is a data error that names it."""
    try:
        with _named_errors(path):
            return json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: not valid JSON ({error}); the file may be cut short, delete it and run again"
        ) from None


def read_model(path: Path, model: type[Model], mend: str) -> Model:
    """Read a JSON file as what a pydantic model describes.

    Args:
        path: of the file.
        model: of its content.
        mend: what to do where it is something else.

    Raises:
        DataError: the file is unreadable, no JSON, or not of the model; the message names the key.
    """
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise DataError(f"{path}: {where}{first['msg']}; {mend}") from None


def read_bytes(path: Path) -> bytes:
    """Read a whole file; an absent or unreadable one is a data error that names it."""
    with _named_errors(path):
        return path.read_bytes()


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Files below a folder by a pattern such as ``*/seed_*/logs/train.jsonl``, in order.

    Like a glob, but a folder that is there and cannot be read is a data error: what it holds must not count as absent.
    """
    *folders, files = pattern.split("/")
    within = [folder]
    for part in folders:
        within = [path for parent in within for path in _entries(parent, part) if path.is_dir()]
    return [path for parent in within for path in _entries(parent, files)]


def _entries(folder: Path, pattern: str) -> list[Path]:
    with _named_errors(folder):
        return sorted(path for path in folder.iterdir() if fnmatchcase(path.name, pattern))


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append one record as one line, in a single write."""
    ensure_dir(path.parent)
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(line)


def hash_parts(parts: Iterable[str | bytes]) -> str:
    """SHA-256 over length-prefixed parts, so that ``["ab", "c"]`` and ``["a", "bc"]`` differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:HASH_LENGTH]


def hash_json(value: Any) -> str:
    """Content hash of a JSON value, independent of the order of keys."""
    return hash_parts([json.dumps(value, sort_keys=True, ensure_ascii=False)])


def hash_file(path: Path) -> str:
    """Content hash of one file; an absent file is a data error."""
    with _named_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:HASH_LENGTH]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an inter-process lock beside ``path`` while the block runs."""
    ensure_dir(path.parent)
    held = filelock.FileLock(path.with_name(f".{path.name}.lock"))
    try:
        held.acquire()
    except OSError as error:
        raise UsageError(
            f"{held.lock_file}: cannot lock ({error.strerror}); choose a folder you can write to"
        ) from None
    try:
        yield
    finally:
        held.release()


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _sync(path: Path) -> None:
    with path.open("r+b") as file:  # Windows syncs only what is open for writing
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
