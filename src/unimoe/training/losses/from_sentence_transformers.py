"""sentence-transformers' listwise losses over scores that were computed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from unimoe.config.base import Count, Positive
from unimoe.core.errors import InputError
from unimoe.training.losses import Chance, Lists, Loss, register_loss

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SCHEMES = {
    "ndcg_loss2pp": "NDCGLoss2PPScheme",
    "ndcg_loss2": "NDCGLoss2Scheme",
    "ndcg_loss1": "NDCGLoss1Scheme",
    "lambdarank": "LambdaRankScheme",
    "none": "NoWeightingScheme",
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
        import torch

        return {"places": torch.tensor([place for _, place in pairs])}

    def __call__(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the scores at those places."""
        return {"scores": self.scores[features["places"]]}


def upstream_loss(name: str, scores: Lists, labels: Lists, **settings: Any) -> Tensor:
    """Compute the loss of a class of theirs, with further arguments of the class.

    It is the mean over lists (over pairs for LambdaLoss and RankNet, over documents for ADR-MSE), a scalar.
    """
    import torch
    from sentence_transformers.cross_encoder import losses

    given = GivenScores(torch.cat(list(scores)))
    kind, plain = getattr(losses, name), torch.nn.Identity()
    module = kind(model=given, activation_fn=plain, mini_batch_size=_ALL_AT_ONCE, **settings)
    ends = torch.tensor([len(row) for row in scores]).cumsum(0).tolist()
    documents = [[*range(end - len(row), end)] for row, end in zip(scores, ends, strict=True)]
    found: Tensor = module([[""] * len(documents), documents], list(labels))
    return found


@register_loss("ranknet")
class RankNet(Loss):
    """Every pair with the same weight.

    Attributes:
        k: pairs count where one of the two is among the first k by score; null for all pairs.
        sigma: a factor of score differences.
    """

    cites = "RankNetLoss"

    k: Count | None = None
    sigma: Positive = 1.0

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        return upstream_loss("RankNetLoss", scores, labels, k=self.k, sigma=self.sigma)


@register_loss("lambdaloss")
class LambdaLoss(RankNet):
    """Pairs weighted by how much swapping them changes nDCG.

    Attributes:
        weighting: how pairs are weighted.
    """

    cites = "LambdaLoss"

    weighting: Literal["ndcg_loss2pp", "ndcg_loss2", "ndcg_loss1", "lambdarank", "none"] = "ndcg_loss2pp"

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        from sentence_transformers.cross_encoder import losses

        for index, row in enumerate(labels):  # an infinite sum of gains gives a loss of NaN, or 0
            if not row.exp2().sum().isfinite():
                raise InputError(
                    index,
                    f"LambdaLoss' gain 2^{float(row.max()):g} is beyond float32; scale the labels, or take another "
                    "loss",
                )
        scheme = getattr(losses, _SCHEMES[self.weighting])()
        return upstream_loss("LambdaLoss", scores, labels, k=self.k, sigma=self.sigma, weighting_scheme=scheme)


@register_loss("listnet")
class ListNet(Loss):
    """Softmax of the labels against softmax of the scores.

    Attributes:
        label_temperature: divides labels before their softmax, which is the target.
    """

    cites, mean_of = "ListNetLoss", "lists"

    label_temperature: Positive = 1.0

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        return upstream_loss("ListNetLoss", scores, [row / self.label_temperature for row in labels])


@register_loss("adrmse")
class ADRMSE(Loss):
    """Squared error of approximate ranks, discounted.

    Attributes:
        alpha: steepness of the approximate ranks.
    """

    cites = "ADRMSELoss"

    alpha: Positive = 1.0

    def __call__(self, scores: Lists, labels: Lists, chance: Chance) -> Tensor:
        return upstream_loss("ADRMSELoss", scores, labels, alpha=self.alpha)
