"""Files of tensors with a checksum, in safetensors' format."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unimoe.core.io import atomic_path, hash_parts

_CHECKSUM = "checksum"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write tensors and texts about them atomically, with a checksum of both."""
    kept = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    # As bytes: safetensors' own writer leaves a temporary file of its own behind when it is killed.
    content = safetensors.torch.save(kept, {**texts, _CHECKSUM: tensors_hash(kept, texts)})
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and the texts about them.

    Raises:
        OSError, SafetensorError: the file is missing, or damaged.
        ValueError: its checksum does not fit; files of other programs have none.
    """
    with safetensors.safe_open(path, "pt") as file:
        texts = dict(file.metadata() or {})
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    stated = texts.pop(_CHECKSUM, None)
    if stated is not None and stated != tensors_hash(tensors, texts):
        raise ValueError("its checksum does not fit")
    return tensors, texts


def tensors_hash(tensors: Mapping[str, Tensor], texts: Mapping[str, str] | None = None) -> str:
    """Return the content hash of tensors, and of texts about them, whatever their order."""
    contents = (
        (name, tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()) for name in sorted(tensors)
    )
    return hash_parts(chain.from_iterable(chain(sorted((texts or {}).items()), contents)))
