"""The manifest in the folder of a trained cross-encoder, and the settings that identify its training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from unimoe.config.base import Section
from unimoe.core.errors import DataError
from unimoe.core.io import Strict, changed_file, hash_bytes, hash_files, read_bytes, read_json, write_json
from unimoe.models.model_files import weights_hash
from unimoe.results import TrainingBudget

MANIFEST = "unimoe.json"
_STATE = "trainer_state.json"

_WITHOUT_EFFECT = {"name", "output_dir", "keep", "push_to_hub", "caveats"}


class _Files(Strict):
    files: dict[str, str]
    seconds: float = 0.0


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


def seal_state(folder: Path, seconds: float) -> None:
    """Write the hashes of all files of a state that the trainer has saved, and the training's seconds so far."""
    write_json(folder / MANIFEST, {"files": _hashes(folder), "seconds": seconds})


def seconds_of(state: Path) -> float:
    """Return the training's seconds until a state; 0 where it was written without."""
    path = state / MANIFEST
    return read_json(path, _Files).seconds if path.exists() else 0.0


def last_state(work: Path) -> Path | None:
    """Return the newest complete state in a folder; incomplete ones, which a killed run may leave, are removed.

    Raises:
        DataError: one has changed. The trainer may need an older one too, the best on dev.
    """
    whole = []
    for folder in work.glob("checkpoint-*"):
        stated = read_json(folder / MANIFEST, _Files).files if (folder / MANIFEST).exists() else {}
        there = _hashes(folder)
        if changed := [name for name in stated if there.get(name, stated[name]) != stated[name]]:
            raise DataError(f"{folder / changed[0]}: was changed after it was written; delete {work} to start over")
        if stated.keys() <= there.keys() and _is_json(folder / _STATE):  # the trainer writes it last
            whole.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return max(whole, key=step_of, default=None)


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of a state's files, without the path of its folder, which is another on another machine."""
    hashes = hash_files(folder, but=[MANIFEST])
    if _STATE in hashes:
        hashes[_STATE] = hash_bytes(read_bytes(folder / _STATE).replace(str(folder.parent).encode(), b""))
    return hashes


def _is_json(path: Path) -> bool:
    try:
        read_json(path, dict[str, Any])
    except DataError:
        return False
    return True


def step_of(state: Path) -> int:
    """Return the step after which a state was saved."""
    return int(state.name.rpartition("-")[2])
