"""The manifest in the folder of a trained cross-encoder, and the settings that identify its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from unimoe.config.base import Section
from unimoe.core.errors import DataError
from unimoe.core.io import changed_file, read_json, write_json
from unimoe.models.model_files import weights_hash
from unimoe.results import TrainingBudget

MANIFEST = "unimoe.json"

_WITHOUT_EFFECT = {"name", "output_dir", "push_to_hub", "caveats"}


class CrossEncoderManifest(Section):
    """The manifest of a trained cross-encoder.

    Attributes:
        which: the best on dev, or the last where there was no dev set.
        base_model: identity of the base.
        fingerprint: content hash of everything that determined the training.
        weights_hash: content hash of the weights.
        files: content hash of each file of the model; empty in folders that were written without.
        dev: mean nDCG@10 on dev; None without dev sets.
        training: steps, lists and tokens.
        seconds: of steps and evaluations, those before a kill included up to the state that was resumed.
        config: the resolved configuration.
    """

    manifest_version: Literal[1] = 1
    arm: str
    seed: int
    which: Literal["best", "last"]
    base_model: str
    fingerprint: str
    weights_hash: str
    files: dict[str, str] = Field(default_factory=dict)
    dev: float | None
    training: TrainingBudget
    seconds: float
    config: dict[str, Any]


def determining(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a dumped configuration that determine the training."""
    settings = {key: value for key, value in config.items() if key not in _WITHOUT_EFFECT}
    evaluation = {key: value for key, value in config["evaluation"].items() if not key.startswith("test")}
    return settings | {"evaluation": evaluation}


def write_manifest(folder: Path, manifest: CrossEncoderManifest) -> None:
    """Write the manifest, which completes the folder."""
    write_json(folder / MANIFEST, manifest.model_dump())


def read_manifest(folder: Path) -> CrossEncoderManifest:
    """Read and verify the manifest of a trained cross-encoder.

    Raises:
        DataError: it is missing, damaged, or of other weights.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: incomplete cross-encoder, {MANIFEST} is missing; delete it and train again")
    manifest = read_json(path, CrossEncoderManifest, "train again with this unimoe")
    if weights_hash(folder) != manifest.weights_hash:
        raise DataError(f"{folder}: weights differ from their manifest (damaged or replaced); train again")
    if file := changed_file(folder, manifest.files):
        raise DataError(f"{file}: differs from the manifest (damaged or replaced); train again")
    return manifest
