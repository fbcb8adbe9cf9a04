"""Rankings drawn from a Plackett-Luce model, and the derivative of their log-probability.

The model picks one document after the other, each with the softmax of the scores that remain. Log-probabilities are of
the first k places alone where a measure looks at no more: the order of the rest would add noise and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimoe.config.training import Baseline
from unimoe.training.losses.sampling import group_scale


def drawn_orders(scores: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw rankings of each list: the order of the scores with Gumbel noise.

    Args:
        scores: ``(b, P)``, ``-inf`` where a list is padded.
        count: N.
        generator: on the CPU; None for torch's own.

    Returns:
        The places of the documents, the best first and padding last, ``(b, N, P)``.
    """
    waits = torch.empty(len(scores), count, scores.shape[1]).exponential_(generator=generator)
    return (scores.unsqueeze(1) - waits.log().to(scores)).argsort(dim=2, descending=True)


def advantages(values: Tensor, baseline: Baseline) -> Tensor:
    """Return the measures ``(b, N)`` of a list's rankings less their baseline.

    The mean of the other rankings does not depend on the ranking itself, so the gradient stays unbiased.
    """
    if baseline == "none":
        return values
    centred = values - values.mean(1, keepdim=True)
    if baseline == "group":
        return centred / group_scale(values)
    return centred * values.shape[1] / (values.shape[1] - 1)


def prefix_slopes(scores: Tensor, orders: Tensor, weights: Tensor, k: int | None) -> Tensor:
    """Return the weighted sum over rankings of the derivative of their log-probability.

    A document at place j has the derivative ``[j <= k] - sum_{i <= min(j, k)} exp(s_j) / sum_{l >= i} exp(s_l)``.

    Args:
        scores: ``(b, P)``, ``-inf`` where a list is padded.
        orders: of ``drawn_orders``, ``(b, N, P)``.
        weights: of the rankings, ``(b, N)``.
        k: how many places count; None for all.

    Returns:
        ``(b, P)``, 0 where a list is padded.
    """
    places = orders.shape[2]
    in_order = scores.unsqueeze(1).expand(orders.shape).gather(2, orders)
    remaining = in_order.flip(2).logcumsumexp(2).flip(2)
    counted = torch.arange(places, device=scores.device) < (places if k is None else k)
    # In logarithms, because a remainder of low scores would underflow; no term of the sum is above 1.
    inverse = (-remaining).masked_fill(~counted, -torch.inf).logcumsumexp(2)
    slopes = counted.to(scores) - (in_order + inverse).exp()
    slopes = (slopes * weights.unsqueeze(2)).masked_fill(in_order == -torch.inf, 0)
    flat = torch.zeros_like(scores).unsqueeze(1).expand(orders.shape).scatter(2, orders, slopes)
    return flat.sum(1)
