"""Heads in float32 on models of lower precision, whose logits have 8 bits in bfloat16, and would tie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn


class AnswerHead(nn.Module):
    """Computes the float32 logits of a few tokens, in their order, as the output layer ``head`` of a model does."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: Any, tokens: Sequence[int]) -> None:
        super().__init__()
        rows, bias = list(tokens), getattr(head, "bias", None)
        self.register_buffer("weight", head.weight[rows].detach().float())
        self.register_buffer("bias", None if bias is None else bias[rows].detach().float())

    def forward(self, states: Tensor) -> Tensor:
        """Return logits ``(..., N)`` of states ``(..., H)``."""
        return nn.functional.linear(states.float(), self.weight, self.bias)


def compute_in_float32(module: nn.Module) -> None:
    """Give a module float32 weights, and cast to float32 what it is called with."""
    module.float().register_forward_pre_hook(lambda _, arguments: tuple(map(_float32, arguments)))


def _float32(value: Any) -> Any:
    if isinstance(value, Mapping):  # the features that modules of sentence-transformers pass on
        return {name: _float32(feature) for name, feature in value.items()}
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
