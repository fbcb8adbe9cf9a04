"""Where a training of a bi-encoder is: enough to go on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from unimoe.checkpoint import first_difference
from unimoe.errors import DataError
from unimoe.io import atomic_path

_ADAMW = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """A training under way.

    Attributes:
        step: optimizer steps taken.
        pairs: training pairs seen.
        tokens: tokens seen, padding not counted; 0 where the base is frozen.
        start: the metric on dev before training.
        val: the best since then.
        epoch: the epoch after which it was seen; 0 is before training.
        seconds: of the steps, without looks at dev.
        dtype: of the forward passes; a resumed training keeps it, whatever the probe says then.
    """

    step: int = 0
    pairs: int = 0
    tokens: int = 0
    start: float = 0.0
    val: float = 0.0
    epoch: int = 0
    seconds: float = 0.0
    dtype: str = "float32"


def save_state(path: Path, settings: dict[str, Any], progress: Progress, tensors: dict[str, Tensor]) -> None:
    """Write a state atomically: progress, and the tensors that the trainer keeps between steps."""
    metadata = {"settings": json.dumps(settings), "progress": json.dumps(asdict(progress))}
    apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        safetensors.torch.save_file(apart, temporary, metadata)


def load_state(path: Path, settings: dict[str, Any], device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """Read a state.

    Raises:
        DataError: it is damaged, or of another training, which names the setting that differs.
    """
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            there = json.loads(metadata["settings"])
            progress = Progress(**json.loads(metadata["progress"]))
            refuse_other(path, there, settings)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged training state ({error}); delete it to start over") from None
    return progress, tensors


def state_tensors(weights: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The trained weights and what AdamW keeps of each."""
    tensors: dict[str, Tensor] = {f"weight.{name}": weight for name, weight in weights.items()}
    for name, weight in weights.items():
        tensors |= {f"{key}.{name}": value for key, value in optimizer.state[weight].items()}
    return tensors


def load_tensors(
    tensors: Mapping[str, Tensor], weights: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """Put back what ``state_tensors`` took."""
    for name, weight in weights.items():
        weight.data.copy_(tensors[f"weight.{name}"])
        kept = {key: tensors[f"{key}.{name}"] for key in _ADAMW if f"{key}.{name}" in tensors}
        optimizer.state[weight] = kept | ({"step": kept["step"].cpu()} if kept else {})


def refuse_other(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse what another training has left.

    Raises:
        DataError: a setting differs; names it.
    """
    differing = first_difference(there, here)
    if differing is not None:
        key, before, now = differing
        raise DataError(
            f"{path} is of another training ({key}: {before} there, {now} here); choose another output_dir, or delete "
            f"{path.parent} to start over"
        )
