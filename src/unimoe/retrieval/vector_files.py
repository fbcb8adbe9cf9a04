"""Files of vectors: ``.npy``, mapped instead of read, with a checksum that can be extended row by row."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import atomic_path

Storage = Literal["float32", "float16"]
Vectors = NDArray[np.floating]
MappedVectors = np.memmap[Any, np.dtype[Any]]

_CHECKED_BYTES = 2**24


def allocate_vectors(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> MappedVectors:
    """Make a file of zeros and reserve its room on the disk now, so that it is not missing hours later."""
    with atomic_path(path) as temporary:
        try:
            np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
            if sys.platform == "linux":
                with temporary.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
        except OSError as error:
            size = shape[0] * shape[1] * dtype.itemsize / 1e9
            raise UsageError(
                f"{path}: no room for {size:.1f} GB of vectors ({error.strerror}); free space, or choose another folder"
            ) from None
    return map_vectors(path, shape, dtype.name, mode="r+")


def map_vectors(
    path: Path, shape: tuple[int, int] | None = None, storage: str | None = None, mode: Literal["r", "r+"] = "r"
) -> MappedVectors:
    """Map a file of vectors ``(N, D)``, float32 or float16.

    Raises:
        DataError: the file is missing, cut short, or holds something else, or another shape or storage than expected.
    """
    try:
        vectors = np.load(path, mmap_mode=mode, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; encode the corpus again") from None
    except Exception as error:  # numpy evaluates the header, which raises errors of many kinds
        raise DataError(f"{path}: not a whole .npy file ({error}); delete it and encode again") from None
    kind = str(getattr(vectors, "dtype", "no array"))
    if kind not in {"float32", "float16"} or vectors.ndim != 2 or kind != (storage or kind):
        raise DataError(f"{path}: holds {kind} of shape {getattr(vectors, 'shape', ())}, no vectors; encode again")
    if shape is not None and vectors.shape != shape:
        raise DataError(f"{path}: {vectors.shape} values instead of {shape}; delete it and encode again")
    mapped: MappedVectors = vectors
    return mapped


def checksum_of_rows(vectors: Vectors, rows: NDArray[np.int64]) -> int:
    """Return the ``checksum`` of some rows of a file, read a part at a time; ascending rows are read fastest."""
    step = max(1, _CHECKED_BYTES // (vectors.shape[1] * vectors.itemsize))
    parts: Iterator[NDArray[np.int64]] = (rows[begin : begin + step] for begin in range(0, len(rows), step))
    return sum(checksum(np.asarray(vectors[part]), part) for part in parts) % 2**64


def checksum(vectors: Vectors, rows: NDArray[np.int64]) -> int:
    """Return a sum over rows, which can be extended in any order. Odd weights let every changed value change it."""
    bits = np.ascontiguousarray(vectors).view(f"u{vectors.itemsize}").astype(np.uint64)
    weights = np.arange(vectors.shape[1], dtype=np.uint64) * 2 + 1
    return int(((bits @ weights) * (rows.astype(np.uint64) * 2 + 1)).sum())
