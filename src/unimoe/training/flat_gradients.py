"""The gradient of all adapters as one vector, in the order of layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class FlatGradients:
    """Reads and writes the gradients of the trainable parameters as one vector.

    Args:
        weights: the trainable parameters by name; each name holds its layer, ``....layers.15....``.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        of_layer: dict[int, list[nn.Parameter]] = {}
        for name, weight in weights.items():
            found = _LAYER.search(name)
            if not found:
                raise AssertionError(f"{name}: an adapter outside the layers")
            of_layer.setdefault(int(found[1]), []).append(weight)
        self.layers = sorted(of_layer)
        self._weights = [weight for layer in self.layers for weight in of_layer[layer]]
        self._sizes = [sum(weight.numel() for weight in of_layer[layer]) for layer in self.layers]

    def take(self) -> Tensor:
        """Return a copy of the accumulated gradients, float32 ``(P,)``, layer after layer; zero where there is none."""
        return torch.cat(
            [
                (torch.zeros_like(weight) if weight.grad is None else weight.grad).detach().float().flatten()
                for weight in self._weights
            ]
        )

    def put(self, flat: Tensor) -> None:
        """Replace the accumulated gradients by a vector of ``take``."""
        for weight, part in zip(self._weights, torch.split(flat, [w.numel() for w in self._weights]), strict=True):
            weight.grad = part.view_as(weight).to(weight.dtype)

    def clear(self) -> None:
        """Remove all gradients."""
        for weight in self._weights:
            weight.grad = None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Hide the gradients from backward passes within the block, and restore them after it."""
        kept = [weight.grad for weight in self._weights]
        self.clear()
        try:
            yield
        finally:
            for weight, gradient in zip(self._weights, kept, strict=True):
                weight.grad = gradient

    def dots(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the inner products of two vectors of ``take`` by layer, float64 ``(layers,)`` on the CPU."""
        parts = zip(torch.split(first, self._sizes), torch.split(second, self._sizes), strict=True)
        return torch.stack([(a.double() * b.double()).sum() for a, b in parts]).cpu()
