"""Evolution strategies in the space of scores: perturb the scores of lists, and measure the rankings.

A list's measure depends on its own scores alone, so each list has an estimate of P dimensions, and every direction
serves all lists at once. Whatever made the scores is then differentiated exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unimoe.training.losses.sampling import BLOCK

Measure = Callable[[Tensor, slice], Tensor]
"""From scores ``(b, P, N)``, N rankings of each list, and which lists they are, to measures ``(b, N)``."""


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
