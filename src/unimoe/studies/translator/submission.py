"""A submission: translated captions as a CSV of two columns, ``id,embedding``.

An embedding is a list of numbers with 17 significant digits in one quoted field, as JSON writes lists, so every float64
is read back exactly. Vectors are of unit length.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, InputError
from unimoe.core.io import atomic_path
from unimoe.studies.translator.data.caption_pairs import first_repeated


def write_submission(path: Path, ids: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
    """Normalise translated captions ``(N, D)`` and write them atomically, in the order of their ids.

    Raises:
        DataError: an id is empty or occurs twice, or there are not as many vectors as ids.
        InputError: a vector is zero or not finite; carries its index.
    """
    if "" in ids:
        raise DataError(f"{path}: an id is empty; give every caption its own id")
    if (repeated := first_repeated(ids)) is not None:
        raise DataError(f"{path}: id {repeated!r} occurs twice; give every caption its own id")
    if vectors.ndim != 2 or len(vectors) != len(ids):
        raise DataError(f"{path}: {len(ids):,} ids for vectors of shape {vectors.shape}; give a row for each id")
    doubles = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(doubles, axis=1, keepdims=True)
    bad = ~(np.isfinite(norms) & (norms > 0))[:, 0]
    if bad.any():
        raise InputError(int(bad.argmax()), "the vector is zero or not finite, so that it has no direction")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "embedding"])
        for key, vector, norm in zip(ids, doubles, norms, strict=True):
            writer.writerow([key, f"[{', '.join(f'{value:.17g}' for value in (vector / norm).tolist())}]"])
