"""ListMLE and PListMLE: the likelihood of a whole order of documents, which the two take best first.

The formulas are sentence-transformers'; the weights of places are ours. Its ``rank_discount_fn`` is called with a mask
in place of ranks, and its default is 0 or infinite for long lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, model_validator

from unimoe.config.base import Positive, checked
from unimoe.core.errors import InputError
from unimoe.training.losses import DISCOUNTS, Chance, Lists, Loss, register_discount, register_loss
from unimoe.training.losses.from_sentence_transformers import upstream_loss

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FAR = 80.0
"""A difference of ``exp(80)`` leaves nothing of a softmax, as any larger one does."""

_SPELLED = {
    "2^(n-i)-1": "exponential",
    "2^(n-i+1)-1": "exponential_plus_1",
    "1": "identity",
    "1/log1p": "log1p",
    "1/log1p(i)": "log1p",
    "1/ln(1+i)": "log1p",
    "1/log2": "log2",
    "1/log2(1+i)": "log2",
    "1/i": "reciprocal",
}
"""Rank discounts as their formula, without spaces."""


def _by_formula(given: object) -> object:
    return _SPELLED.get("".join(given.split()), given) if isinstance(given, str) else given


Discount = Annotated[str, BeforeValidator(_by_formula), checked(DISCOUNTS.checked)]


@register_loss("listmle")
class ListMLE(Loss):
    """Likelihood of the whole order (Plackett-Luce).

    Attributes:
        respect_input_order: teach the given order, also of equal labels; none may rise. ``false``: sort by label.
        ties: where the order is by label, equal labels keep their order, or are shuffled at every step to teach none.
    """

    cites, mean_of = "ListMLELoss", "lists"

    respect_input_order: bool = True
    ties: Literal["keep", "shuffle"] = "keep"

    @model_validator(mode="after")
    def _one_order(self) -> ListMLE:
        if self.respect_input_order and self.draws:
            raise ValueError(
                "respect_input_order teaches an order among equal labels, ties: shuffle forgets it; "
                "set respect_input_order: false to shuffle"
            )
        return self

    @property
    def teaches_order(self) -> bool:
        """Whether equal labels teach something: the order in which their documents come."""
        return self.respect_input_order

    @property
    def draws(self) -> bool:
        """Whether it needs random numbers."""
        return self.ties == "shuffle"

    def order(self, index: int, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the places of a list's documents, the best first."""
        import torch

        if self.respect_input_order:
            if (labels[1:] > labels[:-1]).any():
                raise InputError(
                    index,
                    "labels rise along the list, and respect_input_order teaches its order; sort the documents by "
                    "label, or set respect_input_order: false",
                )
            return torch.arange(len(labels), device=labels.device)
        if self.ties == "keep":
            return labels.argsort(descending=True, stable=True)
        shuffled = torch.randperm(len(labels), generator=generator).to(labels.device)
        return shuffled[labels[shuffled].argsort(descending=True, stable=True)]

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        return upstream_loss("ListMLELoss", scores, labels)


@register_loss("plistmle")
class PListMLE(ListMLE):
    """ListMLE with more weight on the first ranks.

    Attributes:
        discount: weight of place i in a list of n before normalisation: ``exponential`` 2^(n-i) - 1 (Lan et al. 2014),
            ``exponential_plus_1`` 2^(n-i+1) - 1, which ends at 1, ``identity`` 1, ``log1p`` 1/ln(1+i), ``log2``
            1/log2(1+i) as in nDCG, ``reciprocal`` 1/i; each by its name or its formula, also ``1/log1p`` and
            ``1/log2``; or one of ``register_discount``.
        normalize_weights: ``false`` leaves the weights as they are, so that long lists count far more than short ones.
        normalization_method: ``sum`` divides by the sum; ``softmax`` of the weights; ``minmax`` to 0..1, ``log``
            ln(1+w), ``temperature`` w^(1/temperature), each divided by its sum; ``none`` as without normalisation.
        temperature: of the normalisation ``temperature``, sharper below 1.
    """

    cites = "PListMLELoss"

    discount: Discount = "exponential"
    normalize_weights: bool = True
    normalization_method: Literal["none", "sum", "softmax", "minmax", "log", "temperature"] = "sum"
    temperature: Positive = 0.5

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        import torch

        if self._normalizes:
            return upstream_loss("PListMLELoss", scores, labels, lambda_weight=self.weights)
        # The module always divides the weights of a list by their sum; a list at a time, that can be undone.
        losses_of_lists = []
        for index, (row, given) in enumerate(zip(scores, labels, strict=True)):
            total = self._logarithms(torch.ones(1, len(row), dtype=torch.bool, device=row.device)).logsumexp(1).exp()
            if float(total) > torch.finfo(torch.float32).max:
                raise InputError(
                    index,
                    f"weights of {len(row)} documents that are not normalised are beyond float32; set "
                    "normalization_method to sum, or cut the lists",
                )
            mean = upstream_loss("PListMLELoss", [row], [given], lambda_weight=self.weights)
            losses_of_lists.append(total[0].float() * mean)
        return torch.stack(losses_of_lists).mean()

    @property
    def _normalizes(self) -> bool:
        return self.normalize_weights and self.normalization_method != "none"

    def weights(self, mask: Tensor) -> Tensor:
        """Return the weights of the places of lists ``(B, n)``, of a mask that is true first.

        They sum to 1 in every list, unless all are 0, as for a single document. Those that are not normalised are
        relative to the largest.
        """
        import torch
        from torch.nn import functional

        logarithms = self._logarithms(mask)
        largest = logarithms.amax(1, keepdim=True).clamp(min=torch.finfo(logarithms.dtype).min)
        weights = (logarithms - largest).exp()
        match self.normalization_method if self._normalizes else "none":
            case "softmax":
                below = (weights.amax(1, keepdim=True) - weights) * largest.clamp(max=_FAR).exp()
                weights = (-below).masked_fill(~mask, -torch.inf).softmax(1)
            case "log":
                weights = functional.softplus(logarithms)
            case "temperature":
                weights = weights.pow(1.0 / self.temperature)
            case "minmax":
                weights = _to_unit_range(weights, mask)
        weights = weights.masked_fill(~mask, 0.0)
        if self._normalizes:
            total = weights.sum(1, keepdim=True)
            weights = weights / total.where(total > 0, 1.0)
        return weights.float()

    def _logarithms(self, mask: Tensor) -> Tensor:
        """Return logarithms of the weights before normalisation, ``-inf`` where the mask is false."""
        import torch

        exact = torch.float32 if mask.device.type == "mps" else torch.float64
        found = torch.full(mask.shape, -torch.inf, dtype=exact, device=mask.device)
        discount, sizes = DISCOUNTS[self.discount], mask.sum(1).tolist()
        # A discount may depend on the number of documents, so each length has its own weights.
        for size in set(sizes):
            rows = [row for row, length in enumerate(sizes) if length == size]
            found[rows, :size] = discount(torch.arange(1, size + 1, dtype=exact, device=mask.device))
        return found


def _to_unit_range(weights: Tensor, mask: Tensor) -> Tensor:
    """Return weights moved and scaled to 0..1 in each list; equal ones become 1."""
    import torch

    lowest = weights.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    spread = weights.masked_fill(~mask, -torch.inf).amax(1, keepdim=True) - lowest
    return ((weights - lowest) / spread.where(spread > 0, 1.0)).where(spread > 0, 1.0)


def _exponential(last: int) -> Callable[[Tensor], Tensor]:
    """Return the logarithms of 2^e - 1, whatever its size, where e is ``last`` at the last place."""

    def logarithms(ranks: Tensor) -> Tensor:
        exponents = len(ranks) - ranks + last
        return exponents * math.log(2) + (-(-exponents).exp2()).log1p()

    return logarithms


DISCOUNTS.add("exponential", _exponential(0))
DISCOUNTS.add("exponential_plus_1", _exponential(1))
register_discount("identity", lambda ranks: ranks**0)
register_discount("log1p", lambda ranks: 1.0 / ranks.log1p())
register_discount("log2", lambda ranks: 1.0 / (1.0 + ranks).log2())
register_discount("reciprocal", lambda ranks: 1.0 / ranks)
