"""Ways to combine the two tasks of a joint arm in one step: weights of the losses, or surgery on the gradients.

Every method starts from the losses weighted by ``ranking_weight``. Where the gradients do not conflict, PCGrad and
Ortho-LoRA take the step of ``fixed``; so does GradVac while their cosine is not below its running mean. CAGrad's
step lies ``cagrad_c`` times the length of that one away from it, with or without a conflict. Learned weights need not
sum to 1: they grow as the losses fall. So a learning rate need not mean the same in two methods, and dev chooses it for
each. The baseline is ``fixed`` with a weight chosen on dev: Kurin et al. 2022 found that such tuned weights match
surgery.

Surgery computes two coefficients from the Gramian of the two gradients, over all adapters or in each matrix. UPGrad
(Quinton & Rey 2024) is left out: for two tasks its steps are PCGrad's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torchjd.aggregation import GradVacWeighting, PCGradWeighting

from unimoe.config.training import ArmConfig

TrainingTask = Literal["ranking", "embedding"]
TASKS: tuple[TrainingTask, TrainingTask] = ("ranking", "embedding")

_STATIONARY = 1e-4
"""Share of the gradients' joint length below which a mixture counts as zero, as in torchjd."""


class Aggregation:
    """``fixed``: the weighted sum of the two losses; the embedding loss has what ``ranking_weight`` leaves."""

    def __init__(self, ranking_weight: float) -> None:
        self._ranking_weight = ranking_weight

    @property
    def weights(self) -> dict[TrainingTask, float]:
        """Weights of the losses in the next step."""
        return {"ranking": self._ranking_weight, "embedding": 1 - self._ranking_weight}

    def learn(self, losses: Mapping[TrainingTask, float]) -> None:
        """Learn from a step's unweighted losses."""

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed training needs, as plain tensors."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""


class Uncertainty(Aggregation):
    """Learns the weights with the model: ``exp(-s) * loss + s / 2`` for each task, where ``s`` is its log-variance.

    The weights start as those of ``fixed``; the log-variances follow Adam. A weight goes to half the inverse of its
    loss, so that the sum of both moves away from 1.

    Source: Kendall, Gal & Cipolla 2018, equation 10, for two cross-entropies.
    """

    def __init__(self, ranking_weight: float, learning_rate: float) -> None:
        super().__init__(ranking_weight)
        start = [-math.log(weight) for weight in super().weights.values()]
        self._log_variances = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        self._adam = torch.optim.Adam([self._log_variances], lr=learning_rate)

    @property
    def weights(self) -> dict[TrainingTask, float]:
        """Weights of the losses in the next step."""
        return dict(zip(TASKS, (-self._log_variances.detach()).exp().tolist(), strict=True))

    def learn(self, losses: Mapping[TrainingTask, float]) -> None:
        """Move the log-variances down the gradient of ``exp(-s) * loss + s / 2``."""
        loss = torch.tensor([losses[task] for task in TASKS], dtype=torch.float64)
        self._log_variances.grad = 0.5 - (-self._log_variances.detach()).exp() * loss
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed training needs, as plain tensors."""
        return {"log_variances": self._log_variances.detach(), **self._adam.state[self._log_variances]}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        on_cpu = {key: value.to("cpu", copy=True) for key, value in tensors.items()}
        self._log_variances.data.copy_(on_cpu.pop("log_variances"))
        self._adam.state[self._log_variances] = dict(on_cpu)


class Surgery(Aggregation):
    """Combines the two weighted gradients with a coefficient for each.

    ``weighting`` gives the coefficients for a Gramian scaled to trace 1: only angles and the ratio of lengths matter.

    Attributes:
        by_matrix: every adapter matrix has coefficients of its own, A and B apart, so that matrices that conflict do
            not hide behind others that agree; else all have the same.
    """

    def __init__(self, ranking_weight: float, weighting: nn.Module, *, by_matrix: bool = False) -> None:
        super().__init__(ranking_weight)
        self._weighting, self.by_matrix = weighting, by_matrix

    def coefficients(self, gramian: Tensor) -> tuple[float, float]:
        """Return the coefficients of the weighted gradients of ranking and embedding.

        The Gramian has their inner products, float64 ``(2, 2)``, ranking first.
        """
        size = gramian.trace()
        if not bool(gramian.isfinite().all()) or size <= 0:  # the step is then that of ``fixed``
            return 1.0, 1.0
        ranking, embedding = self._weighting(gramian.cpu() / size.cpu()).tolist()
        return ranking, embedding

    def state(self) -> dict[str, Tensor]:
        """Return the running mean of GradVac; other methods have none."""
        return dict(self._weighting.state_dict())

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        if tensors:
            self._weighting(torch.eye(2, dtype=torch.float64))  # the running mean exists from the first call on
            self._weighting.load_state_dict({key: value.cpu() for key, value in tensors.items()})


class CAGradWeighting(nn.Module):
    """Takes, among steps near the mean gradient, the best for the task that gains least (Liu et al. 2021).

    torchjd uses a general solver for the weights. For two tasks they have a closed form. The radius is added without a
    conflict too: gradients that are equal give ``1 + c`` times their sum. ``c`` is the radius around the mean gradient,
    as a share of its length.
    """

    def __init__(self, c: float) -> None:
        super().__init__()
        self._c = c

    def forward(self, gramian: Tensor) -> Tensor:
        """Return the coefficients of the two gradients."""
        mean = torch.full((2,), 0.5, dtype=gramian.dtype)
        if self._c == 0:
            return 2 * mean
        radius = self._c * (mean @ gramian @ mean).clamp(min=0).sqrt()
        worst = _worst_mixture(gramian, float(radius))
        length = (worst @ gramian @ worst).clamp(min=0).sqrt()
        if length <= _STATIONARY:  # no direction helps both tasks
            return torch.zeros_like(mean)
        return 2 * (mean + radius / length * worst)  # twice, for the sum in place of the mean


def _worst_mixture(gramian: Tensor, radius: float) -> Tensor:
    """Return the mixture ``g = x g_1 + (1 - x) g_2`` of the least ``g . g_0 + radius |g|``, ``g_0`` being the mean.

    Along the difference ``d`` of the gradients, ``g`` has the coordinate ``y`` and a constant distance ``p`` from
    that line. The derivative ``|d| (g_0 . d / |d| + radius y / sqrt(y^2 + p^2))`` is 0 at one ``y`` or nowhere.
    """
    (first, product), (_, second) = gramian.tolist()
    squared = first + second - 2 * product
    if squared <= 0:  # equal gradients: every mixture is the same
        return torch.full((2,), 0.5, dtype=gramian.dtype)
    slope = (first - second) / 2 / math.sqrt(squared)
    start = (product - second) / math.sqrt(squared)
    if radius <= abs(slope):
        x = 0.0 if slope > 0 else 1.0
    else:
        sine = -slope / radius
        distance = math.sqrt(max(0.0, second - start**2))
        x = (sine * distance / math.sqrt(1 - sine**2) - start) / math.sqrt(squared)
    x = min(1.0, max(0.0, x))
    return torch.tensor([x, 1 - x], dtype=gramian.dtype)


def make_aggregation(arm: ArmConfig) -> Aggregation:
    """Return the method of an arm, at its start: of a specialist, its one loss as it is."""
    weight = float(arm.task == "rank_only") if arm.ranking_weight is None else arm.ranking_weight
    match arm.aggregation:
        case "uncertainty":
            return Uncertainty(weight, arm.uncertainty_learning_rate)
        case "pcgrad":  # removes from each gradient its component against the other (Yu et al. 2020)
            return Surgery(weight, PCGradWeighting())
        case "ortho_lora":  # the same in each matrix (Yang et al. 2026); of two tasks, the order does not matter
            return Surgery(weight, PCGradWeighting(), by_matrix=True)
        case "gradvac":  # raises the cosine to its running mean wherever it is lower (Wang et al. 2021)
            return Surgery(weight, GradVacWeighting(beta=arm.gradvac_beta))
        case "cagrad":
            return Surgery(weight, CAGradWeighting(arm.cagrad_c))
        case _:
            return Aggregation(weight)
