"""Where a training of a translator is: enough to go on at the next epoch as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from unimoe.training.state_files import reading_state, refuse_other_fingerprint, write_state


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
    write_state(path, {"fingerprint": fingerprint, "progress": asdict(progress)}, tensors)


def load_state(path: Path, fingerprint: str) -> tuple[Progress, dict[str, dict[str, Tensor]]]:
    """Read a state; tensors are on the CPU.

    Raises:
        DataError: it is damaged, or of another training.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    with reading_state(path) as (about, tensors):
        refuse_other_fingerprint(path, fingerprint, about["fingerprint"])
        for name, tensor in tensors.items():
            part, _, own = name.partition(":")
            parts.setdefault(part, {})[own] = tensor
        return Progress(**about["progress"]), parts


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
