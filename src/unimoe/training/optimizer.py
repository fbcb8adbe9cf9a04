"""AdamW on float32 master copies of weights that compute in a smaller dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unimoe.config.training import Schedule


def learning_rates(steps: int, warmup: int, peak: float, schedule: Schedule = "linear") -> list[float]:
    """Return the learning rate of each step, by transformers' schedules or by ``onecycle``.

    The ``warmup`` steps are fewer than ``steps``. ``onecycle`` is ``torch.optim.lr_scheduler.OneCycleLR`` with its
    defaults, its rise over the warm-up (Smith & Topin 2018).
    """
    from transformers import get_scheduler

    if schedule != "onecycle":
        name = "constant_with_warmup" if schedule == "constant" else schedule
        unused = torch.optim.SGD([torch.zeros(1)])
        # transformers takes its first step at a rate of 0: a schedule of one step more begins with its second.
        (share,) = get_scheduler(name, unused, warmup + 1, steps + 1).lr_lambdas
        return [peak * share(step + 1) for step in range(steps)]
    low = peak / 25  # torch has no closed form, and fails at a warm-up of one step
    rise = [_cosine(low, peak, step / (warmup - 1)) if warmup > 1 else peak for step in range(warmup)]
    return rise + [_cosine(peak, low / 1e4, (step + 1) / (steps - warmup)) for step in range(steps - warmup)]


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


class MasterAdamW:
    """Updates float32 masters and copies them back: bfloat16 weights cannot hold AdamW's small updates."""

    def __init__(self, weights: Mapping[str, nn.Parameter], weight_decay: float) -> None:
        self._weights = dict(weights)
        self.masters = {name: weight.detach().float().clone() for name, weight in weights.items()}
        self._adamw = torch.optim.AdamW(list(self.masters.values()), lr=0.0, weight_decay=weight_decay)

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Clip, update, copy back, and clear the gradients; return the gradient's norm before clipping.

        If the norm is not finite, the weights stay unchanged.
        """
        for name, weight in self._weights.items():
            master = self.masters[name]
            master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float()
            weight.grad = None
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), max_grad_norm))
        if not math.isfinite(norm):
            return norm
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        self._copy_back()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return the masters and AdamW's moments, as plain tensors."""
        masters = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        return masters | optimizer_tensors(self._adamw)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for name, master in self.masters.items():
            master.data.copy_(tensors[f"master.{name}"])
        moments = {name: tensor for name, tensor in tensors.items() if not name.startswith("master.")}
        restore_optimizer(self._adamw, moments)
        self._copy_back()

    @torch.no_grad()
    def _copy_back(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self.masters[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments, named ``NUMBER.MOMENT`` by the number of their parameter."""
    states = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, state in states.items() for name, tensor in state.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` returned, read to the CPU, where AdamW counts its steps."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor.clone()
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
