"""sentence-transformers' listwise losses over scores that were computed already, and PListMLE's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sentence_transformers.cross_encoder import losses
from torch import Tensor, nn

from unimoe.config.losses import LossOptions, Normalization, RankDiscount, Weighting

_WEIGHTINGS: dict[Weighting, type[nn.Module]] = {
    "ndcg_loss2pp": losses.NDCGLoss2PPScheme,
    "ndcg_loss2": losses.NDCGLoss2Scheme,
    "ndcg_loss1": losses.NDCGLoss1Scheme,
    "lambdarank": losses.LambdaRankScheme,
    "none": losses.NoWeightingScheme,
}
_ALL_AT_ONCE = -1

DiscountFn = Callable[[Tensor], Tensor]
"""From ranks, 1 for the first place, ``(n,)`` float32, to weights ``(n,)``."""

DISCOUNTS: dict[RankDiscount, DiscountFn] = {
    "identity": torch.ones_like,
    "log1p": lambda ranks: 1.0 / torch.log1p(ranks),
    "log2": lambda ranks: 1.0 / torch.log2(1.0 + ranks),
    "reciprocal": lambda ranks: 1.0 / ranks,
}
"""All but ``exponential``, which depends on the list's length and is sentence-transformers'."""


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
    """Compute one of sentence-transformers' losses.

    Args:
        name: of its class.
        scores: for each list ``(n_i,)``.
        labels: the same shapes.
        options: LambdaLoss's weighting is read.
        settings: further arguments of the class.

    Returns:
        The mean over lists (over pairs for LambdaLoss and RankNet, over documents for ADR-MSE), a scalar.
    """
    if name == "LambdaLoss":
        settings["weighting_scheme"] = _WEIGHTINGS[options.weighting]()
    given = GivenScores(torch.cat(list(scores)))
    module = getattr(losses, name)(model=given, activation_fn=nn.Identity(), mini_batch_size=_ALL_AT_ONCE, **settings)
    ends = torch.tensor([len(row) for row in scores]).cumsum(0).tolist()
    documents = [[*range(end - len(row), end)] for row, end in zip(scores, ends, strict=True)]
    found: Tensor = module([[""] * len(documents), documents], list(labels))
    return found


def plistmle(
    scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions, discount: DiscountFn | None = None
) -> Tensor:
    """Compute PListMLE, with weights by name or by a function of ranks."""
    weights = PositionWeights(options, discount)
    if weights.normalizes:
        return upstream_loss("PListMLELoss", scores, labels, options, lambda_weight=weights)
    # The module always divides the weights of a list by their sum; a list at a time, that can be undone.
    sums = [weights.raw(torch.ones(1, len(row), dtype=torch.bool, device=row.device)).sum() for row in scores]
    each = [
        upstream_loss("PListMLELoss", [row], [given], options, lambda_weight=weights)
        for row, given in zip(scores, labels, strict=True)
    ]
    return torch.stack([total * loss for total, loss in zip(sums, each, strict=True)]).mean()


def citation_of(name: str) -> str:
    """Return the BibTeX of a class of theirs, without making a loss, which would need a model."""
    return str(vars(getattr(losses, name))["citation"].fget(None))


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
        self._discount = discount if discount is not None else DISCOUNTS.get(options.rank_discount)

    @property
    def normalizes(self) -> bool:
        """Return whether the weights of a list sum to 1."""
        return self._method != "none"

    def raw(self, mask: Tensor) -> Tensor:
        """Return weights before normalisation, 0 where ``mask (B, n)`` is false; valid places come first."""
        if self._discount is None:
            weights: Tensor = losses.PListMLELambdaWeight()(mask)
            return weights
        ranks = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=torch.float32)
        return self._discount(ranks).expand(mask.shape).masked_fill(~mask, 0.0)

    def forward(self, mask: Tensor) -> Tensor:
        """Return weights ``(B, n)`` that sum to 1 in every list, unless all are 0, as for a single document."""
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
    """Return weights moved and scaled to 0..1 in each list; equal ones become 1."""
    lowest = weights.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    spread = weights.masked_fill(~mask, -torch.inf).amax(1, keepdim=True) - lowest
    return ((weights - lowest) / spread.where(spread > 0, 1.0)).where(spread > 0, 1.0)
