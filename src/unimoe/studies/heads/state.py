"""Where a training of a head is: enough to go on as if nothing had happened."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from unimoe.training.state_files import reading_state, refuse_other_fingerprint, write_state


@dataclass
class Progress:
    """A training under way.

    Attributes:
        weight: the head after ``step`` steps.
        best: the best head on dev so far.
        best_value: its main metric on dev.
        start_value: that of the head before training.
        best_step: the step it was seen at; 0 is the head before training.
        step: steps taken.
        seconds: time of the steps, without looks at dev.
        facts: what the last step logged.
    """

    weight: Tensor
    best: Tensor
    best_value: float
    start_value: float
    best_step: int = 0
    step: int = 0
    seconds: float = 0.0
    facts: dict[str, float] = field(default_factory=dict)


_NUMBERS = tuple(entry.name for entry in fields(Progress) if entry.name not in ("weight", "best"))


def save_state(path: Path, fingerprint: str, progress: Progress, method: dict[str, Tensor]) -> None:
    """Write a state atomically: progress, and what the method keeps between steps."""
    tensors = {f"method.{name}": tensor for name, tensor in method.items()}
    tensors |= {"weight": progress.weight, "best": progress.best}
    numbers = {name: getattr(progress, name) for name in _NUMBERS}
    write_state(path, {"fingerprint": fingerprint, "progress": numbers}, tensors)


def load_state(path: Path, fingerprint: str, device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """Read a state.

    Raises:
        DataError: it is damaged, or of another training.
    """
    with reading_state(path, device) as (about, tensors):
        refuse_other_fingerprint(path, fingerprint, about["fingerprint"])
        progress = Progress(tensors.pop("weight"), tensors.pop("best"), **about["progress"])
    return progress, {name.removeprefix("method."): tensor for name, tensor in tensors.items()}
