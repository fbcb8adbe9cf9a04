"""A submission: translated captions as a CSV of two columns, ``id,embedding``, and the reader that checks one.

An embedding is a list of numbers with 17 significant digits in one quoted field, as JSON writes lists, so every float64
is read back exactly. Vectors are of unit length.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, InputError
from unimoe.core.io import atomic_path
from unimoe.studies.translator.data.caption_pairs import first_repeated

_HEADER = ["id", "embedding"]
_LONGEST_FIELD = 2**24
"""Characters of one embedding; csv's default of 131,072 is less than 6,000 numbers."""
_TOLERANCE = 1e-5
"""How far a length may be from 1, for float32 rounding."""


def write_submission(path: Path, ids: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
    """Normalise translated captions ``(N, D)`` and write them atomically, in the order of their ids.

    Raises:
        DataError: an id is empty or occurs twice, or there are not as many vectors as ids.
        InputError: a vector is zero or not finite; carries its index.
    """
    _check_ids(path, ids)
    if vectors.ndim != 2 or len(vectors) != len(ids):
        raise DataError(f"{path}: {len(ids):,} ids for vectors of shape {vectors.shape}; give a row for each id")
    doubles = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(doubles, axis=1, keepdims=True)
    bad = ~(np.isfinite(norms) & (norms > 0))[:, 0]
    if bad.any():
        raise InputError(int(bad.argmax()), "the vector is zero or not finite, so that it has no direction")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for key, vector, norm in zip(ids, doubles, norms, strict=True):
            writer.writerow([key, f"[{', '.join(f'{value:.17g}' for value in (vector / norm).tolist())}]"])


def read_submission(path: Path, dims: int | None = None) -> tuple[list[str], NDArray[np.float64]]:
    """Read ids and embeddings ``(N, D)``, and check every line.

    Args:
        path: the CSV file.
        dims: dimensions of every embedding; by default those of the first.

    Raises:
        DataError: a wrong header, a line without two fields, an embedding that is no list of finite numbers, has other
            dimensions or is not of unit length, or an id that is empty or occurs twice; names the line.
    """
    ids: list[str] = []
    rows: list[NDArray[np.float64]] = []
    for line, fields in _lines(path):
        if len(fields) != 2:
            raise DataError(f"{path}:{line}: {len(fields)} fields, a line has 2 (id, embedding); quote the embedding")
        vector = _vector(f"{path}:{line}", fields[1])
        wanted = dims if dims is not None else len(rows[0]) if rows else len(vector)
        if len(vector) != wanted:
            raise DataError(f"{path}:{line}: {len(vector)} dimensions, expected {wanted}; translate with one model")
        length = float(np.linalg.norm(vector))
        if abs(length - 1) > _TOLERANCE:
            raise DataError(
                f"{path}:{line}: the embedding of {fields[0]!r} has length {length:.6g}, not 1; normalise it"
            )
        ids.append(fields[0])
        rows.append(vector)
    if not rows:
        raise DataError(f"{path}: no captions; write the submission again")
    _check_ids(path, ids)
    return ids, np.stack(rows)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and fields of all lines after the header."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            if next(reader, None) != _HEADER:
                raise DataError(f"{path}:1: the header must be {','.join(_HEADER)}; write the submission again")
            yield from ((reader.line_num, fields) for fields in reader)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error}); write the submission again") from None


def _vector(place: str, text: str) -> NDArray[np.float64]:
    try:
        numbers = json.loads(text)
        vector = np.array(numbers, dtype=np.float64)
        listed = isinstance(numbers, list) and vector.ndim == 1 and vector.size > 0
        if not listed or any(isinstance(number, str) for number in numbers):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise DataError(f"{place}: the embedding is no list of numbers; write the submission again") from None
    if not np.isfinite(vector).all():
        raise DataError(f"{place}: a number of the embedding is not finite; translate the caption again")
    return vector


def _check_ids(path: Path, ids: Sequence[str]) -> None:
    if "" in ids:
        raise DataError(f"{path}: an id is empty; give every caption its own id")
    repeated = first_repeated(ids)
    if repeated is not None:
        raise DataError(f"{path}: id {repeated!r} occurs twice; give every caption its own id")
