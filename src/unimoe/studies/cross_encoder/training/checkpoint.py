"""What the training of a cross-encoder leaves behind: its folder, and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from unimoe.checkpoint import first_difference
from unimoe.config.base import Section
from unimoe.errors import DataError
from unimoe.io import hash_json, read_json, read_model, write_json
from unimoe.results import TrainingBudget
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.model import weights_hash

MANIFEST = "unimoe.json"

_WITHOUT_INFLUENCE = {"name", "output_dir", "keep", "push_to_hub", "caveats"}


class CrossEncoderManifest(Section):
    """The manifest of a trained cross-encoder.

    Attributes:
        which: the best on dev, or the last where there was no dev set.
        base_model: identity of the base.
        fingerprint: content hash of everything that determined the training.
        weights_hash: content hash of the weights.
        dev: mean nDCG@10 on dev, null without dev sets.
        training: what the training took.
        seconds: of its steps and evaluations, by this process alone where it was resumed.
        config: the configuration as it was resolved.
    """

    manifest_version: Literal[1] = 1
    arm: str
    seed: int
    which: Literal["best", "last"]
    base_model: str
    fingerprint: str
    weights_hash: str
    dev: float | None
    training: TrainingBudget
    seconds: float
    config: dict[str, Any]


def determining(config: CrossEncoderConfig) -> dict[str, Any]:
    """The part of a configuration that determines the training."""
    settings = config.model_dump(exclude=_WITHOUT_INFLUENCE)
    for key in ("test", "test_queries"):
        del settings["evaluation"][key]
    return settings


def fingerprint_of(config: CrossEncoderConfig, **content: str) -> str:
    """Content hash of what determines a training: settings, and named hashes of data and base."""
    return hash_json([determining(config), content])


def write_manifest(folder: Path, manifest: CrossEncoderManifest) -> None:
    """Complete a folder; without the manifest it counts as half-written."""
    write_json(folder / MANIFEST, manifest.model_dump())


def read_manifest(folder: Path) -> CrossEncoderManifest:
    """Read and verify the manifest of a trained cross-encoder.

    Raises:
        DataError: it is missing, damaged, or of other weights.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: not a whole cross-encoder, {MANIFEST} is missing; delete it and train again")
    manifest = read_model(path, CrossEncoderManifest, "train again with this unimoe")
    if weights_hash(folder) != manifest.weights_hash:
        raise DataError(f"{folder}: weights differ from their manifest (damaged or replaced); train again")
    return manifest


def refuse_other_training(path: Path, settings: dict[str, Any], content: dict[str, str]) -> None:
    """Refuse to go on where another training has begun; where none has, note down this one.

    Args:
        path: the note.
        settings: what determines this training.
        content: named hashes of its data and base.

    Raises:
        DataError: the note is of another training; names what differs.
    """
    note = {"settings": settings, "content": content}
    if not path.exists():
        write_json(path, note)
        return
    there = read_json(path)
    if there == note:
        return
    key, was, now = first_difference(there["settings"], settings) or ("the data or the base model", "another", "this")
    raise DataError(
        f"{path.parent} is of another training ({key}: {was} there, {now} here); choose another output_dir or arm, or "
        "delete it"
    )
