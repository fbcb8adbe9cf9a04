"""LoRA's linear layers with one pass over their output in place of three.

PEFT writes the product with the up-projection, scales it, and adds it to the frozen layer's output. On a CPU these
passes over memory take longer than the products, forward and backward. Here the narrow states between the projections
are scaled, and the product is added as it is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn


def quicken_lora(model: nn.Module) -> None:
    """Make the adapted layers of a PEFT model add their products in one pass; weights and names do not change."""
    for module in model.modules():
        if type(module) is Linear and not module.lora_variant and not any(module.lora_bias.values()):
            module.__class__ = QuickLora
            for up in module.lora_B.values():
                up.__class__ = _AddedProduct


class QuickLora(Linear):
    """PEFT's linear layer with adapters; what it computes differs in rounding alone."""

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        """Compute what PEFT's layer does."""
        if self.disable_adapters or self.merged or options or not self._is_plain(x):
            found: Tensor = super().forward(x, *args, **options)
        else:
            name = next(name for name in self.active_adapters if name in self.lora_A)
            narrow = self.lora_A[name](self.lora_dropout[name](x)) * self.scaling[name]
            found = self.lora_B[name](narrow, self.base_layer(x, *args))
        return found

    def _is_plain(self, x: Tensor) -> bool:
        """Return whether one adapter is active, and everything has one dtype."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        weights = [self.base_layer.weight, *(self.lora_A[name].weight for name in names)]
        return len(names) == 1 and all(weight.dtype == x.dtype for weight in weights)


class _AddedProduct(nn.Linear):
    """A linear layer without bias that can add its product to given outputs."""

    def forward(self, input: Tensor, onto: Tensor | None = None) -> Tensor:
        """Return the product ``(..., out)``, or its sum with ``onto``."""
        if onto is None:
            return super().forward(input)
        return torch.addmm(onto.flatten(0, -2), input.flatten(0, -2), self.weight.T).view(onto.shape)
