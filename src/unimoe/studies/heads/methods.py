"""The protocol of the methods that train a head, and the gradient methods among them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.chance import generator
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


class GradientMethod:
    """Goes down a loss of the registry by Adam or SGD.

    Args:
        config: temperature, optimizer, clipping, weight decay, cutoff.
        loss: a name of ``LOSSES`` or ``LISTWISE``.
        learning_rate: of the optimizer.
        weight: a head of the shape and on the device of the training.
    """

    def __init__(self, config: TrainConfig, loss: str, learning_rate: float, weight: Tensor) -> None:
        self._config, self._name = config, loss
        self._parameter = torch.nn.Parameter(weight.clone())
        kind = torch.optim.AdamW if config.optimizer == "adam" else torch.optim.SGD
        self._optimizer: torch.optim.Optimizer = kind(
            [self._parameter], lr=learning_rate, weight_decay=config.weight_decay
        )

    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step down the loss; see ``Method``."""
        config = self._config
        with torch.no_grad():
            self._parameter.copy_(weight)
        self._optimizer.zero_grad()
        scores = head_scores(self._parameter, batch.queries, batch.documents, config.scoring)
        loss = self._loss(scores, batch, step)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_([self._parameter], config.max_norm or float("inf"))
        self._optimizer.step()
        return self._parameter.detach().clone(), {"loss": float(loss.detach()), "grad_norm": float(norm)}

    def _loss(self, scores: Tensor, batch: Batch, step: int) -> Tensor:
        config = self._config
        ties = torch.Generator().manual_seed(int(generator("ties", config.seed, step).integers(2**31)))
        return head_loss(
            self._name, scores, batch.grades, batch.valid, config.temperature, config.ndcg_k, ties,
            config.label_temperature,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments."""
        kept = self._optimizer.state.get(self._parameter, {})
        return {name: value.clone() for name, value in kept.items() if isinstance(value, Tensor)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        if state:
            self._optimizer.state[self._parameter] = {name: value.clone() for name, value in state.items()}
