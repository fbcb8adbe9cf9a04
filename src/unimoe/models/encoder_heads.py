"""What makes one vector of a text's token states: pooling, then the Dense and Normalize of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from unimoe.errors import DataError
from unimoe.models.encoder_files import Pooling, read_settings
from unimoe.models.quiet import first_line

Head = Callable[[Tensor], Tensor]
"""A module behind the pooling, on float32 vectors ``(N, D)``."""

_KNOWN = {
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "use_residual": (None, False),
}
"""Settings of a Dense that would change vectors, and the values that do not."""


def dense(folder: Path, device: torch.device) -> Head:
    """A Dense module of sentence-transformers: a linear layer and an activation.

    Raises:
        DataError: it has more than these, or its weights are missing.
    """
    path = folder / "config.json"
    settings = read_settings(path)
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _activation(name)
    if activation is None:
        raise DataError(f"{path}: activation {name} is not supported; use another encoder")
    for key, known in _KNOWN.items():
        if settings.get(key) not in known:
            raise DataError(f"{path}: {key} {settings[key]!r} is not supported; use another encoder")
    weights = {name: tensor.float().to(device) for name, tensor in _read_weights(folder / "model.safetensors").items()}
    if "linear.weight" not in weights or (settings.get("bias", True) and "linear.bias" not in weights):
        raise DataError(f"{folder / 'model.safetensors'}: no linear.weight or linear.bias; save the model anew")
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    return lambda vectors: activation(nn.functional.linear(vectors, weight, bias))


def _activation(name: str) -> Head | None:
    """An activation of torch by its dotted name; null for what is none, or wants arguments."""
    kind = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return None
    try:
        return cast(Head, kind())
    except TypeError:
        return None


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(path)
    except Exception as error:  # safetensors has errors of its own kinds beside those of the system
        raise DataError(f"{path}: cannot be read ({first_line(error)}); save the model anew") from None
    return weights


def normalize(vectors: Tensor) -> Tensor:
    """Unit length, ``(N, D)``; a vector of zeros stays one."""
    return nn.functional.normalize(vectors, dim=-1)


def pool(states: Tensor, lengths: Sequence[int], pooling: Pooling) -> Tensor:
    """One float32 vector of each text, ``(N, H)``, out of the states of all tokens ``(T, H)``."""
    counts = torch.tensor(lengths, device=states.device)
    if pooling == "mean":
        return torch.segment_reduce(states.float(), "mean", lengths=counts)
    ends = counts.cumsum(0)
    return states[ends - counts if pooling == "cls" else ends - 1].float()
