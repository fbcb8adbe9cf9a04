"""The formulas that several losses share, over padded scores or over a matrix of scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from unimoe.training.losses import Lists

FAR = -1e9
"""The score of a padded place: its exponential is 0, and unlike infinity it has a derivative."""


def yes_no_loss(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the answers ``yes`` and ``no``, per pair ``(N,)``; labels are 1 for yes, else 0.

    Equals ``-log_softmax([logit_no, logit_yes])[label]``, the loss that Qwen3-Reranker is fine-tuned with.
    """
    return functional.binary_cross_entropy_with_logits(margins, labels, reduction="none")


def info_nce(scores: Tensor, positives: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Return InfoNCE: cross-entropy between the softmax of the scores and the positives, the mean over queries.

    With several positives of a query this is the mean of logarithms of Khosla et al. 2020 (SupCon's ``L_out``).

    Args:
        scores: of each query with each document, divided by the temperature, ``(Q, N)``.
        positives: the column of each query's positive, int64 ``(Q,)``; or its positives, bool ``(Q, N)``, at least one
            in a row.
        excluded: ``(Q, N)`` bool, documents that are neither positive nor negative; None for none.

    Source: van den Oord et al. 2018, with false negatives masked.
    """
    logits = scores if excluded is None else scores.masked_fill(excluded, -torch.inf)
    if positives.dim() == 1:
        return functional.cross_entropy(logits, positives)
    log_shares = functional.log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
    targets = positives.float() / positives.sum(dim=1, keepdim=True)  # the positives of a query in equal parts
    return -(targets * log_shares).sum(dim=1).mean()


def nt_xent(scores: Tensor, positives: Tensor, valid: Tensor) -> Tensor:
    """Return InfoNCE of every positive against the negatives alone: another positive is no negative.

    Equals ``info_nce`` where a query has one positive. Scores, divided by the temperature, positives, and ``valid``,
    the places that hold a document, are ``(Q, N)``.

    Returns:
        The mean over the positives of each query, ``(Q,)``; 0 where there is none.

    Source: van den Oord et al. 2018; NT-Xent of Chen et al. 2020, with pairs of a query and one positive.
    """
    logits = scores.masked_fill(~valid, FAR)
    negatives = logits.masked_fill(positives, FAR).logsumexp(1, keepdim=True)
    losses = torch.logaddexp(logits, negatives) - logits
    return (losses * positives).sum(1) / positives.sum(1).clamp(min=1)


def padded(scores: Lists, labels: Lists) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores and labels ``(B, P)``, 0 where padded, and which places hold a document."""
    valid = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in scores], batch_first=True)
    return pad_sequence(list(scores), batch_first=True), pad_sequence(list(labels), batch_first=True), valid


def mean_over_lists(losses: Tensor, positive: Tensor) -> Tensor:
    """Return the mean of the losses ``(B,)`` of lists that have a positive, ``(B, P)``; 0 where none has."""
    has = positive.any(1)
    return (losses * has).sum() / has.sum().clamp(min=1)
