"""Contrastive losses over a matrix of scores: each query against the documents of the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def info_nce(scores: Tensor, positives: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Return InfoNCE: cross-entropy between the softmax of the scores and the positives.

    With several positives of a query this is the mean of logarithms of Khosla et al. 2020 (SupCon's ``L_out``).

    Args:
        scores: of each query with each document, divided by the temperature, ``(Q, N)``.
        positives: the column of each query's positive, int64 ``(Q,)``; or its positives, bool ``(Q, N)``, at least one
            in a row.
        excluded: ``(Q, N)`` bool, documents that are neither positive nor negative; None for none.

    Returns:
        The mean over the queries, a scalar.

    Source: van den Oord et al. 2018, with false negatives masked.
    """
    logits = scores if excluded is None else scores.masked_fill(excluded, -torch.inf)
    if positives.dim() == 1:
        return functional.cross_entropy(logits, positives)
    log_shares = functional.log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
    return -(label_matrix(positives) * log_shares).sum(dim=1).mean()


def label_matrix(positives: Tensor) -> Tensor:
    """Return the targets of each row: its positives in equal parts.

    With one document for each query, ``positives[i, j] = [q_i = q_j]`` and this is ``[q_i = q_j] / sum_k [q_i = q_k]``.

    Args:
        positives: ``(Q, N)`` bool, at least one in a row.

    Returns:
        ``(Q, N)`` float32, rows that sum to 1.
    """
    return positives.float() / positives.sum(dim=1, keepdim=True)


def nt_xent(scores: Tensor, positives: Tensor, valid: Tensor) -> Tensor:
    """Return InfoNCE of every positive against the negatives alone: another positive is no negative.

    Equals ``info_nce`` where a query has one positive.

    Args:
        scores: divided by the temperature, ``(Q, N)``.
        positives: ``(Q, N)`` bool.
        valid: ``(Q, N)`` bool, places that hold a document.

    Returns:
        The mean over the positives of each query, ``(Q,)``; 0 where there is none.

    Source: van den Oord et al. 2018; NT-Xent of Chen et al. 2020, whose pairs are a query and one positive.
    """
    logits = scores.masked_fill(~valid, FAR)
    negatives = logits.masked_fill(positives, FAR).logsumexp(1, keepdim=True)
    losses = torch.logaddexp(logits, negatives) - logits
    return (losses * positives).sum(1) / positives.sum(1).clamp(min=1)


FAR = -1e9
"""The score of a padded place: its exponential is 0, and unlike infinity it has a derivative."""
