"""Evolution strategies in the space of scores: perturb the scores, then backpropagate exactly through the head.

A query's metric depends on its own scores alone, so each query has an estimate of P dimensions in place of the weight's
``D_out D_in``, and every direction serves all queries at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimoe.studies.heads.eggroll.ndcg import PoolMetric
from unimoe.studies.heads.eggroll.noise import factors
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.scoring import Similarity

_BLOCK = 32  # queries perturbed at a time, which bounds the memory


def score_space_gradient(
    scores: Tensor, metric: PoolMetric, sigma: float, *, seed: int, step: int, count: int
) -> tuple[Tensor, Tensor]:
    """Estimate the mean metric's gradient with respect to the scores, from antithetic pairs.

    Args:
        scores: ``(B, P)``, ``-inf`` where a pool is padded.
        metric: of the same pools.
        sigma: scale of the noise, in units of scores.
        seed: of the training.
        step: of the training.
        count: M, directions; each is used with both signs.

    Returns:
        The gradient ``(B, P)``, 0 where a pool is padded, and the perturbed metrics ``(B, 2M)``, plus before minus.
    """
    queries, size = scores.shape
    padded = scores == -torch.inf
    noise = factors("scores", seed, step, count, queries * size)
    noise = noise.view(count, queries, size).to(scores.device, scores.dtype)
    gradient, fitness = torch.zeros_like(scores), []
    for begin in range(0, queries, _BLOCK):
        part = slice(begin, min(begin + _BLOCK, queries))
        shift = sigma * noise[:, part].permute(1, 2, 0)
        base = scores[part].unsqueeze(2)
        found = metric(torch.cat([base + shift, base - shift], dim=2), part)
        plus, minus = found.chunk(2, dim=1)
        weights = ((plus - minus) / (2 * count * sigma * queries)).to(scores.dtype)
        gradient[part] = torch.einsum("mbp,bm->bp", noise[:, part], weights)
        fitness.append(found)
    return gradient.masked_fill_(padded, 0), torch.cat(fitness)


def through_head(gradient: Tensor, weight: Tensor, pools: Pools, similarity: Similarity) -> Tensor:
    """Return the exact gradient ``(D_out, D)`` with respect to the weight from the one with respect to the scores.

    For the dot product ``(W q).(W d)`` it is ``W (z q^T + q z^T)`` summed over queries, with ``z = sum_d g_d d``: no
    document is projected.

    Args:
        gradient: with respect to ``base_scores``, ``(B, P)``, 0 where a pool is padded.
        weight: ``(D_out, D)``.
        pools: B queries and their documents.
        similarity: of the scores.
    """
    queries, documents = pools.queries, pools.documents
    if similarity == "dot":
        pulled = torch.bmm(gradient.unsqueeze(1), documents).squeeze(1)
        return weight @ (pulled.T @ queries + queries.T @ pulled)
    units, lengths = _normalised(queries @ weight.T)
    document_units, document_lengths = _normalised(documents @ weight.T)
    cosines = torch.bmm(document_units, units.unsqueeze(2))
    slopes = gradient.unsqueeze(2)
    to_queries = ((slopes * (document_units - cosines * units.unsqueeze(1))).sum(dim=1)) / lengths
    to_documents = slopes * (units.unsqueeze(1) - cosines * document_units) / document_lengths
    return to_queries.T @ queries + to_documents.flatten(0, 1).T @ documents.flatten(0, 1)


def _normalised(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit vectors and lengths; a length of 0 has no direction to move in, and counts as infinite."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    lengths = torch.where(lengths == 0, torch.inf, lengths)
    return vectors / lengths, lengths
