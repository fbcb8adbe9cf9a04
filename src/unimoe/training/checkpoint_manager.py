"""What a training of an arm keeps in its folder: logs, the state it goes on from, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unimoe.checkpoint import folder_name, read_checkpoint, training_fingerprint, training_settings
from unimoe.config import Experiment
from unimoe.errors import DataError, UsageError
from unimoe.io import append_jsonl
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.processes import ALONE, Processes
from unimoe.results import TrainingBudget, arm_dir
from unimoe.training.saving import save_checkpoint
from unimoe.training.state import Progress, cut_log, load_state, save_state
from unimoe.training.state_files import refuse_other_settings
from unimoe.training.tracking import Log, trackers


class CheckpointManager:
    """The folder of one training. All processes read, the leader writes.

    Args:
        experiment: what is trained, and on what.
        arm: one of its arms.
        seed: of the training.
        base: identity of the base model.
        dtype: what the training computes in.
        data: content hash of the training texts and judgments.
        processes: those that train together.

    Attributes:
        last: folder of the last checkpoint.
        best: folder of the one that scored highest on dev.
        log_path: a line per step.
        dev_log_path: a line per evaluation on dev.
        conflict_log_path: of a joint arm.
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
        self._experiment, self._arm, self._seed, self._processes = experiment, arm, seed, processes
        self._base, self._dtype, self._data = base, dtype, data
        folder = arm_dir(Path(experiment.output_dir), arm, seed)
        self.last, self.best = folder / folder_name("last"), folder / folder_name("best")
        self._state = folder / "state.safetensors"
        self._logs = folder / "logs"
        self.log_path, self.dev_log_path = self._logs / "train.jsonl", self._logs / "dev.jsonl"
        self.conflict_log_path = self._logs / "gradient_conflicts.jsonl"
        self._settings = training_settings(experiment, arm, seed, base=base, dtype=dtype, data=data)
        self._fingerprint = training_fingerprint(experiment, arm, seed, base=base, dtype=dtype, data=data)

    def is_finished(self) -> bool:
        """Whether the checkpoint of this very training is there.

        Raises:
            DataError: it is of another, or the best one beside it is missing.
        """
        if not self.last.exists():
            return False
        self._refuse_other_checkpoint(self.last)
        if self._experiment.training.evaluate_every:
            self._refuse_other_checkpoint(self.best)
        return True

    def refuse_anything_there(self) -> None:
        """Refuse what a training has left: nothing is replaced unasked.

        Raises:
            UsageError: there is something.
        """
        for path in (self.last, self.best, self._state):
            if path.exists():
                raise UsageError(f"{path} exists; --resume goes on from it, or delete it to start over")

    def go_back(self, device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
        """The saved state, empty where there is none; what was logged after it is forgotten.

        Raises:
            DataError: state or best checkpoint are damaged, or of another training.
        """
        progress = Progress()
        tensors: dict[str, Tensor] = {}
        if self._state.exists():
            progress, tensors = load_state(self._state, self._settings, device)
        if self.best.exists() or progress.best_step:
            self._refuse_other_checkpoint(self.best)
        self._processes.leader_says(True)  # all have read before one writes
        if self._processes.leads:
            for path in (self.log_path, self.dev_log_path, self.conflict_log_path):
                cut_log(path, progress.step)
        return progress, tensors

    def save_state(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Write what a killed run needs to go on from here."""
        if self._processes.leads:
            save_state(self._state, self._settings, progress, tensors)

    def save_checkpoint(
        self,
        which: Literal["best", "last"],
        seen: TrainingBudget,
        peft: Any,
        model: UnimodelForExp1,
        masters: Mapping[str, Tensor],
    ) -> None:
        """Write a checkpoint; the state goes with the last one.

        Args:
            which: of the two.
            seen: in training until now.
            peft: the PEFT model in training.
            model: the model around it.
            masters: the float32 weights.
        """
        if not self._processes.leads:
            return
        manifest = {
            "arm": self._arm,
            "seed": self._seed,
            "which": which,
            "base_model": self._base,
            "dtype": self._dtype,
            "fingerprint": self._fingerprint,
            "training": seen,
            "config": self._experiment.model_dump(),
        }
        save_checkpoint(self.last if which == "last" else self.best, manifest, peft, model, masters)
        if which == "last":
            self._state.unlink(missing_ok=True)

    def log(self, path: Path, record: Mapping[str, Any]) -> None:
        """Append a line to one of the logs."""
        if self._processes.leads:
            append_jsonl(path, dict(record))

    def trackers(self, step: int) -> AbstractContextManager[Log]:
        """Where the log is shown besides its file, while a block runs, for a training that has taken ``step`` steps."""
        return trackers(
            self._experiment.training.tracking if self._processes.leads else [],
            self._logs,
            run=f"{self._experiment.name}-{self._arm}-seed{self._seed}",
            identity=self._fingerprint,
            step=step,
            config=self._experiment.model_dump(),
        )

    def _refuse_other_checkpoint(self, folder: Path) -> None:
        found = read_checkpoint(folder)
        if found.fingerprint == self._fingerprint:
            return
        content = {"base": found.base_model, "dtype": found.dtype, "data": self._data}
        settings = training_settings(found.experiment, found.arm, found.seed, **content)
        refuse_other_settings(folder, settings, self._settings)
        raise DataError(
            f"{folder} is of another training: its training texts or judgments were others; choose another "
            "--output-dir, or delete it to start over"
        )
