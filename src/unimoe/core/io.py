"""Atomic writes, content hashes, locks, and the cache folder.

The writes are our own because the library for them, atomicwrites, is no longer maintained and has none for folders.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import filelock
import platformdirs
from pydantic import BaseModel, ValidationError

from unimoe.core.checksums import encoded, sealed, unsealed
from unimoe.core.errors import DataError, UnimoeError, UsageError, is_full_disk

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

HASH_LENGTH = 16
"""Hexadecimal digits kept of a SHA-256: 64 bits, ample for the files of one user."""

_TRIES = 100  # to create a folder whose parents others create and remove
_READING_UMASK = threading.Lock()


def cache_dir(*parts: str) -> Path:
    """Return a folder in the user's cache, created if absent; ``UNIMOE_CACHE`` moves the cache."""
    root = os.environ.get("UNIMOE_CACHE") or platformdirs.user_cache_dir("unimoe", appauthor=False)
    return ensure_dir(Path(root, *parts))


def ensure_dir(path: Path) -> Path:
    """Create a folder and its parents, and return it; raise ``UsageError`` if that fails."""
    for left in reversed(range(_TRIES)):
        try:
            path.mkdir(parents=True, exist_ok=True)
            break
        except OSError as error:
            if left and isinstance(error, FileNotFoundError | FileExistsError):  # others remove empty folders
                continue
            raise UsageError(
                f"{path}: cannot create this folder ({error.strerror}); choose one you can write to"
            ) from None
    return path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it if the block raises no error.

    The file is synced before it is renamed, so that a crash leaves the old content or the new, never a part.
    """
    if path.is_dir():
        raise UsageError(f"{path}: this is a folder, and a file is to be written here; choose another path")
    handle, name = _beside(path, tempfile.mkstemp)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except Exception as error:
        _refuse_full_disk(path, error)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``path`` if the block raises no error.

    The old folder is renamed before it is deleted: a crash leaves the old one, none or the new, never a part.
    """
    if path.is_file():
        raise UsageError(f"{path}: this is a file, and a folder is to be written here; choose another path")
    temporary = Path(_beside(path, tempfile.mkdtemp))
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
    except Exception as error:
        _refuse_full_disk(path, error)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def _beside(path: Path, make: Callable[[str, str, str], T]) -> T:
    """Make a temporary file or folder beside ``path``, from suffix, prefix and folder, without what was left there."""
    for left in reversed(range(_TRIES)):
        ensure_dir(path.parent)
        try:
            remove_abandoned(path.parent, glob.escape(path.name))
            return make(".tmp", f".{path.name}.{_writer(os.getpid())}.", str(path.parent))
        except OSError as error:
            if left and isinstance(error, FileNotFoundError):  # others remove empty folders
                continue
            raise UsageError(f"{path.parent}: cannot write here ({error.strerror}); choose another folder") from None
    raise AssertionError


def _writer(process: int) -> str:
    """Return the part of a temporary name that says who writes: the machine and the process."""
    return f"{hash_parts([platform.node()])[:6]}-{process}"


def remove_abandoned(folder: Path, name: str = "*") -> None:
    """Remove what killed processes of this machine left in a folder when they wrote files of such a name."""
    machine = _writer(0).removesuffix("0")
    for left in folder.glob(f".{name}.{machine}*"):
        process = left.name.rpartition(f".{machine}")[2].partition(".")[0]
        if left.suffix in {".tmp", ".old"} and process.isdecimal() and not _runs(int(process)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True
    return state[0] != "Z"  # dead, and its parent does not ask how it ended


def _refuse_full_disk(path: Path, error: Exception) -> None:
    """Refuse to go on without room; libraries that write files have errors of their own for that."""
    if is_full_disk(error) and not isinstance(error, UnimoeError):
        raise UsageError(
            f"{path}: cannot be written ({os.strerror(errno.ENOSPC)}); free room there, or choose another folder"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, with Unix line ends on every platform."""
    write_bytes(path, encoded(text))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write JSON atomically; NaN and infinity, which JSON lacks, raise ``ValueError``."""
    write_text(path, _json(value, indent) + "\n")


def write_sealed(path: Path, value: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write a JSON object atomically with a checksum, by which ``read_json`` knows that nothing in it has changed."""
    write_text(path, sealed(_json(value, indent)) + "\n")


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """Return plain data with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise ``ValueError`` if it is malformed or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; raise ``DataError`` with its name if it is absent, malformed, or no longer what was written."""
    try:
        return parse_json(unsealed(read_bytes(path), path).decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(
            f"{path}: not valid JSON ({error}); the file may be cut short, delete it and run again"
        ) from None


def read_model(path: Path, model: type[Model], mend: str) -> Model:
    """Read a JSON file into a pydantic model.

    Args:
        path: the file.
        model: the model.
        mend: what to do if the content does not fit the model, for the error.

    Raises:
        DataError: the file is absent or malformed, or does not fit; names the key.
    """
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise DataError(f"{path}: {where}{first['msg']}; {mend}") from None


def read_bytes(path: Path) -> bytes:
    """Read a file; raise ``DataError`` with its name if that fails."""
    with _named_errors(path):
        return path.read_bytes()


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files below a folder that match a pattern such as ``*/seed_*/logs/train.jsonl``, sorted.

    Unlike a glob it raises ``DataError`` for a folder that cannot be read: its content must not count as absent.
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
    """Append one record as one line with a checksum, in a single write."""
    ensure_dir(path.parent)
    line = sealed(_json(record)) + "\n"
    try:
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line)
    except OSError as error:
        _refuse_full_disk(path, error)
        raise


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
    with _named_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:HASH_LENGTH]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes, a file beside ``path``, while the block runs."""
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
    with _READING_UMASK:  # it can be read only by setting it, for all threads
        mask = os.umask(0)
        os.umask(mask)
        return mask
