"""sentence-transformers' listwise losses over scores that are already there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.cross_encoder import losses
from torch import Tensor, nn

from unimoe.config.losses import LossConfig, Weighting
from unimoe.losses.weights import DiscountFn, PositionWeights

_WEIGHTINGS: dict[Weighting, type[nn.Module]] = {
    "ndcg_loss2pp": losses.NDCGLoss2PPScheme,
    "ndcg_loss2": losses.NDCGLoss2Scheme,
    "ndcg_loss1": losses.NDCGLoss1Scheme,
    "lambdarank": losses.LambdaRankScheme,
    "none": losses.NoWeightingScheme,
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"Identity": nn.Identity, "Sigmoid": nn.Sigmoid, "Tanh": nn.Tanh}
_ALL_AT_ONCE = -1


class GivenScores:
    """Stands where the losses expect a cross-encoder, and gives the scores it was told instead of computing any.

    A "document" is the place of its score in ``scores (N,)``.
    """

    num_labels = 1

    def __init__(self) -> None:
        self.scores = torch.empty(0)

    @property
    def device(self) -> torch.device:
        """Where the scores are."""
        return self.scores.device

    def preprocess(self, pairs: Sequence[tuple[Any, int]], **_: Any) -> dict[str, Tensor]:
        """The places of the scores that are asked for."""
        return {"places": torch.tensor([place for _, place in pairs])}

    def __call__(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """The scores at those places."""
        return {"scores": self.scores[features["places"]]}


class UpstreamLoss:
    """One of sentence-transformers' losses, fed with scores.

    Args:
        config: its name must be one of theirs that takes lists.
        discount: a discount of PListMLE's weights by function instead of by name.
    """

    def __init__(self, config: LossConfig, discount: DiscountFn | None = None) -> None:
        self._given = GivenScores()
        self._weights = PositionWeights(config, discount)
        self._unnormalized = config.name == "plistmle" and not self._weights.normalizes
        self.module = _make(config, self._given, self._weights)

    def __call__(self, scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        """The mean over lists (over pairs for LambdaLoss and RankNet, over documents for ADR-MSE), a scalar.

        Args:
            scores: for each list ``(n_i,)``.
            labels: likewise.
        """
        if not self._unnormalized:
            return self._of(scores, labels)
        # The module always divides the weights of a list by their sum; a list at a time, that can be undone.
        sums = [self._weights.raw(torch.ones(1, len(row), dtype=torch.bool, device=row.device)).sum() for row in scores]
        each = [self._of([row], [given]) for row, given in zip(scores, labels, strict=True)]
        return torch.stack([total * loss for total, loss in zip(sums, each, strict=True)]).mean()

    def _of(self, scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        self._given.scores = torch.cat(list(scores))
        places, documents = 0, []
        for row in scores:
            documents.append([*range(places, places + len(row))])
            places += len(row)
        loss: Tensor = self.module([[""] * len(documents), documents], list(labels))
        self._given.scores = torch.empty(0)  # or the graph would live on until the next call
        return loss


def _make(config: LossConfig, given: GivenScores, weights: PositionWeights) -> Any:
    shared: dict[str, Any] = {
        "model": given,
        "activation_fn": activation(config),
        "mini_batch_size": _ALL_AT_ONCE,
    }
    pairs: dict[str, Any] = {**shared, "k": config.k, "sigma": config.sigma}
    if config.name == "listmle":
        return losses.ListMLELoss(**shared)
    if config.name == "plistmle":
        return losses.PListMLELoss(**shared, lambda_weight=weights)  # type: ignore[arg-type]
    if config.name == "lambdaloss":
        return losses.LambdaLoss(**pairs, weighting_scheme=_WEIGHTINGS[config.weighting]())  # type: ignore[arg-type]
    if config.name == "ranknet":
        return losses.RankNetLoss(**pairs)
    if config.name == "adrmse":
        return losses.ADRMSELoss(**shared, alpha=config.alpha)
    if config.name == "listnet":
        return losses.ListNetLoss(**shared)
    raise AssertionError(f"{config.name} is not one of theirs")


def activation(config: LossConfig) -> nn.Module:
    """The module that is applied to scores before the loss."""
    return _ACTIVATIONS[config.activation]()
