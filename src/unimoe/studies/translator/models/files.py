"""Translators on disk, a folder with one safetensors file and a manifest that describes it; their submissions."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from unimoe.core.errors import DataError, InputError
from unimoe.core.io import atomic_dir, atomic_path, hash_file, read_json, write_json
from unimoe.studies.translator.models.translators import (
    LinearMap,
    NetworkTranslator,
    ProjectionPair,
    Translator,
    network_from,
)

TENSORS_FILE, MANIFEST_FILE = "translator.safetensors", "translator.json"

_CLOSED_FORMS: dict[str, type[LinearMap] | type[ProjectionPair]] = {
    "linear_map": LinearMap,
    "projection_pair": ProjectionPair,
}
_NETWORK = "network"


class Manifest(BaseModel):
    """What a translator's folder says about it.

    Attributes:
        kind: ``network``, ``linear_map`` or ``projection_pair``.
        settings: JSON that its maker wrote about it.
        notes: how it was made.
        tensors_hash: content hash of the tensors' file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    translator_version: Literal[1] = 1
    kind: str
    settings: dict[str, Any]
    notes: list[str]
    tensors_hash: str


def translator_tensors(translator: Translator) -> dict[str, NDArray[Any]]:
    """Return the arrays of a translator by name, as a file holds them."""
    if isinstance(translator, NetworkTranslator):
        return translator.tensors()
    return {name: array for name, array in vars(translator).items() if isinstance(array, np.ndarray)}


def save_translator(folder: Path, translator: Translator, settings: Mapping[str, Any]) -> None:
    """Write a translator with JSON about it.

    The folder is replaced as a whole: a crash leaves the old one, none or the new one.
    """
    kind = next((kind for kind, made in _CLOSED_FORMS.items() if isinstance(translator, made)), _NETWORK)
    with atomic_dir(folder) as temporary:
        file = temporary / TENSORS_FILE
        tensors = translator_tensors(translator)
        safetensors.numpy.save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, file)
        notes = list(translator.notes)
        manifest = Manifest(kind=kind, settings=dict(settings), notes=notes, tensors_hash=hash_file(file))
        write_json(temporary / MANIFEST_FILE, manifest.model_dump())


def read_manifest(folder: Path) -> Manifest:
    """Read a translator's manifest, and verify its tensors."""
    file, path = folder / TENSORS_FILE, folder / MANIFEST_FILE
    for part in (folder, file, path):
        if not part.exists():
            raise DataError(f"{folder}: not a whole translator, {part.name} is missing; train it")
    manifest = read_json(path, Manifest, "train it again with this unimoe")
    if hash_file(file) != manifest.tensors_hash:
        raise DataError(f"{file}: content differs from its manifest (damaged or replaced); train it again")
    return manifest


def load_translator(folder: Path, device: torch.device | None = None) -> Translator:
    """Load a translator of any kind; a network computes on ``device``, by default the CPU."""
    manifest, tensors = read_manifest(folder), safetensors.numpy.load_file(folder / TENSORS_FILE)
    try:
        if manifest.kind != _NETWORK:
            return _CLOSED_FORMS[manifest.kind](**tensors, notes=tuple(manifest.notes))
        network = network_from(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{folder}: no {manifest.kind} that this unimoe makes ({error}); train it again") from None
    network.notes = tuple(manifest.notes)
    return network.to(device or torch.device("cpu"))


def write_submission(path: Path, ids: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
    """Write translated captions ``(N, D)`` as a CSV of two columns, ``id,embedding``, in the order of their ids.

    An embedding, of unit length, is a list of numbers with 17 significant digits in one quoted field, as JSON writes
    lists, so every float64 is read back exactly.

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
