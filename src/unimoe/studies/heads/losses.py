"""Gradient losses over the scores of pools: the baselines that evolution strategies are compared with.

Each takes scores ``(B, P)``, grades ``(B, P)`` and ``valid (B, P)``, and gives the mean over queries, a scalar. Padded
places never count. Queries without a relevant document in their pool add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unimoe.config.losses import LossConfig, LossName

Loss = Callable[[Tensor, Tensor, Tensor, float, int], Tensor]
"""From scores, grades, valid, temperature and the cutoff of nDCG."""

_FAR = -1e9


def infonce(scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, k: int) -> Tensor:
    """InfoNCE with several positives: the mean of the logarithms (van den Oord et al. 2018, Khosla et al. 2020)."""
    logits = (scores / temperature).masked_fill(~valid, _FAR)
    positive = (grades > 0) & valid
    # Each positive against all negatives and itself: another positive is no negative.
    negatives = logits.masked_fill(positive, _FAR).logsumexp(1, keepdim=True)
    losses = torch.logaddexp(logits, negatives) - logits
    return _mean_over_queries((losses * positive).sum(1) / positive.sum(1).clamp(min=1), positive)


def listnet(scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, k: int) -> Tensor:
    """ListNet's top-one cross entropy (Cao et al. 2007): softmax of grades against softmax of scores."""
    targets = grades.masked_fill(~valid, _FAR).softmax(1)
    logs = (scores / temperature).masked_fill(~valid, _FAR).log_softmax(1)
    return _mean_over_queries(-(targets * logs).masked_fill(~valid, 0.0).sum(1), (grades > 0) & valid)


def approxndcg(scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, k: int) -> Tensor:
    """One minus ApproxNDCG (Qin et al. 2010): ranks by sigmoids of differences, linear gain, without a cutoff."""
    differences = (scores.unsqueeze(1) - scores.unsqueeze(2)) / temperature  # [b, i, j]: s_j - s_i
    pairs = differences.sigmoid() * valid.unsqueeze(1)
    ranks = 1 + pairs.sum(2) - 0.5  # without the document itself, whose sigmoid is a half
    gains = grades * valid
    value = (gains / torch.log2(1 + ranks)).sum(1)
    return _mean_over_queries(1 - value / _ideal(gains, gains.shape[1]).clamp(min=1e-9), gains > 0)


def lambdaloss(scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, k: int) -> Tensor:
    """LambdaLoss for nDCG@k: NDCG-Loss2++ with mu 10 (Wang et al. 2018), linear gain, base-2 logarithms."""
    order = scores.masked_fill(~valid, _FAR).argsort(dim=1, descending=True, stable=True)
    ranked, gains = scores.gather(1, order) / temperature, (grades * valid).gather(1, order)
    inside = valid.gather(1, order)
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    discounts = torch.log2(1 + places)
    normal = gains / _ideal(gains, k).clamp(min=1e-9).unsqueeze(1)
    gap = (places.unsqueeze(0) - places.unsqueeze(1)).abs()
    delta = (1 / torch.log2(1 + gap.clamp(min=1)) - 1 / torch.log2(2 + gap)).abs() * (gap > 0)
    swap = (1 / discounts.unsqueeze(0) - 1 / discounts.unsqueeze(1)).abs()
    weights = (10 * delta + swap) * (normal.unsqueeze(2) - normal.unsqueeze(1)).abs()
    top = (places <= k).unsqueeze(0) | (places <= k).unsqueeze(1)
    better = (gains.unsqueeze(2) > gains.unsqueeze(1)) & inside.unsqueeze(2) & inside.unsqueeze(1) & top
    # Not the logarithm of a sigmoid, which would underflow, and its gradient vanish, where a pair is far out of order.
    costs = -torch.nn.functional.logsigmoid(ranked.unsqueeze(2) - ranked.unsqueeze(1)) / math.log(2.0)
    losses = costs * weights.detach() * better
    return _mean_over_queries(losses.sum((1, 2)), gains > 0)


def listwise(
    name: LossName, scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, ties: torch.Generator
) -> Tensor:
    """A loss of the rerankers, see ``training/losses``, with its defaults; equal grades are shuffled by ``ties``."""
    from unimoe.losses.listwise import ListwiseLoss  # sentence-transformers takes seconds to import

    rows = ((grades > 0) & valid).any(1).nonzero().flatten().tolist()
    if not rows:
        return 0.0 * scores.sum()
    ordered = {"respect_input_order": False, "ties": "shuffle"} if name in ("listmle", "plistmle") else {}
    loss = ListwiseLoss(LossConfig.model_validate({"name": name, **ordered}), generator=ties)
    found: Tensor = loss(
        [scores[row][valid[row]] / temperature for row in rows], [grades[row][valid[row]] for row in rows]
    )
    return found


LISTWISE: tuple[LossName, ...] = ("softmax", "listmle", "plistmle", "ranknet", "adrmse")
"""Names that ``listwise`` takes."""

LOSSES: dict[str, Loss] = {
    "infonce": infonce,
    "lambdaloss": lambdaloss,
    "approxndcg": approxndcg,
    "listnet": listnet,
}


def _ideal(gains: Tensor, k: int) -> Tensor:
    best = gains.sort(1, descending=True).values[:, :k]
    places = torch.arange(2, best.shape[1] + 2, device=gains.device, dtype=gains.dtype)
    return (best / torch.log2(places)).sum(1)


def _mean_over_queries(losses: Tensor, positive: Tensor) -> Tensor:
    has = positive.any(1)
    return (losses * has).sum() / has.sum().clamp(min=1)
