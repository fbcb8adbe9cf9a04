"""Where a training of an arm is: enough to go on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimoe.errors import DataError
from unimoe.io import write_text
from unimoe.training.state_files import reading_state, refuse_other_settings, write_state


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
    write_state(path, {"settings": settings, "progress": asdict(progress)}, tensors)


def load_state(path: Path, settings: Mapping[str, Any], device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """Read a state.

    Raises:
        DataError: it is damaged, or of a training with other settings; names the first.
    """
    with reading_state(path, device) as (about, tensors):
        refuse_other_settings(path, about["settings"], settings)
        return Progress(**about["progress"]), tensors


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
