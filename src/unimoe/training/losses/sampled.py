"""Estimates of a measure's gradient from rankings that are drawn, for the losses that raise the measure itself.

``score_es`` perturbs the scores of lists, by evolution strategies. A list's measure depends on its own scores alone, so
each list has an estimate of P dimensions, and every direction serves all lists at once. ``pg_rank`` draws rankings from
a Plackett-Luce model, which picks one document after the other, each with the softmax of the scores that remain. Of the
measure's k places alone: the order of the rest would add noise and nothing else. Whatever made the scores is then
differentiated exactly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

BLOCK = 32
"""Lists to sample rankings of at a time, which bounds the memory."""

Measure = Callable[[Tensor, slice], Tensor]
"""From scores ``(b, P, N)``, N rankings of each list, and which lists they are, to measures ``(b, N)``."""


def generator_of(seed: int, step: int) -> torch.Generator:
    """Make the generator of a step; no two pairs of seed and step share random numbers."""
    key = hashlib.blake2b(f"loss\n{seed}\n{step}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)


def score_space_gradient(scores: Tensor, measure: Measure, sigma: float, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate the mean measure's gradient with respect to the scores, from antithetic pairs.

    It is unbiased for the measure's mean under noise: of ``E[measure(scores + sigma z)]``, averaged over the lists.

    Args:
        scores: ``(B, P)``, ``-inf`` where a list is padded.
        measure: of the same lists.
        sigma: scale of the noise, in units of scores.
        noise: M directions, standard normal, ``(M, B, P)``; each is used with both signs.

    Returns:
        The gradient ``(B, P)``, 0 where a list is padded, and the measures ``(B, 2M)``, plus before minus.
    """
    count, lists, _ = noise.shape
    noise = noise.to(scores.device, scores.dtype)
    gradient, fitness = torch.zeros_like(scores), []
    for begin in range(0, lists, BLOCK):
        part = slice(begin, min(begin + BLOCK, lists))
        shift = sigma * noise[:, part].permute(1, 2, 0)
        base = scores[part].unsqueeze(2)
        found = measure(torch.cat([base + shift, base - shift], dim=2), part)
        plus, minus = found.chunk(2, dim=1)
        weights = ((plus - minus) / (2 * count * sigma * lists)).to(scores.dtype)
        gradient[part] = torch.einsum("mbp,bm->bp", noise[:, part], weights)
        fitness.append(found)
    return gradient.masked_fill_(scores == -torch.inf, 0), torch.cat(fitness)


def spread_of(scores: Tensor, valid: Tensor) -> float:
    """Return the standard deviation of the valid scores ``(B, P)`` in a list, averaged over lists as variances are."""
    count = valid.sum(1, keepdim=True).clamp(min=1)
    inside = scores.masked_fill(~valid, 0)
    apart = (inside - inside.sum(1, keepdim=True) / count).masked_fill(~valid, 0)
    return math.sqrt(float((apart.square().sum(1, keepdim=True) / count).mean()))


def drawn_orders(scores: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` rankings of each list ``(b, P)``, -inf where padded: the order of the scores with Gumbel noise.

    Returns:
        The places of the documents, the best first and padding last, ``(b, N, P)``.
    """
    waits = torch.empty(len(scores), count, scores.shape[1]).exponential_(generator=generator)
    return (scores.unsqueeze(1) - waits.log().to(scores)).argsort(dim=2, descending=True)


def advantages(values: Tensor, baseline: Literal["leave_one_out", "group", "none"]) -> Tensor:
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


def with_gradient(scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return a scalar of a given value and of a given gradient with respect to the scores."""
    return value + (gradient * (scores - scores.detach())).sum()


def group_scale(found: Tensor) -> Tensor:
    """Return what the measures ``(B, N)`` of each list's rankings are divided by, ``(B, 1)``: 1 where all are equal."""
    spread = found.std(dim=1, correction=0, keepdim=True)
    return spread.where(spread > 0, 1.0)
