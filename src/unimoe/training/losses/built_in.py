"""The losses that sentence-transformers has not, or not for lists of any length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from unimoe.config.training import LossOptions
from unimoe.core.errors import InputError

Lists = Sequence[Tensor]
"""One float32 tensor ``(n_i,)`` for each list of documents: its scores, or its labels."""

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

    Source: van den Oord et al. 2018; NT-Xent of Chen et al. 2020, whose pairs are a query and one positive.
    """
    logits = scores.masked_fill(~valid, FAR)
    negatives = logits.masked_fill(positives, FAR).logsumexp(1, keepdim=True)
    losses = torch.logaddexp(logits, negatives) - logits
    return (losses * positives).sum(1) / positives.sum(1).clamp(min=1)


def yes_no(scores: Lists, labels: Lists, options: LossOptions) -> Tensor:
    """Return binary cross-entropy, the mean over all documents."""
    for index, row in enumerate(labels):
        if row.min() < 0 or row.max() > 1:
            raise InputError(index, "the loss yes_no takes labels between 0 and 1; scale the grades, or take another")
    return yes_no_loss(torch.cat(list(scores)), torch.cat(list(labels))).mean()


def softmax(scores: Lists, labels: Lists, options: LossOptions) -> Tensor:
    """Return the cross-entropy of picking a best document among those that are worse, the mean over lists.

    Where several have the highest label, each is set against the worse ones, and their mean is the list's loss.

    Source: the listwise softmax of ListNet's top-one model (Cao et al. 2007) with one relevant document.
    """
    found, grades, valid = padded(scores, labels)
    best = valid & (grades == grades.masked_fill(~valid, -torch.inf).amax(1, keepdim=True))
    return nt_xent(found, best, valid).mean()


def margin_mse(scores: Lists, labels: Lists, options: LossOptions) -> Tensor:
    """Return the mean squared error of the margins between a list's best document and each other one."""
    margins, wanted = [], []
    for row, given in zip(scores, labels, strict=True):
        order = given.argsort(descending=True, stable=True)
        margins.append(row[order[:1]] - row[order[1:]])
        wanted.append(given[order[:1]] - given[order[1:]])
    found = torch.cat(margins)
    return functional.mse_loss(found, torch.cat(wanted)) if len(found) else found.sum()


def infonce(scores: Lists, labels: Lists, options: LossOptions) -> Tensor:
    """Return InfoNCE of every positive (label above 0) against the negatives, the mean over lists that have one."""
    found, grades, valid = padded(scores, labels)
    positive = (grades > 0) & valid
    return _mean_over_lists(nt_xent(found, positive, valid), positive)


def supcon(scores: Lists, labels: Lists, options: LossOptions) -> Tensor:
    """Return InfoNCE with several positives (labels above 0) in one softmax, the mean over lists that have one."""
    found, grades, valid = padded(scores, labels)
    positive = (grades > 0) & valid
    log_shares = found.masked_fill(~valid, -torch.inf).log_softmax(1).masked_fill(~positive, 0.0)
    return _mean_over_lists(-log_shares.sum(1) / positive.sum(1).clamp(min=1), positive)


def approx_ndcg(scores: Lists, labels: Lists, options: LossOptions) -> Tensor:
    """Return 1 - ApproxNDCG: ranks by sigmoids of differences, linear gain, no cutoff; the mean over lists.

    A label below 0 counts as 0, as in nDCG; lists without a label above 0 add nothing.
    """
    found, grades, valid = padded(scores, labels)
    differences = (found.unsqueeze(1) - found.unsqueeze(2)) / options.temperature  # [b, i, j]: s_j - s_i
    pairs = differences.sigmoid() * valid.unsqueeze(1)
    ranks = 1 + pairs.sum(2) - 0.5  # without the document itself, whose sigmoid is a half
    gains = grades.clamp(min=0)
    value = (gains / torch.log2(1 + ranks)).sum(1)
    best = gains.sort(1, descending=True).values
    places = torch.arange(2, best.shape[1] + 2, device=gains.device, dtype=gains.dtype)
    ideal = (best / torch.log2(places)).sum(1)
    return _mean_over_lists(1 - value / ideal.clamp(min=1e-9), gains > 0)


def padded(scores: Lists, labels: Lists) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores and labels ``(B, P)``, 0 where padded, and which places hold a document."""
    valid = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in scores], batch_first=True)
    return pad_sequence(list(scores), batch_first=True), pad_sequence(list(labels), batch_first=True), valid


def _mean_over_lists(losses: Tensor, positive: Tensor) -> Tensor:
    has = positive.any(1)
    return (losses * has).sum() / has.sum().clamp(min=1)
