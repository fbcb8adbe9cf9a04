"""Where a training of an arm is: enough to go on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unimoe.checkpoint import first_difference
from unimoe.errors import DataError
from unimoe.io import atomic_path, write_text


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: steps taken.
        tokens: seen in them.
        best_score: the best on dev so far; null before the first evaluation.
        best_step: the steps that had been taken then.
        waited: evaluations since without a better one.
    """

    step: int = 0
    tokens: int = 0
    best_score: float | None = None
    best_step: int = 0
    waited: int = 0

    def note(self, score: float) -> bool:
        """Take notice of a score on dev; returns whether it is the best so far. The earlier of equal ones is."""
        if self.best_score is not None and score <= self.best_score:
            self.waited += 1
            return False
        self.best_score, self.best_step, self.waited = score, self.step, 0
        return True


def save_state(path: Path, settings: Mapping[str, Any], progress: Progress, tensors: Mapping[str, Tensor]) -> None:
    """Write a state atomically.

    Args:
        path: of the file.
        settings: all that determines the training, as ``training_settings`` gives it.
        progress: how far it is.
        tensors: what it goes on with.
    """
    metadata = {"settings": json.dumps(settings), "progress": json.dumps(asdict(progress))}
    with atomic_path(path) as temporary:
        safetensors.torch.save_file(dict(tensors), temporary, metadata)


def load_state(path: Path, settings: Mapping[str, Any], device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """Read a state.

    Raises:
        DataError: it is damaged, or of a training with other settings; names the first.
    """
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        there, progress = json.loads(metadata["settings"]), Progress(**json.loads(metadata["progress"]))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged training state ({error}); delete it to start over") from None
    refuse_other(path, there, settings)
    return progress, tensors


def refuse_other(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse what a training with other settings has left.

    Args:
        path: of what it left.
        there: its settings.
        here: those of this training.

    Raises:
        DataError: they differ; names the first that does.
    """
    found = first_difference(dict(there), json.loads(json.dumps(here)))
    if found:
        key, was, now = found
        raise DataError(
            f"{path} is of another training: {key} was {was!r} there and is {now!r} here; "
            "choose another --output-dir, or delete it to start over"
        )


def cut_log(path: Path, step: int) -> None:
    """Keep the lines of a log about the steps taken so far, as those after a saved state are taken again.

    Raises:
        DataError: a line is no record of a step; names file and line.
    """
    if not path.exists():
        return
    kept = []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # a killed run may leave a line without an end
    for number, line in enumerate(lines, start=1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(f"{line}\n")
        except (ValueError, TypeError, KeyError):
            raise DataError(f"{path}:{number}: not a record of a step; remove the line") from None
    write_text(path, "".join(kept))
