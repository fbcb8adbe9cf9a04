"""The protocol of the methods that train a head, their optimizer, and the gradient methods among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.noise import generator
from unimoe.studies.heads.losses import head_loss
from unimoe.studies.heads.model import head_scores
from unimoe.studies.heads.pools import Batch


class Method(Protocol):
    """Changes a head step by step; its state between steps is a set of tensors."""

    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take one step.

        Args:
            weight: the head ``(D_out, D)``; not changed.
            batch: queries with their pools.
            step: counted from 0.

        Returns:
            The new head, and facts to log, ``loss`` or ``fitness`` among them.
        """

    def state(self) -> dict[str, Tensor]:
        """Return all that the next step depends on besides the head."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""


class Ascent:
    """Steps of torch's SGD or AdamW up a gradient, with clipping.

    Args:
        config: ``optimizer``, ``max_norm`` and ``weight_decay`` are used.
        learning_rate: of every step; by default the config's.
    """

    def __init__(self, config: TrainConfig, learning_rate: float | None = None) -> None:
        self._max_norm, self._parameter = config.max_norm, torch.nn.Parameter(torch.empty(0))
        kind = torch.optim.AdamW if config.optimizer == "adam" else torch.optim.SGD
        self._optimizer: torch.optim.Optimizer = kind(
            [self._parameter], lr=learning_rate or config.learning_rate, weight_decay=config.weight_decay, maximize=True
        )

    @torch.no_grad()
    def step(self, weight: Tensor, gradient: Tensor) -> tuple[Tensor, float]:
        """Return the weight after a step, and the gradient's norm before clipping."""
        norm = float(torch.linalg.vector_norm(gradient))
        if self._max_norm is not None and norm > self._max_norm:
            gradient = gradient * (self._max_norm / norm)
        moved = weight.clone()
        self._parameter.data, self._parameter.grad = moved, gradient  # the optimizer works on this memory
        self._optimizer.step()
        return moved, norm

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments."""
        kept = self._optimizer.state[self._parameter]
        return {name: value.clone() for name, value in kept.items() if isinstance(value, Tensor)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        # On a GPU, torch would wait for the number of steps if it were there.
        kept = {name: value.cpu() if name == "step" else value.clone() for name, value in state.items()}
        self._optimizer.state[self._parameter] = kept


class GradientMethod:
    """Goes down a loss of the registry.

    Args:
        config: temperature, optimizer, clipping, weight decay, cutoff.
        loss: a name of ``LOSSES`` or ``LISTWISE``.
        learning_rate: of the optimizer.
    """

    def __init__(self, config: TrainConfig, loss: str, learning_rate: float) -> None:
        self._config, self._name = config, loss
        self._ascent = Ascent(config, learning_rate)
        self.state, self.load_state = self._ascent.state, self._ascent.load_state

    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step down the loss; see ``Method``."""
        config, parameter = self._config, weight.detach().requires_grad_()
        ties = torch.Generator().manual_seed(int(generator("ties", config.seed, step).integers(2**31)))
        scores = head_scores(parameter, batch.queries, batch.documents, config.scoring)
        loss = head_loss(
            self._name, scores, batch.grades, batch.valid, config.temperature, config.ndcg_k, ties,
            config.label_temperature,
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(loss, parameter)
        moved, norm = self._ascent.step(weight, -gradient)
        return moved, {"loss": float(loss.detach()), "grad_norm": norm}
