"""Where a training of a head is: enough to go on as if nothing had happened."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unimoe.errors import DataError
from unimoe.io import atomic_path


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
    metadata = {
        "fingerprint": fingerprint,
        "progress": json.dumps({name: getattr(progress, name) for name in _NUMBERS}),
    }
    with atomic_path(path) as temporary:
        apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(apart, temporary, metadata)


def load_state(path: Path, fingerprint: str, device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """Read a state.

    Raises:
        DataError: it is damaged, or of another training.
    """
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        refuse_other(path, fingerprint, metadata["fingerprint"])
        progress = Progress(tensors.pop("weight"), tensors.pop("best"), **json.loads(metadata["progress"]))
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged training state ({error}); delete it to start over") from None
    return progress, {name.removeprefix("method."): tensor for name, tensor in tensors.items()}


def refuse_other(path: Path, here: str, there: str | None) -> None:
    """Refuse what another training has left.

    Raises:
        DataError: the fingerprints differ.
    """
    if here != there:
        raise DataError(
            f"{path} is of another training (config, data or encoder differ); choose another output_dir, "
            f"or delete {path.parent} to start over"
        )
