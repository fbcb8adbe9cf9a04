"""Translators on disk: a folder with one safetensors file and a manifest that describes it.

``save_translator`` and ``read_translator`` handle named tensors of any kind; ``save_closed_form`` and
``load_closed_form`` the results of the closed forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from unimoe.core.errors import DataError
from unimoe.core.io import atomic_dir, hash_file, read_json, write_json
from unimoe.studies.translator.models.interface import LinearMap, ProjectionPair

TENSORS_FILE, MANIFEST_FILE = "translator.safetensors", "translator.json"

_CLOSED_FORMS: dict[str, type[LinearMap] | type[ProjectionPair]] = {
    "linear_map": LinearMap,
    "projection_pair": ProjectionPair,
}


@dataclass(frozen=True)
class StoredTranslator:
    """The content of a translator's folder.

    Attributes:
        kind: what the tensors are; the reader checks it.
        tensors: by name.
        settings: JSON that its maker wrote about it.
        notes: how it was made.
        content_hash: of the tensors' file.
    """

    kind: str
    tensors: dict[str, NDArray[Any]]
    settings: dict[str, Any]
    notes: tuple[str, ...]
    content_hash: str


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    translator_version: Literal[1] = 1
    kind: str
    settings: dict[str, Any]
    notes: list[str]
    tensors_hash: str


def save_translator(
    folder: Path,
    kind: str,
    tensors: Mapping[str, NDArray[Any]],
    settings: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> str:
    """Write a translator and return the content hash of its tensors; see ``StoredTranslator`` for the arguments.

    The folder is replaced as a whole: a crash leaves the old one, none or the new one.
    """
    with atomic_dir(folder) as temporary:
        file = temporary / TENSORS_FILE
        safetensors.numpy.save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, file)
        manifest = _Manifest(kind=kind, settings=dict(settings), notes=list(notes), tensors_hash=hash_file(file))
        write_json(temporary / MANIFEST_FILE, manifest.model_dump())
    return manifest.tensors_hash


def read_translator(folder: Path) -> StoredTranslator:
    """Read and verify a translator.

    Raises:
        DataError: the folder is missing, half-written, damaged, or of another version.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such translator; train it first")
    file, path = folder / TENSORS_FILE, folder / MANIFEST_FILE
    for part in (file, path):
        if not part.is_file():
            raise DataError(f"{folder}: not a whole translator, {part.name} is missing; train it again")
    manifest = read_json(path, _Manifest, "train it again with this unimoe")
    if hash_file(file) != manifest.tensors_hash:
        raise DataError(f"{file}: content differs from its manifest (damaged or replaced); train it again")
    try:
        tensors = safetensors.numpy.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{file}: damaged ({error}); train it again") from None
    return StoredTranslator(manifest.kind, tensors, manifest.settings, tuple(manifest.notes), manifest.tensors_hash)


def save_closed_form(
    folder: Path, translator: LinearMap | ProjectionPair, settings: Mapping[str, Any] | None = None
) -> str:
    """Write a closed form's result with the settings it was made from, and return its content hash."""
    kind = next(kind for kind, made in _CLOSED_FORMS.items() if isinstance(translator, made))
    arrays = {field.name: getattr(translator, field.name) for field in fields(translator) if field.name != "notes"}
    tensors = {name: array for name, array in arrays.items() if array is not None}
    return save_translator(folder, kind, tensors, settings or {}, translator.notes)


def load_closed_form(folder: Path) -> LinearMap | ProjectionPair:
    """Read what ``save_closed_form`` wrote.

    Raises:
        DataError: it cannot be read, or is of another kind.
    """
    stored = read_translator(folder)
    if stored.kind not in _CLOSED_FORMS:
        kinds = " or ".join(_CLOSED_FORMS)
        raise DataError(f"{folder}: a translator of kind {stored.kind!r}, no closed form; use {kinds}")
    try:
        return _CLOSED_FORMS[stored.kind](**stored.tensors, notes=stored.notes)
    except TypeError:
        names = ", ".join(sorted(stored.tensors))
        raise DataError(f"{folder}: a {stored.kind} cannot be made of {names}; train it again") from None
