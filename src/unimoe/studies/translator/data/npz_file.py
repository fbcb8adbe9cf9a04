"""An NPZ file read array by array, with errors that name file and key. Nothing is ever unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unimoe.core.errors import DataError

_BYTES_AT_ONCE = 2**24
"""Read at once of a one-hot matrix, which as a whole can take gigabytes."""


class NpzFile:
    """An NPZ file; ``keys`` names its arrays, which are read only on request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as file:
                self.keys = {name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")}
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DataError(f"{path}: no NPZ file ({error}); write it with numpy.savez") from None

    def read(self, key: str) -> NDArray[Any]:
        """Read a whole array."""
        self.shape(key)
        with self._named_errors(key), np.load(self.path, allow_pickle=False) as file:
            array: NDArray[Any] = file[key]
        return array

    def whole_number(self, key: str) -> int:
        """Read an array of one whole number."""
        array = self.read(key)
        if array.size != 1 or array.dtype.kind not in "iuf" or not float(array.item()).is_integer():
            raise DataError(f"{self.path}: {key} must be one whole number; save it again")
        return int(array.item())

    def texts(self, key: str) -> list[str]:
        """Read an array of ids; numbers become text."""
        array = self.read(key)
        if array.ndim != 1 or array.dtype.kind not in "USiu":
            raise DataError(f"{self.path}: {key} has shape {array.shape} and type {array.dtype}; it must list ids")
        if array.dtype.kind == "S":
            try:
                return [bytes(value).decode() for value in array.tolist()]
            except UnicodeDecodeError:
                raise DataError(f"{self.path}: {key} is not UTF-8; save it again as text") from None
        return [str(value) for value in array.tolist()]

    def shape(self, key: str) -> tuple[int, ...]:
        """Read the shape of an array without its content; the header must state as many bytes as the file holds."""
        with self._opened(key) as (stream, size):
            shape, _, dtype = _header(stream)
            if not dtype.hasobject and math.prod(shape) * dtype.itemsize != size - stream.tell():
                raise ValueError(f"its header states the shape {shape}, and it has another size")
            return shape

    def column_of_one(self, key: str) -> NDArray[np.int64]:
        """Return the column of the one in each row of a one-hot matrix, -1 for a row with none or several."""
        with self._opened(key) as (stream, _):
            (rows, columns), fortran, dtype = _header(stream)
            if fortran or dtype.hasobject:
                return _column_of_one(self.read(key))
            step = max(1, _BYTES_AT_ONCE // max(1, columns * dtype.itemsize))
            found = []
            for begin in range(0, rows, step):
                count = min(step, rows - begin)
                data = stream.read(count * columns * dtype.itemsize)
                if len(data) < count * columns * dtype.itemsize:
                    raise DataError(f"{self.path}: {key} is cut short; write the file again")
                found.append(_column_of_one(np.frombuffer(data, dtype).reshape(count, columns)))
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[IO[bytes], int]]:
        """Open an array, and return the bytes that it has with its header."""
        with self._named_errors(key), zipfile.ZipFile(self.path) as file, file.open(f"{key}.npy") as stream:
            yield stream, file.getinfo(f"{key}.npy").file_size

    @contextmanager
    def _named_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # zipfile and numpy raise errors of many kinds: encrypted, unknown, bad headers
            if "allow_pickle" in str(error):
                raise DataError(
                    f"{self.path}: {key} is an array of Python objects, which only unpickling could read; "
                    "save it again after .astype(str), or as numbers"
                ) from None
            raise DataError(f"{self.path}: {key} is damaged ({error}); write the file again") from None


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and type of an array in NPY format."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype


def _column_of_one(labels: NDArray[Any]) -> NDArray[np.int64]:
    marked = labels != 0
    columns: NDArray[np.int64] = np.where(marked.sum(1) == 1, marked.argmax(1), -1)
    return columns
