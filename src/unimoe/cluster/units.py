"""Finished units of work in a store: a folder, a bucket, or anything else that fsspec writes to.

A unit is finished when its object exists, which is written whole or not at all. Its name is a hash of all that it was
computed from, so that two runs that write the same unit do not harm each other.
"""

from __future__ import annotations

import errno
import json
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import checked_json

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds for which a store may be out of reach."""

_LONGEST_PAUSE = 30.0
_REMEDIES: dict[object, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free room there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "allow this user to read and write there"),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP),
        "make room for a folder there",
    ),
    **dict.fromkeys(  # by name: the clients of S3 and Google's store may not be installed
        ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError"),
        "set the keys of this store in the environment, on every machine",
    ),
}
"""What to do about errors that do not pass, by number or by the class's name."""


class UnitStore:
    """Objects below a URL such as ``outputs/store`` or ``s3://bucket/folder``; ``shown`` is it without a password.

    A request is repeated for ``patience`` seconds while the store is out of reach.
    """

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.url, self._patience = url, patience
        self.shown = re.sub(r"://[^/\s]*@", "://***@", url)
        try:
            import fsspec

            self._files, root = fsspec.url_to_fs(url)
        except Exception as error:  # clients that connect at once have errors of their own kinds
            raise UsageError(
                f"--store {self.shown}: no client for such a store ({_in_words(error, url)}); give a folder, "
                f"s3://BUCKET/FOLDER ({install_extra('cluster')}), or install the fsspec client it names"
            ) from None
        self._root = root.rstrip("/")
        self._is_folder = "file" in self._files.protocol  # a name, or several

    def keys(self, scope: str) -> set[str]:
        """Return the names of the objects of a scope."""

        def listed() -> list[str]:
            self._files.invalidate_cache()
            found: list[str] = self._files.ls(f"{self._root}/{scope}", detail=False)
            return found

        names: list[str] = []
        with suppress(FileNotFoundError):
            names = [path.rpartition("/")[2] for path in self._patiently(listed)]
        return {name for name in names if not name.startswith(".")}

    def read(self, scope: str, key: str) -> bytes | None:
        """Return an object's content; None where there is none."""
        with suppress(FileNotFoundError):
            content: bytes = self._patiently(lambda: self._files.cat_file(f"{self._root}/{scope}/{key}"))
            return content
        return None

    def content(self, scope: str, key: str) -> bytes:
        """Return an object's content; a ``DataError`` says that there is none."""
        found = self.read(scope, key)
        if found is None:
            raise DataError(f"{self.shown}/{scope}/{key} is missing: run again")
        return found

    def write(self, scope: str, key: str, content: bytes) -> None:
        """Write an object."""
        path = f"{self._root}/{scope}/{key}"

        def put() -> None:
            if not self._is_folder:
                self._files.pipe_file(path, content)  # one request: readers see all of it or nothing
                return
            # Two machines may write one unit at a time, so each has a temporary file of its own.
            temporary = Path(path).with_name(f".{key}.{uuid.uuid4().hex}.tmp")
            temporary.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

        try:
            self._patiently(put)
        except FileNotFoundError as error:
            said = _in_words(error, self.url)
            raise UsageError(f"{self.shown}: {said}; make the bucket, or give another --store") from None

    def write_json(self, scope: str, key: str, value: Any) -> None:
        """Write JSON values as an object."""
        self.write(scope, key, json.dumps(value, allow_nan=False).encode())

    def read_json(self, scope: str, key: str, kind: type[T]) -> T | None:
        """Return the JSON of an object as a value of a type; None where there is no object."""
        body = self.read(scope, key)
        return None if body is None else self.checked(scope, key, partial(checked_json, body, kind))

    def checked(self, scope: str, key: str, read: Callable[[], T]) -> T:
        """Return what is read from an object's content; a ``DataError`` names an object that holds something else."""
        try:
            return read()
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            why = " ".join(str(error).split())[:200] if type(error) is ValueError else "it holds something else"
            where = f"{self.shown}/{scope}/{key}"
            raise DataError(f"{where} is damaged or of another version ({why}): delete it, and run again") from None

    def _patiently(self, request: Callable[[], T]) -> T:
        """Repeat a request until the store answers, or patience ends."""
        begun, pause = time.monotonic(), 0.5
        while True:
            try:
                return request()
            except FileNotFoundError:
                raise
            except Exception as error:  # every client has errors of its own kind
                said = _in_words(error, self.url)
                number = errno.EACCES if isinstance(error, PermissionError) else getattr(error, "errno", None)
                if remedy := _REMEDIES.get(number) or _REMEDIES.get(type(error).__name__):
                    raise UsageError(f"{self.shown}: {said}; {remedy}, or give another --store") from None
                if time.monotonic() - begun + pause > self._patience:
                    raise UsageError(
                        f"{self.shown}: out of reach for {self._patience:.0f} s ({said}); run the same "
                        "command again when it answers, what is finished is kept"
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _in_words(error: BaseException, url: str) -> str:
    """Return an error in a line, without what the store's URL holds before its host."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    before = re.search(r"://([^/\s]*)@", url)
    for secret in before[1].split(":", 1) if before else ():
        text = text.replace(secret, "***") if len(secret) > 3 else text
    return text[:200]
