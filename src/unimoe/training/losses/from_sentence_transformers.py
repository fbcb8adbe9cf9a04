"""sentence-transformers' listwise losses over scores that were computed already, and PListMLE's weights of places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sentence_transformers.cross_encoder import losses
from torch import Tensor, nn
from torch.nn import functional

from unimoe.config.training import LossOptions, Normalization, RankDiscount, Weighting
from unimoe.core.errors import InputError

_WEIGHTINGS: dict[Weighting, type[nn.Module]] = {
    "ndcg_loss2pp": losses.NDCGLoss2PPScheme,
    "ndcg_loss2": losses.NDCGLoss2Scheme,
    "ndcg_loss1": losses.NDCGLoss1Scheme,
    "lambdarank": losses.LambdaRankScheme,
    "none": losses.NoWeightingScheme,
}
_ALL_AT_ONCE = -1


class GivenScores:
    """Takes the place of a cross-encoder in a loss, and returns given scores instead of computing any.

    A "document" is the place of its score in ``scores (N,)``.
    """

    num_labels = 1

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    @property
    def device(self) -> torch.device:
        """Return the device that holds the scores."""
        return self.scores.device

    def preprocess(self, pairs: Sequence[tuple[Any, int]], **_: Any) -> dict[str, Tensor]:
        """Return the places of the scores that are asked for."""
        return {"places": torch.tensor([place for _, place in pairs])}

    def __call__(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the scores at those places."""
        return {"scores": self.scores[features["places"]]}


def upstream_loss(
    name: str, scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions, **settings: Any
) -> Tensor:
    """Compute the loss of a class of theirs, with further arguments of the class; of the options it reads weighting.

    It is the mean over lists (over pairs for LambdaLoss and RankNet, over documents for ADR-MSE), a scalar.
    """
    if name == "LambdaLoss":
        _refuse_large_gains(labels)
        settings["weighting_scheme"] = _WEIGHTINGS[options.weighting]()
    given = GivenScores(torch.cat(list(scores)))
    module = getattr(losses, name)(model=given, activation_fn=nn.Identity(), mini_batch_size=_ALL_AT_ONCE, **settings)
    ends = torch.tensor([len(row) for row in scores]).cumsum(0).tolist()
    documents = [[*range(end - len(row), end)] for row, end in zip(scores, ends, strict=True)]
    found: Tensor = module([[""] * len(documents), documents], list(labels))
    return found


def _refuse_large_gains(labels: Sequence[Tensor]) -> None:
    """Refuse lists whose sum of gains, 2^label - 1, is infinite: their loss would be NaN, or 0."""
    for index, row in enumerate(labels):
        if not torch.exp2(row).sum().isfinite():
            raise InputError(
                index,
                f"LambdaLoss' gain 2^{float(row.max()):g} is beyond float32; scale the labels, or take another loss",
            )


def _computed_by(name: str, *arguments: str) -> Callable[[Sequence[Tensor], Sequence[Tensor], LossOptions], Tensor]:
    """Return a loss that a class of theirs computes, which takes some of the options as arguments."""

    def loss(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
        return upstream_loss(name, scores, labels, options, **{key: getattr(options, key) for key in arguments})

    return loss


listmle = _computed_by("ListMLELoss")
lambdaloss = _computed_by("LambdaLoss", "k", "sigma")
ranknet = _computed_by("RankNetLoss", "k", "sigma")
adrmse = _computed_by("ADRMSELoss", "alpha")


def listnet(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Compute ListNet, whose target is the softmax of labels divided by their temperature."""
    return upstream_loss("ListNetLoss", scores, [row / options.label_temperature for row in labels], options)


def plistmle(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """Compute PListMLE."""
    weights = PositionWeights(options)
    if weights.normalizes:
        return upstream_loss("PListMLELoss", scores, labels, options, lambda_weight=weights)
    # The module always divides the weights of a list by their sum; a list at a time, that can be undone.
    losses_of_lists = []
    for index, (row, given) in enumerate(zip(scores, labels, strict=True)):
        total = weights.logarithms(torch.ones(1, len(row), dtype=torch.bool, device=row.device)).logsumexp(1).exp()
        if float(total) > torch.finfo(torch.float32).max:
            raise InputError(
                index,
                f"weights of {len(row)} documents that are not normalised are beyond float32; set normalization_method "
                "to sum, or cut the lists",
            )
        mean = upstream_loss("PListMLELoss", [row], [given], options, lambda_weight=weights)
        losses_of_lists.append(total[0].float() * mean)
    return torch.stack(losses_of_lists).mean()


_DISCOUNTS: dict[RankDiscount, Callable[[Tensor], Tensor]] = {  # from ranks, 1 for the first place, to weights
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

    It takes the place of a ``PListMLELambdaWeight``, whose ``rank_discount_fn`` takes a mask in place of ranks.
    """

    def __init__(self, options: LossOptions) -> None:
        super().__init__()
        self._method: Normalization = options.normalization_method if options.normalize_weights else "none"
        self._temperature = options.temperature
        self._last = _LAST_EXPONENT.get(options.rank_discount, 0)
        self._discount = _DISCOUNTS.get(options.rank_discount)

    @property
    def normalizes(self) -> bool:
        """Return whether the weights of a list sum to 1."""
        return self._method != "none"

    def logarithms(self, mask: Tensor) -> Tensor:
        """Return logarithms of weights before normalisation, ``-inf`` where ``mask (B, n)``, true first, is false."""
        exact = torch.float32 if mask.device.type == "mps" else torch.float64
        ranks = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        if self._discount is None:
            exponents = (mask.sum(1, keepdim=True) - ranks + self._last).clamp(min=0).to(exact)
            found = exponents * math.log(2) + torch.log1p(-torch.exp2(-exponents))
        else:
            found = self._discount(ranks.float()).to(exact).log().expand(mask.shape)
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
