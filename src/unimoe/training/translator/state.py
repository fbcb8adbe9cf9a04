"""Where a training of a translator is: enough to go on at the next epoch as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unimoe.errors import DataError
from unimoe.io import atomic_path
from unimoe.training.heads.state import refuse_other


@dataclass
class Progress:
    """A training under way.

    Attributes:
        start_value: MRR on the validation images before the first step.
        best_value: the best so far.
        best_epoch: the epoch after which it was seen; 0 is before the first step.
        epoch: epochs done.
        steps: steps taken.
        seconds: time of the steps, without looks at the validation images.
        fired: how often each component had something to do.
    """

    start_value: float
    best_value: float
    best_epoch: int = 0
    epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    fired: dict[str, int] = field(default_factory=dict)


def save_state(path: Path, fingerprint: str, progress: Progress, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write a state atomically.

    Args:
        path: the file.
        fingerprint: of the training.
        progress: its numbers.
        parts: tensors by name, by what they belong to.
    """
    tensors = {f"{part}:{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    metadata = {"fingerprint": fingerprint, "progress": json.dumps(asdict(progress))}
    with atomic_path(path) as temporary:
        apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(apart, temporary, metadata)


def load_state(path: Path, fingerprint: str) -> tuple[Progress, dict[str, dict[str, Tensor]]]:
    """Read a state; tensors are on the CPU.

    Raises:
        DataError: it is damaged, or of another training.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 - not a mapping
                part, _, own = name.partition(":")
                parts.setdefault(part, {})[own] = file.get_tensor(name)
        refuse_other(path, fingerprint, metadata["fingerprint"])
        progress = Progress(**json.loads(metadata["progress"]))
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged training state ({error}); delete it to start over") from None
    return progress, parts


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's moments, named by the number of the parameter."""
    states = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, state in states.items() for name, tensor in state.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer with the same groups its moments back."""
    content = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict(content | {"state": state})
