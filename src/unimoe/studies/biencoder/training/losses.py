"""InfoNCE over a batch with several positives, an additive margin, and what must not count as a negative."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unimoe.errors import UsageError
from unimoe.studies.biencoder.config import ContrastiveConfig


def label_matrix(positives: Tensor) -> Tensor:
    """The targets of each row: its positives in equal parts.

    With one document for each query, ``positives[i, j] = [q_i = q_j]`` and this is ``[q_i = q_j] / sum_k [q_i = q_k]``.

    Args:
        positives: ``(Q, N)`` bool, at least one in a row.

    Returns:
        ``(Q, N)`` float32, rows that sum to 1.
    """
    return positives.float() / positives.sum(dim=1, keepdim=True)


def contrastive_loss(
    queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, config: ContrastiveConfig
) -> Tensor:
    """Cross entropy between the label matrix and the softmax of ``(cosine - margin * positive) / temperature``.

    Args:
        queries: unit vectors ``(Q, D)``.
        documents: unit vectors ``(N, D)``, each document of the batch once.
        positives: ``(Q, N)`` bool, the targets of each query, at least one.
        excluded: ``(Q, N)`` bool, what is neither target nor negative.
        config: temperature, margin, and whether documents look for their queries too.

    Returns:
        The mean over the queries, a scalar; symmetric: its mean with that over the documents that are a positive.

    Raises:
        UsageError: there is no query, or one has no positive.

    Source: van den Oord et al. 2018; the margin is that of LaBSE (Feng et al. 2022, section 3.2).
    """
    if not len(positives) or not bool(positives.any(dim=1).all()):
        raise UsageError("a batch without queries, or with a query that has no positive, has no contrastive loss")
    cosines = queries @ documents.T
    logits = ((cosines - config.margin * positives) / config.temperature).masked_fill(excluded, -torch.inf)
    forward = _cross_entropy(logits, positives)
    if not config.symmetric:
        return forward
    anchors = positives.any(dim=0)  # a hard negative is nobody's document and looks for no query
    return (forward + _cross_entropy(logits.T[anchors], positives.T[anchors])) / 2


def _cross_entropy(logits: Tensor, positives: Tensor) -> Tensor:
    log_shares = nn.functional.log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
    return -(label_matrix(positives) * log_shares).sum(dim=1).mean()
