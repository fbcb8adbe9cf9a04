"""Vectors that a server was paid for, kept as they come: a killed run asks for none of them again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from unimoe.core.io import atomic_path, hash_parts
from unimoe.models.embedder import Vectors

_KEPT_SECONDS = 14 * 24 * 3600


class KeptVectors:
    """The vectors of one model, a file for each request.

    Args:
        folder: holds nothing else. Files of two weeks ago are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for file in folder.glob("*.npy"):
            with suppress(FileNotFoundError):  # another process removes them too
                if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                    file.unlink()

    def read(self, texts: Sequence[str]) -> Vectors | None:
        """Return the vectors of a request's texts; None where it was not answered, or the file is damaged."""
        try:
            with self._file(texts).open("rb") as file:
                found: Vectors = np.load(file, allow_pickle=False)
                stated = file.read()
        except Exception:  # numpy evaluates the header, which raises errors of many kinds
            return None
        if stated and stated != _checksum(found):  # files of before end with the array
            return None
        return found if found.ndim == 2 and len(found) == len(texts) else None

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Keep the vectors of a request's texts."""
        with atomic_path(self._file(texts)) as path, path.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
            file.write(_checksum(vectors))

    def _file(self, texts: Sequence[str]) -> Path:
        return self._folder / f"{hash_parts(texts)}.npy"


def _checksum(vectors: Vectors) -> bytes:
    return hash_parts([str(vectors.dtype), str(vectors.shape), vectors.tobytes()]).encode()
