"""Counts the work of a model: the matrix products of its linear layers, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


@dataclass
class ProductCounter:
    """Counts floating-point operations; ``flop`` is 2 for each multiply-add of a linear layer's products."""

    flop: int = 0

    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(module, nn.Linear) or torch.compiler.is_compiling():
            return
        product = 2 * output.numel() * module.in_features
        self.flop += product
        if output.requires_grad:
            rows = inputs[0] if inputs else None  # given by name, it is not shown to the hook
            wanted = int(rows is None or rows.requires_grad) + int(module.weight.requires_grad)

            def after_backward(_: Tensor) -> None:
                self.flop += wanted * product

            output.register_hook(after_backward)  # counts a backward pass only if it runs


@contextmanager
def counted_products() -> Iterator[ProductCounter]:
    """Count the products of every linear layer that runs in the block, whatever its model.

    The products of attention are left out, and those of compiled layers (``evaluation.compile``).
    """
    counter = ProductCounter()
    handle = register_module_forward_hook(counter._after_forward)
    try:
        yield counter
    finally:
        handle.remove()
