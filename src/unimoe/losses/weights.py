"""Weights of the places of a list, for position-aware ListMLE."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sentence_transformers.cross_encoder.losses import PListMLELambdaWeight
from torch import Tensor, nn

from unimoe.config.losses import LossOptions, Normalization, RankDiscount

DiscountFn = Callable[[Tensor], Tensor]
"""From ranks, 1 for the first place, ``(n,)`` float32, to weights ``(n,)``."""

DISCOUNTS: dict[RankDiscount, DiscountFn] = {
    "identity": torch.ones_like,
    "log1p": lambda ranks: 1.0 / torch.log1p(ranks),
    "log2": lambda ranks: 1.0 / torch.log2(1.0 + ranks),
    "reciprocal": lambda ranks: 1.0 / ranks,
}
"""All but ``exponential``, which depends on the list's length and is sentence-transformers' own."""


class PositionWeights(nn.Module):
    """The weights of every place of a batch of lists.

    Stands where sentence-transformers expects a ``PListMLELambdaWeight``, whose ``rank_discount_fn`` is given a mask;
    a discount here is given ranks.

    Args:
        options: ``rank_discount``, ``normalize_weights``, ``normalization_method`` and ``temperature`` are read.
        discount: another discount than those by name.
    """

    def __init__(self, options: LossOptions, discount: DiscountFn | None = None) -> None:
        super().__init__()
        self._method: Normalization = options.normalization_method if options.normalize_weights else "none"
        self._temperature = options.temperature
        self._discount = discount if discount is not None else DISCOUNTS.get(options.rank_discount)

    @property
    def normalizes(self) -> bool:
        """Whether the weights of a list sum to 1."""
        return self._method != "none"

    def raw(self, mask: Tensor) -> Tensor:
        """The weights before normalisation, 0 where ``mask (B, n)`` is false; valid places stand first."""
        if self._discount is None:
            weights: Tensor = PListMLELambdaWeight()(mask)
            return weights
        ranks = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=torch.float32)
        return self._discount(ranks).expand(mask.shape).masked_fill(~mask, 0.0)

    def forward(self, mask: Tensor) -> Tensor:
        """The weights ``(B, n)``, of sum 1 in every list but one whose weights are all 0, as of a single document."""
        weights = self.raw(mask)
        if self._method == "softmax":
            weights = weights.masked_fill(~mask, -torch.inf).softmax(1)
        elif self._method == "log":
            weights = weights.log1p()
        elif self._method == "temperature":
            largest = weights.amax(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
            weights = (weights / largest).pow(1.0 / self._temperature)
        elif self._method == "minmax":
            weights = _to_unit_range(weights, mask)
        if not self.normalizes:
            return weights
        weights = weights.masked_fill(~mask, 0.0)
        total = weights.sum(1, keepdim=True)
        return weights / total.where(total > 0, 1.0)


def _to_unit_range(weights: Tensor, mask: Tensor) -> Tensor:
    """Weights moved and scaled to 0..1 in each list; equal ones become 1."""
    lowest = weights.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    spread = weights.masked_fill(~mask, -torch.inf).amax(1, keepdim=True) - lowest
    return ((weights - lowest) / spread.where(spread > 0, 1.0)).where(spread > 0, 1.0)
