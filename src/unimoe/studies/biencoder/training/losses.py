"""InfoNCE with an additive margin, for queries and for documents."""

from __future__ import annotations

import torch
from torch import Tensor

from unimoe.core.errors import UsageError
from unimoe.studies.biencoder.config import ContrastiveConfig
from unimoe.training.losses.built_in import info_nce


def contrastive_loss(
    queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, config: ContrastiveConfig
) -> Tensor:
    """Return InfoNCE of ``(cosine - margin * positive) / temperature``.

    Args:
        queries: unit vectors ``(Q, D)``.
        documents: unit vectors ``(N, D)``, each document of the batch once.
        positives: ``(Q, N)`` bool, the targets of each query, at least one.
        excluded: ``(Q, N)`` bool, documents that are neither.
        config: temperature, margin, and whether documents are contrasted over the queries too.

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
    forward = info_nce(logits, positives)
    if not config.symmetric:
        return forward
    anchors = positives.any(dim=0)  # a hard negative belongs to no query
    return (forward + info_nce(logits.T[anchors], positives.T[anchors])) / 2
