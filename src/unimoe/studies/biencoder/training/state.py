"""Where a training of a bi-encoder is: enough to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.training.state_files import reading_state, refuse_other_settings, write_state

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
    write_state(path, {"settings": settings, "progress": asdict(progress)}, tensors)


def load_state(path: Path, settings: dict[str, Any], device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """Read a state.

    Raises:
        DataError: it is damaged, or of another training, which names the setting that differs.
    """
    with reading_state(path, device) as (about, tensors):
        refuse_other_settings(path, about["settings"], settings)
        return Progress(**about["progress"]), tensors


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
