"""The losses of a batch: InfoNCE over candidates, and the terms beside it.

For an anchor with positives P and negatives N, scores ``s = cosine / temperature``:

    loss = log(sum_P e^s + N_g) - mean_P s,      N_g = sum_N e^s

which is the mean of logs of Khosla et al. 2020 (SupCon's ``L_out``), and plain InfoNCE where P is one. The debiased
variant (Chuang et al. 2020) corrects for negatives that are unlabelled positives, with prior t:

    N_g = |N| max((mean_N e^s - t mean_P e^s) / (1 - t), e^(-1/temperature))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Extra:
    """Further positives of each anchor, without gradient.

    Attributes:
        vectors: ``(B, K, D)`` of unit length.
        valid: ``(B, K)`` which of them are there.
    """

    vectors: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Negatives:
    """Which candidates count against an anchor.

    Attributes:
        hardest: of the candidates from ``start`` on, only this many of the anchor's nearest that are not its
            positives; 0 for all.
        start: the candidates before it always count.
        prior: of the debiased loss; null for the plain one.
    """

    hardest: int = 0
    start: int = 0
    prior: float | None = None


def contrastive_loss(
    anchors: Tensor,
    anchor_ids: Tensor,
    candidates: Tensor,
    candidate_ids: Tensor | None,
    temperature: float,
    *,
    extra: Extra | None = None,
    negatives: Negatives | None = None,
) -> Tensor:
    """Return the mean loss over anchors; candidates of an anchor's id are its positives, all others its negatives.

    Args:
        anchors: ``(B, D)`` of unit length.
        anchor_ids: ``(B,)`` integers; every anchor needs a positive.
        candidates: ``(M, D)`` of unit length.
        candidate_ids: ``(M,)``; None where a candidate's place is its id.
        temperature: cosines are divided by it.
        extra: further positives; they are nobody else's negatives.
        negatives: which of them count.
    """
    negatives = negatives or Negatives()
    sharp = anchors / temperature
    scores = sharp @ candidates.T
    if candidate_ids is None:
        candidate_ids = torch.arange(len(candidates), device=anchors.device)
    positive = anchor_ids[:, None] == candidate_ids
    if negatives.hardest:
        scores = scores.masked_fill(_easy(scores.detach(), positive, negatives), -torch.inf)
    if extra is not None:
        further = torch.einsum("bd,bkd->bk", sharp, extra.vectors).masked_fill(~extra.valid, -torch.inf)
        scores, positive = torch.cat([scores, further], dim=1), torch.cat([positive, extra.valid], dim=1)
    counts = positive.sum(1, dtype=scores.dtype)
    mean_positive = scores.masked_fill(~positive, 0.0).sum(1) / counts
    if negatives.prior is None:
        return (scores.logsumexp(1) - mean_positive).mean()
    # Exponentials are taken of scores less the row's largest, so that none overflows.
    largest = scores.detach().amax(1)
    exponentials = (scores - largest[:, None]).exp()
    of_positives = exponentials.masked_fill(~positive, 0.0).sum(1)
    of_negatives = exponentials.masked_fill(positive, 0.0).sum(1)
    present = (~positive & (scores > -torch.inf)).sum(1, dtype=scores.dtype)
    corrected = (of_negatives - negatives.prior * present * of_positives / counts) / (1.0 - negatives.prior)
    floor = present * (-1.0 / temperature - largest).exp()
    total = of_positives + torch.maximum(corrected, floor)
    return (largest + total.log() - mean_positive).mean()


def _easy(scores: Tensor, positive: Tensor, negatives: Negatives) -> Tensor:
    """Return which minable negatives are not among an anchor's nearest, ``(B, M)``; positives are not minable."""
    minable = ~positive
    minable[:, : negatives.start] = False
    hardest = min(negatives.hardest, scores.shape[1])
    nearest = scores.masked_fill(~minable, -torch.inf).topk(hardest, dim=1).indices
    return minable.scatter(1, nearest, False)


def cosine_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of one minus the cosine of unit vectors ``(B, D)``."""
    return 1.0 - (predicted * targets).sum(1).mean()


def moment_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the squared distance of the means of ``(B, D)`` over the batch, plus that of the standard deviations."""
    means = (predicted.mean(0) - targets.mean(0)).square().sum()
    deviations = _deviations(predicted) - _deviations(targets)
    return means + deviations.square().sum()


def _deviations(vectors: Tensor) -> Tensor:
    """Return the deviation of each dimension, kept above zero, where a root would have no derivative."""
    return vectors.var(0, correction=0).clamp(min=1e-12).sqrt()


def agreement_loss(predicted: Tensor, images: Tensor) -> tuple[Tensor, int]:
    """Return the mean squared distance of predictions ``(B, D)`` from the mean of those for the same image.

    Returns:
        The mean over captions that share their image with another of the batch, zero where none does; and the number
        of pairs that share one.
    """
    _, place, counts = torch.unique(images, return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1) // 2).sum())
    if not pairs:
        return predicted.sum() * 0.0, 0
    sums = torch.zeros(len(counts), predicted.shape[1], dtype=predicted.dtype, device=predicted.device)
    means = sums.index_add(0, place, predicted) / counts[:, None]
    distances = (predicted - means[place]).square().sum(1)
    return distances[counts[place] > 1].mean(), pairs
