"""Files that say where a training is: what is known about it, and the tensors it goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unimoe.checkpoint import first_difference
from unimoe.errors import DataError
from unimoe.io import atomic_path


def write_state(path: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a state atomically.

    Args:
        path: of the file, in safetensors' format.
        about: what is known, by name; anything JSON can say.
        tensors: what the training goes on with, by name.
    """
    metadata = {name: json.dumps(value) for name, value in about.items()}
    apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        safetensors.torch.save_file(apart, temporary, metadata)


@contextmanager
def reading_state(path: Path, device: torch.device | str = "cpu") -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """What ``write_state`` was given; a name that is missing or of no use within the ``with`` is damage too.

    Args:
        path: of the file.
        device: where the tensors are wanted.

    Raises:
        DataError: the state is damaged.
    """
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            about = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        yield about, tensors
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged training state ({error}); delete it to start over") from None


def refuse_other_settings(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse what a training with other settings has left.

    Args:
        path: of what it left.
        there: its settings, as JSON has them.
        here: those of this training.

    Raises:
        DataError: they differ; names the first that does.
    """
    found = first_difference(dict(there), json.loads(json.dumps(here)))
    if found:
        key, was, now = found
        raise DataError(
            f"{path} is of another training: {key} was {was!r} there and is {now!r} here; "
            "choose another output folder, or delete it to start over"
        )


def refuse_other_fingerprint(path: Path, here: str, there: str | None) -> None:
    """Refuse what another training has left.

    Raises:
        DataError: the fingerprints differ.
    """
    if here != there:
        raise DataError(
            f"{path} is of another training (config, data or encoder differ); choose another output_dir, "
            f"or delete {path.parent} to start over"
        )
