"""The protocol of the methods that train a head, their optimizer, and the gradient methods among them.

The gradient losses over the scores of pools are the baselines that evolution strategies are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from unimoe.config.losses import LOSSES
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.noise import generator
from unimoe.studies.heads.model import head_scores
from unimoe.studies.heads.pools import PoolBatch


class Method(Protocol):
    """Changes a head step by step; its state between steps is a set of tensors."""

    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
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
    """Steps of torch's SGD or AdamW up a gradient, with clipping; by default at the config's learning rate."""

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
    """Goes down a loss of the registry, which takes whole grades."""

    def __init__(self, config: TrainConfig, loss: str, learning_rate: float) -> None:
        self._config, self._name = config, loss
        self._ascent = Ascent(config, learning_rate)
        self.state, self.load_state = self._ascent.state, self._ascent.load_state

    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take a step down the loss; see ``Method``."""
        config, parameter = self._config, weight.detach().requires_grad_()
        ties = torch.Generator().manual_seed(int(generator("ties", config.seed, step).integers(2**31)))
        scores = head_scores(parameter, batch.queries, batch.documents, config.scoring)
        loss = head_loss(self._name, scores, batch.grades, batch.valid, config, ties)
        (gradient,) = torch.autograd.grad(loss, parameter)
        moved, norm = self._ascent.step(weight, -gradient)
        return moved, {"loss": float(loss.detach()), "grad_norm": norm}


def head_loss(
    name: str, scores: Tensor, grades: Tensor, valid: Tensor, config: TrainConfig, ties: torch.Generator
) -> Tensor:
    """Compute a loss of the registry over pools ``(B, P)``. Queries without a relevant document add nothing.

    ``ties`` shuffles documents of equal grade, where the loss needs an order: that of a pool means nothing. It also
    draws the rankings of ``pg_rank``.
    """
    from unimoe.training.losses.listwise import ListwiseLoss

    rows = ((grades > 0) & valid).any(1).nonzero().flatten().tolist()
    if not rows:
        return 0.0 * scores.sum()
    temperature, cutoff = config.temperature, config.ndcg_k
    kind = LOSSES[name]
    keys: dict[str, Any] = {"respect_input_order": False, "ties": "shuffle"} if "ties" in kind.model_fields else {}
    if name == "approxndcg":  # divides differences of scores, not the scores
        keys["temperature"], temperature = temperature, 1.0
    own: dict[str, dict[str, Any]] = {
        "lambdaloss": {"k": cutoff},
        "listnet": {"label_temperature": config.label_temperature},
        "pg_rank": {"measure": f"ndcg@{cutoff}"},
    }
    loss = kind.model_validate(keys | own.get(name, {}))
    found: Tensor = ListwiseLoss(loss, generator=ties)(
        [scores[row][valid[row]] / temperature for row in rows], [grades[row][valid[row]] for row in rows]
    )
    return found
