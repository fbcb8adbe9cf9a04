"""Files of tensors with a checksum, in safetensors' format."""

from __future__ import annotations

from collections.abc import Mapping
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
    content = safetensors.torch.save(kept, {**texts, _CHECKSUM: _checksum(texts, kept)})
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
    if stated is not None and stated != _checksum(texts, tensors):
        raise ValueError("its checksum does not fit")
    return tensors, texts


def _checksum(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the content hash of texts and tensors, whatever their order."""
    parts: list[str | bytes] = [part for name in sorted(texts) for part in (name, texts[name])]
    for name in sorted(tensors):
        flat = tensors[name].cpu().reshape(-1).view(torch.uint8)
        parts += [name, flat.numpy().tobytes()]
    return hash_parts(parts)
