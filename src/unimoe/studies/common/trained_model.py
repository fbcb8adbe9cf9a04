"""The manifest in the folder of a trained model of sentence-transformers: what it is, and the hashes of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from unimoe.config.base import Section
from unimoe.core.errors import DataError
from unimoe.core.io import changed_file, hash_files, hash_parts, read_json, write_json
from unimoe.results import TrainingBudget

MANIFEST = "unimoe.json"


class TrainedModel(Section):
    """What the manifests of all trained models say.

    Attributes:
        which: the best on dev, or the last.
        base_model: identity of the base, ``id@hash``.
        fingerprint: content hash of everything that determined the training.
        weights_hash: content hash of the weights in the folder.
        files: content hash of each file of the model.
        training: steps, examples and tokens.
        config: the configuration of the training.
    """

    arm: str
    seed: int
    which: Literal["best", "last"]
    base_model: str
    fingerprint: str
    weights_hash: str
    files: dict[str, str]
    training: TrainingBudget
    config: dict[str, Any]


T = TypeVar("T", bound=TrainedModel)


def write_trained(folder: Path, kind: type[T], **fields: Any) -> T:
    """Write the manifest of the model in a folder, which completes it; ``fields`` lack the hashes of its files."""
    files = hash_files(folder, but=["README.md"])
    weights = hash_parts(content for name, content in files.items() if name.endswith(".safetensors"))
    manifest = kind(**fields, weights_hash=weights, files=files)
    write_json(folder / MANIFEST, manifest.model_dump())
    return manifest


def read_trained(folder: Path, kind: type[T], name: str) -> T:
    """Read and verify the manifest of a kind of model, which messages name.

    Raises:
        DataError: it is missing, damaged, of another kind, or of other files.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no whole {name}, {MANIFEST} is missing; delete it and train again")
    manifest = read_json(path, kind, "train again with this unimoe")
    if file := changed_file(folder, manifest.files):
        raise DataError(f"{file}: differs from the manifest (damaged or replaced); train again")
    return manifest
