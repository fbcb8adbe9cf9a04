"""How a joint arm makes one step of two tasks: weights of the losses, or surgery on their gradients.

Every method starts from the losses weighted by ``ranking_weight`` and keeps the scale of their sum: where it has
nothing to change, its step is that of ``fixed``. So the learning rate means the same in all of them, and what a method
has to beat is ``fixed`` with a weight chosen on dev: Kurin et al. 2022 found that such tuned weights match surgery.

The surgeries decide by the Gramian of the two gradients over all adapters alone, and leave two coefficients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torchjd.aggregation import GradVacWeighting, PCGradWeighting, UPGradWeighting, Weighting
from torchjd.linalg import DualConeProjector, PSDMatrix

from unimoe.config.training import ArmConfig

Task = Literal["ranking", "embedding"]
TASKS: tuple[Task, Task] = ("ranking", "embedding")

_STATIONARY = 1e-4
"""Of the gradients' joint length: a mixture shorter than that counts as zero, as in torchjd."""


class Aggregation:
    """``fixed``: the weighted sum of the two losses.

    Args:
        ranking_weight: of the ranking loss; the embedding loss has the rest.
    """

    def __init__(self, ranking_weight: float) -> None:
        self._ranking_weight = ranking_weight

    @property
    def weights(self) -> dict[Task, float]:
        """What each loss of the next step is multiplied with."""
        return {"ranking": self._ranking_weight, "embedding": 1 - self._ranking_weight}

    def learn(self, losses: Mapping[Task, float], learning_rate: float) -> None:
        """Take notice of a step's unweighted losses and of its learning rate."""

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as plain tensors."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""


class Uncertainty(Aggregation):
    """Weights learned with the model: ``exp(-s) * loss + s / 2`` for each task, where ``s`` is its log-variance.

    The log-variances start where the weights are those of ``fixed``, and follow Adam at the step's learning rate.

    Source: Kendall, Gal & Cipolla 2018, equation 10, for two cross-entropies.
    """

    def __init__(self, ranking_weight: float) -> None:
        super().__init__(ranking_weight)
        start = [-math.log(weight) for weight in super().weights.values()]
        self._log_variances = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        self._adam = torch.optim.Adam([self._log_variances], lr=0.0)

    @property
    def weights(self) -> dict[Task, float]:
        """What each loss of the next step is multiplied with."""
        return dict(zip(TASKS, (-self._log_variances.detach()).exp().tolist(), strict=True))

    def learn(self, losses: Mapping[Task, float], learning_rate: float) -> None:
        """Move the log-variances down the gradient of ``exp(-s) * loss + s / 2``."""
        loss = torch.tensor([losses[task] for task in TASKS], dtype=torch.float64)
        self._log_variances.grad = 0.5 - (-self._log_variances.detach()).exp() * loss
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as plain tensors."""
        return {"log_variances": self._log_variances.detach(), **self._adam.state[self._log_variances]}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        on_cpu = {key: value.to("cpu", copy=True) for key, value in tensors.items()}
        self._log_variances.data.copy_(on_cpu.pop("log_variances"))
        self._adam.state[self._log_variances] = dict(on_cpu)


class Surgery(Aggregation, ABC):
    """A method that needs the two weighted gradients apart, and takes some multiple of each."""

    def coefficients(self, gramian: Tensor) -> tuple[float, float]:
        """What the weighted gradients of ranking and embedding are multiplied with before they are added.

        Args:
            gramian: their inner products, float64 ``(2, 2)``, ranking first.
        """
        size = gramian.trace()
        if not bool(gramian.isfinite().all()) or size <= 0:  # the step then does what it would do under ``fixed``
            return 1.0, 1.0
        ranking, embedding = self._coefficients(gramian.cpu() / size.cpu()).tolist()
        return ranking, embedding

    @abstractmethod
    def _coefficients(self, gramian: Tensor) -> Tensor:
        """The same for a Gramian of trace 1: only angles and the ratio of lengths matter."""


class PCGrad(Surgery):
    """Each gradient loses its part against the other, where they conflict (Yu et al. 2020)."""

    def _coefficients(self, gramian: Tensor) -> Tensor:
        return _weighted(PCGradWeighting(), gramian)


class UPGrad(Surgery):
    """Each gradient is projected onto the cone of directions that oppose neither task (Quinton & Rey 2024).

    With two tasks, the projections are PCGrad's, and so are the steps: one of the two methods is enough for a table.
    """

    def _coefficients(self, gramian: Tensor) -> Tensor:
        ones = torch.ones(2, dtype=gramian.dtype)  # the sum of the projections; torchjd's default is their mean
        return _weighted(UPGradWeighting(ones, _TwoTaskProjector()), gramian)


class GradVac(Surgery):
    """The cosine is lifted to its running mean wherever it falls below (Wang et al. 2021).

    Args:
        ranking_weight: of the ranking loss; the embedding loss has the rest.
        beta: weight of the newest cosine in the running mean.
    """

    def __init__(self, ranking_weight: float, beta: float) -> None:
        super().__init__(ranking_weight)
        self._weighting = GradVacWeighting(beta=beta)

    def _coefficients(self, gramian: Tensor) -> Tensor:
        return _weighted(self._weighting, gramian)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as plain tensors."""
        return dict(self._weighting.state_dict())

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        if tensors:
            self._weighting(torch.eye(2, dtype=torch.float64))  # the running mean exists from the first call on
            self._weighting.load_state_dict({key: value.cpu() for key, value in tensors.items()})


class CAGrad(Surgery):
    """Among steps near the mean gradient, the one that does most for the task it does least for (Liu et al. 2021).

    torchjd leaves the weights to a general solver. With two tasks they have a closed form.

    Args:
        ranking_weight: of the ranking loss; the embedding loss has the rest.
        c: the radius around the mean gradient, in its own lengths.
    """

    def __init__(self, ranking_weight: float, c: float) -> None:
        super().__init__(ranking_weight)
        self._c = c

    def _coefficients(self, gramian: Tensor) -> Tensor:
        mean = torch.full((2,), 0.5, dtype=gramian.dtype)
        if self._c == 0:
            return 2 * mean
        radius = self._c * (mean @ gramian @ mean).clamp(min=0).sqrt()
        worst = self._worst_mixture(gramian, float(radius))
        length = (worst @ gramian @ worst).clamp(min=0).sqrt()
        if length <= _STATIONARY:  # no direction helps both tasks
            return torch.zeros_like(mean)
        return 2 * (mean + radius / length * worst)  # twice, for the sum in place of the mean

    @staticmethod
    def _worst_mixture(gramian: Tensor, radius: float) -> Tensor:
        """The mixture ``g = x g_1 + (1 - x) g_2`` of the least ``g . g_0 + radius |g|``, ``g_0`` being the mean.

        Along the difference ``d`` of the gradients, ``g`` has the coordinate ``y`` and keeps its distance ``p`` from
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
    """The method a joint arm asks for, at its start."""
    weight = arm.ranking_weight
    assert weight is not None  # noqa: S101 - the config refuses a joint arm without it
    match arm.aggregation:
        case "uncertainty":
            return Uncertainty(weight)
        case "pcgrad":
            return PCGrad(weight)
        case "upgrad":
            return UPGrad(weight)
        case "gradvac":
            return GradVac(weight, arm.gradvac_beta)
        case "cagrad":
            return CAGrad(weight, arm.cagrad_c)
        case _:
            return Aggregation(weight)


class _TwoTaskProjector(DualConeProjector):
    """The quadratic programs of UPGrad in closed form, for two tasks; torchjd's own needs a solver."""

    def __call__(self, rows: Tensor, gramian: PSDMatrix) -> Tensor:
        """The ``v >= u`` of the least ``v^T G v``, for each row ``u`` of a diagonal matrix ``(2, 2)``."""
        weights = rows.clone()
        for i, j in ((0, 1), (1, 0)):
            if gramian[i, j] < 0:
                weights[i, j] = -rows[i, i] * gramian[i, j] / gramian[j, j]
        return weights


def _weighted(weighting: Weighting[PSDMatrix], gramian: Tensor) -> Tensor:
    coefficients: Tensor = weighting(gramian)
    return coefficients
