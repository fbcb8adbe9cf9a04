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


def write_submission(path: Path, ids: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
    """Normalise translated captions ``(N, D)`` and write them atomically, in the order of their ids.

    Raises:
        DataError: an id is empty.
        InputError: a vector is zero or not finite; carries its index.
    """
    if "" in ids:
        raise DataError(f"{path}: an id is empty; give every caption its own id")
    doubles = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(doubles, axis=1, keepdims=True)
    bad = ~(np.isfinite(norms) & (norms > 0))[:, 0]
    if bad.any():
        raise InputError(int(bad.argmax()), "the vector is zero or not finite, so that it has no direction")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "embedding"])
        for key, vector in zip(ids, doubles / norms, strict=True):
            writer.writerow([key, f"[{', '.join(f'{value:.17g}' for value in vector.tolist())}]"])
