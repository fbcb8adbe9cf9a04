"""Checkpoints of trained arms: PEFT adapter folders with a manifest. Training writes them, evaluation reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unimoe.config import Experiment
from unimoe.config.base import Name, without_authority
from unimoe.config.files import parse_config
from unimoe.core.advice import run_command
from unimoe.core.errors import DataError
from unimoe.core.io import hash_file, hash_json, read_json, write_json
from unimoe.models.identity import ADAPTER_SETTINGS
from unimoe.results import TrainingBudget, arm_dir

ADAPTER_FILE = "adapter_model.safetensors"

MANIFEST = "unimoe.json"

WITHOUT_EFFECT = (
    *("save_every", "tracking", "conflicts", "token_budget", "batch_size", "activation_checkpointing"),
    "drop_shared",  # the content hash of the examples says what it did
)
"""Settings of a training that do not change its weights, or only round them."""


class Checkpoint(BaseModel):
    """The manifest of a checkpoint folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    checkpoint_version: Literal[1] = 1
    arm: Name
    seed: int
    which: Literal["best", "last"]
    base_model: str
    # of the training; evaluation uses the same unless the config sets another
    dtype: Annotated[str, Field(pattern="^(float32|bfloat16|float16)$")]
    fingerprint: str  # content hash of all that determines the weights; equal fingerprints, equal trainings
    adapter_hash: str  # of the adapter's weights
    settings_hash: str | None = None  # of the adapter's settings; checkpoints of before have none
    training: TrainingBudget
    config: dict[str, Any]

    @property
    def experiment(self) -> Experiment:
        """The configuration the arm was trained with, without authority: nobody knows who made the checkpoint."""
        return self._parsed(without_authority(self.config))

    @property
    def recorded(self) -> Experiment:
        """The whole configuration the arm was trained with, to be compared; nothing is loaded by it."""
        return self._parsed(self.config)

    def _parsed(self, config: dict[str, Any]) -> Experiment:
        return parse_config(Experiment, config, source=f"checkpoint of {self.arm}, seed {self.seed}")

    @property
    def ranks(self) -> bool:
        """Whether the arm was trained to rank."""
        return self.experiment.arm_named(self.arm).task != "emb_only"

    @property
    def embeds(self) -> bool:
        """Whether the arm was trained to embed."""
        return self.experiment.arm_named(self.arm).task != "rank_only"


def folder_name(which: Literal["best", "last"]) -> str:
    """Return the name of a checkpoint's folder in the arm's folder."""
    return "checkpoint" if which == "last" else "checkpoint-best"


def judged_checkpoint(experiment: Experiment, arm: str, seed: int) -> Path:
    """Return the folder of the checkpoint that is evaluated: the best on dev; the last without evaluations on dev."""
    name = folder_name("best" if experiment.training.evaluate_every else "last")
    return arm_dir(Path(experiment.output_dir), arm, seed) / name


def training_settings(experiment: Experiment, arm: str, seed: int, **content: str) -> dict[str, Any]:
    """Return what determines a training's weights as plain data: config, arm, seed, and content hashes by name."""
    relevant = experiment.model_dump(include={"model", "prompt", "lora", "training"})
    relevant["prompt"] = experiment.prompt.settings
    relevant["model"].pop("pooling")  # of an encoder, which no arm is
    for neutral in WITHOUT_EFFECT:
        relevant["training"].pop(neutral, None)
    relevant["evaluation"] = {"bm25": experiment.evaluation.bm25.model_dump()}  # negatives come from BM25
    relevant["arms"] = {arm: experiment.arm_named(arm).model_dump()}
    return relevant | {"seed": seed} | content


def training_fingerprint(experiment: Experiment, arm: str, seed: int, **content: str) -> str:
    """Return the content hash of ``training_settings``."""
    return hash_json(training_settings(experiment, arm, seed, **content))


def first_difference(there: Any, here: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """Return the first setting that differs: its path in the config and both values; None if all are equal."""
    if isinstance(there, dict) and isinstance(here, dict):
        inner = (
            first_difference(there.get(name), here.get(name), f"{key}.{name}" if key else name)
            for name in sorted(there.keys() | here.keys())
        )
        return next(filter(None, inner), None)
    return None if there == here else (key, there, here)


def write_manifest(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the manifest, which completes a checkpoint folder."""
    write_json(folder / MANIFEST, checkpoint.model_dump())


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify the manifest of a checkpoint folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such checkpoint folder; train the arm first: {run_command('train')}")
    adapter, manifest = folder / ADAPTER_FILE, folder / MANIFEST
    if (folder / "modules.json").is_file():
        raise DataError(
            f"{folder}: a model of sentence-transformers, no arm's adapter; if it is an encoder, use "
            f"`unimoe retrieve --encoder {folder}`"
        )
    if not manifest.is_file() or not adapter.is_file():
        missing = manifest.name if not manifest.is_file() else adapter.name
        raise DataError(f"{folder}: not a whole checkpoint, {missing} is missing; train the arm again")
    checkpoint = read_json(manifest, Checkpoint, "train the arm again with this unimoe")
    expected = {adapter: checkpoint.adapter_hash, folder / ADAPTER_SETTINGS: checkpoint.settings_hash}
    for path, content in expected.items():
        if content is not None and hash_file(path) != content:
            raise DataError(f"{path}: content differs from its manifest (damaged or replaced); train the arm again")
    return checkpoint
