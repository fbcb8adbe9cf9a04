"""What a head adds to evolution in the space of scores: noise by counter, and exact derivatives down to the weights."""

from __future__ import annotations

import torch
from torch import Tensor

from unimoe.studies.heads.eggroll.noise import factors
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.scoring import Similarity


def score_noise(seed: int, step: int, count: int, scores: Tensor) -> Tensor:
    """Draw the directions of a step, ``(count, B, P)``, for scores ``(B, P)``."""
    noise = factors("scores", seed, step, count, scores.numel())
    return noise.view(count, *scores.shape).to(scores.device, scores.dtype)


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
