"""PListMLE's weights of the places of a list, in logarithms: 2^n overflows from lists of 128 documents on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from unimoe.config.training import LossOptions, Normalization, RankDiscount
from unimoe.core.errors import DataError

DiscountFn = Callable[[Tensor], Tensor]
"""From ranks, 1 for the first place, ``(n,)`` float32, to weights ``(n,)``."""

DISCOUNTS: dict[RankDiscount, DiscountFn] = {
    "identity": torch.ones_like,
    "log1p": lambda ranks: 1.0 / torch.log1p(ranks),
    "log2": lambda ranks: 1.0 / torch.log2(1.0 + ranks),
    "reciprocal": lambda ranks: 1.0 / ranks,
}
_LAST_EXPONENT: dict[RankDiscount, int] = {"exponential": 0, "exponential_plus_1": 1}
"""The power of 2 at the last place, of the weights that depend on the list's length; each weight is 1 less."""

_FAR = 80.0
"""A difference of ``exp(80)`` leaves nothing of a softmax, as any larger one does."""


class PositionWeights(nn.Module):
    """The weights of every place of a batch of lists.

    It takes the place of a ``PListMLELambdaWeight``, whose ``rank_discount_fn`` takes a mask; a discount here takes
    ranks.

    Args:
        options: ``rank_discount``, ``normalize_weights``, ``normalization_method`` and ``temperature`` are read.
        discount: another discount than those by name.
    """

    def __init__(self, options: LossOptions, discount: DiscountFn | None = None) -> None:
        super().__init__()
        self._method: Normalization = options.normalization_method if options.normalize_weights else "none"
        self._temperature = options.temperature
        self._last = _LAST_EXPONENT.get(options.rank_discount, 0)
        self._discount = discount if discount is not None else DISCOUNTS.get(options.rank_discount)

    @property
    def normalizes(self) -> bool:
        """Return whether the weights of a list sum to 1."""
        return self._method != "none"

    def logarithms(self, mask: Tensor) -> Tensor:
        """Return logarithms of weights before normalisation, ``-inf`` where ``mask (B, n)`` is false.

        Valid places come first.

        Raises:
            DataError: a discount gave a weight below 0.
        """
        exact = torch.float32 if mask.device.type == "mps" else torch.float64
        ranks = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        if self._discount is None:
            exponents = (mask.sum(1, keepdim=True) - ranks + self._last).clamp(min=0).to(exact)
            found = exponents * math.log(2) + torch.log1p(-torch.exp2(-exponents))
        else:
            weights = self._discount(ranks.float())
            if bool((weights < 0).any()):
                raise DataError("PListMLE's discount gives a weight below 0; weights are at least 0")
            found = weights.to(exact).log().expand(mask.shape)
        return found.masked_fill(~mask, -torch.inf)

    def forward(self, mask: Tensor) -> Tensor:
        """Return weights ``(B, n)`` that sum to 1 in every list, unless all are 0, as for a single document.

        Those of the method ``none`` are relative to the largest.
        """
        logarithms = self.logarithms(mask)
        largest = logarithms.amax(1, keepdim=True).clamp(min=torch.finfo(logarithms.dtype).min)
        weights = (logarithms - largest).exp()
        if self._method == "softmax":
            below = (weights.amax(1, keepdim=True) - weights) * largest.clamp(max=_FAR).exp()
            weights = (-below).masked_fill(~mask, -torch.inf).softmax(1)
        elif self._method == "log":
            weights = functional.softplus(logarithms)
        elif self._method == "temperature":
            weights = weights.pow(1.0 / self._temperature)
        elif self._method == "minmax":
            weights = _to_unit_range(weights, mask)
        weights = weights.masked_fill(~mask, 0.0)
        if self.normalizes:
            total = weights.sum(1, keepdim=True)
            weights = weights / total.where(total > 0, 1.0)
        return weights.float()


def _to_unit_range(weights: Tensor, mask: Tensor) -> Tensor:
    """Return weights moved and scaled to 0..1 in each list; equal ones become 1."""
    lowest = weights.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    spread = weights.masked_fill(~mask, -torch.inf).amax(1, keepdim=True) - lowest
    return ((weights - lowest) / spread.where(spread > 0, 1.0)).where(spread > 0, 1.0)
