"""The checkpoints of an arm's training: adapter, manifest, model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from torch import Tensor

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config import Experiment
from unimoe.core.io import atomic_dir, hash_file, hash_json, write_text
from unimoe.models.checkpoint import (
    ADAPTER_FILE,
    ADAPTER_SETTINGS,
    Checkpoint,
    folder_name,
    read_checkpoint,
    training_settings,
    write_manifest,
)
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget, arm_dir
from unimoe.training.model_card import base_on_hub, model_card
from unimoe.training.run_state import RunState


class CheckpointManager:
    """Reads and writes the checkpoints of one training. All processes read, the leader writes.

    ``base`` is the identity of the base model, ``dtype`` that of the forward passes, ``data`` the content hash of the
    training texts and judgments. ``last`` and ``best``, that with the highest score on dev, are folders.
    """

    def __init__(
        self,
        experiment: Experiment,
        arm: str,
        seed: int,
        *,
        base: str,
        dtype: str,
        data: str,
        processes: Processes = ALONE,
    ) -> None:
        self._experiment, self._arm, self._seed, self._base, self._dtype = experiment, arm, seed, base, dtype
        folder = arm_dir(Path(experiment.output_dir), arm, seed)
        self.last, self.best = folder / folder_name("last"), folder / folder_name("best")
        settings = training_settings(experiment, arm, seed, base=base, dtype=dtype, data=data)
        self.state = RunState(folder, settings, hash_json(settings), processes)

    def is_finished(self) -> bool:
        """Return whether the last checkpoint exists; refuse one of another training, or without the best beside it."""
        if not self.last.exists():
            return False
        self._refuse_other(self.last)
        self.refuse_other_best(is_there=self._experiment.training.evaluate_every is not None)
        return True

    def refuse_other_best(self, *, is_there: bool = False) -> None:
        """Refuse a best checkpoint that is damaged or of another training, or missing where it must be there."""
        if is_there or self.best.exists():
            self._refuse_other(self.best)

    def save(
        self,
        which: Literal["best", "last"],
        seen: TrainingBudget,
        peft: Any,
        model: UnimodelForExp1,
        masters: Mapping[str, Tensor],
    ) -> None:
        """Write a checkpoint of a PEFT model and the model around it.

        ``seen`` is what it was trained on until now; ``masters`` are the float32 weights by name that its adapters are
        rounded copies of.
        """
        if not self.state.processes.leads:
            return
        with atomic_dir(self.last if which == "last" else self.best) as temporary:
            # Without False, "auto" would ask the hub whether embedding layers belong to the adapter.
            peft.save_pretrained(temporary, save_embedding_layers=False)
            _write_masters(temporary / ADAPTER_FILE, masters)
            _rewrite_settings(temporary / ADAPTER_SETTINGS, base_on_hub(self._experiment))
            checkpoint = Checkpoint(
                arm=self._arm,
                seed=self._seed,
                which=which,
                base_model=self._base,
                dtype=self._dtype,
                fingerprint=self.state.fingerprint,
                adapter_hash=hash_file(temporary / ADAPTER_FILE),
                settings_hash=hash_file(temporary / ADAPTER_SETTINGS),
                training=seen,
                config=self._experiment.model_dump(),
            )
            write_text(temporary / "README.md", model_card(checkpoint, model))
            write_manifest(temporary, checkpoint)

    def _refuse_other(self, folder: Path) -> None:
        found = read_checkpoint(folder)
        content = {"base": found.base_model, "dtype": found.dtype}
        settings = training_settings(found.experiment, found.arm, found.seed, **content)
        self.state.refuse_other(folder, found.fingerprint, settings)


def _write_masters(path: Path, masters: Mapping[str, Tensor]) -> None:
    """Put the float32 weights that were trained in place of the rounded copies that PEFT has just written."""
    rounded = safetensors.torch.load_file(path)
    weights = {name.replace(".default.", "."): value.contiguous() for name, value in masters.items()}
    if weights.keys() != rounded.keys():
        raise AssertionError(f"adapter names differ: {sorted(weights.keys() ^ rounded.keys())[:3]}")
    safetensors.torch.save_file(weights, path, {"format": "pt"})


def _rewrite_settings(path: Path, base: str) -> None:
    """Name the base model as others know it, not by its path on this machine, and sort what PEFT keeps as a set."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()
    write_text(path, json.dumps(config | {"base_model_name_or_path": base}, indent=2) + "\n")
