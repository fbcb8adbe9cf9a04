"""AdamW on float32 master copies of weights that compute in a smaller dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def learning_rate_at(step: int, steps: int, warmup: int, peak: float) -> float:
    """Linear warm-up over ``warmup`` steps, then linear decay to 0 after ``steps``; ``step`` counts from 0."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    return peak * (steps - step) / (steps - warmup)


class MasterAdamW:
    """AdamW whose updates are too small for bfloat16 to hold: it updates float32 masters and copies them back.

    Args:
        weights: the trainable parameters by name.
        weight_decay: decoupled, as in Loshchilov & Hutter 2019.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], weight_decay: float) -> None:
        self._weights = dict(weights)
        self.masters = {name: weight.detach().float().clone() for name, weight in weights.items()}
        self._adamw = torch.optim.AdamW(list(self.masters.values()), lr=0.0, weight_decay=weight_decay)

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Clip, update, copy back, and clear the gradients; returns the gradient's norm before clipping."""
        for name, weight in self._weights.items():
            self.masters[name].grad = (
                torch.zeros_like(self.masters[name]) if weight.grad is None else weight.grad.float()
            )
            weight.grad = None
        norm = nn.utils.clip_grad_norm_(list(self.masters.values()), max_grad_norm)
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        self._copy_back()
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as plain tensors."""
        tensors = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            tensors |= {f"{key}.{name}": value for key, value in self._adamw.state[master].items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        for name, master in self.masters.items():
            master.data.copy_(tensors[f"master.{name}"])
            if f"step.{name}" in tensors:  # absent before the first step
                self._adamw.state[master] = self._moments(name, master.device, tensors)
        self._copy_back()

    @staticmethod
    def _moments(name: str, device: torch.device, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        moments = {key: tensors[f"{key}.{name}"].to(device, copy=True) for key in ("exp_avg", "exp_avg_sq")}
        return {"step": tensors[f"step.{name}"].to("cpu", copy=True), **moments}  # AdamW counts steps on the CPU

    @torch.no_grad()
    def _copy_back(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self.masters[name])
