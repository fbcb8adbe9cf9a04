"""AdamW on float32 master copies of weights that compute in a smaller dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unimoe.config.training import Schedule
from unimoe.processes import ALONE, Processes


def learning_rate_at(step: int, steps: int, warmup: int, peak: float, schedule: Schedule = "linear") -> float:
    """The learning rate of one step.

    Args:
        step: from 0.
        steps: of the training.
        warmup: steps of warm-up, below ``steps``. It is linear from above 0, except in ``onecycle``.
        peak: the highest rate.
        schedule: what follows the warm-up: ``linear`` or ``cosine`` decay to 0 after ``steps``, or ``constant``.
            ``onecycle`` is ``torch.optim.lr_scheduler.OneCycleLR`` with its defaults, its rise over ``warmup`` steps.
    """
    if schedule == "onecycle":
        return _one_cycle(step, steps, warmup, peak)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    if schedule == "cosine":
        return _cosine(peak, 0.0, (step - warmup) / (steps - warmup))
    return peak * (steps - step) / (steps - warmup)


def _one_cycle(step: int, steps: int, warmup: int, peak: float) -> float:
    """Smith & Topin 2018, as torch has it: from a 25th of the peak up to it, then down to a 250,000th."""
    low = peak / 25
    if step < warmup:
        return _cosine(low, peak, step / (warmup - 1)) if warmup > 1 else peak
    return _cosine(peak, low / 1e4, (step + 1 - warmup) / (steps - warmup))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


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
        """Clip, update, copy back, and clear the gradients; returns the gradient's norm before clipping.

        Where the norm is not finite nothing is updated: the weights stay what they were.
        """
        for name, weight in self._weights.items():
            self.masters[name].grad = (
                torch.zeros_like(self.masters[name]) if weight.grad is None else weight.grad.float()
            )
            weight.grad = None
        norm = nn.utils.clip_grad_norm_(list(self.masters.values()), max_grad_norm)
        if not bool(norm.isfinite()):
            return float(norm)
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


def sum_gradients(weights: Iterable[nn.Parameter], processes: Processes = ALONE) -> None:
    """Give all processes the sum of their gradients, of parameters that all of them have in the same order.

    Each has the gradient of its own share of the batch; without one it counts as 0. They travel as one float32 vector.
    """
    if processes.size == 1:
        return
    weights = list(weights)
    flat = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    total = processes.total(torch.cat([grad.float().flatten() for grad in flat]).cpu())
    for weight, part in zip(weights, torch.split(total, [weight.numel() for weight in weights]), strict=True):
        weight.grad = part.view_as(weight).to(weight)
