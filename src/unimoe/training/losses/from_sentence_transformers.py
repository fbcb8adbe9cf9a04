"""sentence-transformers' listwise losses over scores that were computed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.cross_encoder import losses
from torch import Tensor, nn

from unimoe.config.training import LossOptions, Weighting
from unimoe.core.errors import InputError
from unimoe.training.losses.position_weights import DiscountFn, PositionWeights

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
    """Compute one of sentence-transformers' losses.

    Args:
        name: of its class.
        scores: for each list ``(n_i,)``.
        labels: the same shapes.
        options: LambdaLoss's weighting is read.
        settings: further arguments of the class.

    Returns:
        The mean over lists (over pairs for LambdaLoss and RankNet, over documents for ADR-MSE), a scalar.

    Raises:
        InputError: the index of a list whose gains are beyond float32.
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


def plistmle(
    scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions, discount: DiscountFn | None = None
) -> Tensor:
    """Compute PListMLE, with weights by name or by a function of ranks."""
    weights = PositionWeights(options, discount)
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


def _refuse_large_gains(labels: Sequence[Tensor]) -> None:
    """Refuse lists whose sum of gains, 2^label - 1, is infinite: their loss would be NaN, or 0."""
    for index, row in enumerate(labels):
        if not torch.exp2(row).sum().isfinite():
            raise InputError(
                index,
                f"LambdaLoss' gain 2^{float(row.max()):g} is beyond float32; scale the labels, or take another loss",
            )


def citation_of(name: str) -> str:
    """Return the BibTeX of a class of theirs, without making a loss, which would need a model."""
    return str(vars(getattr(losses, name))["citation"].fget(None))
