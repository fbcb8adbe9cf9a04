"""InfoNCE of anchors over candidates, with several positives, hardest negatives, and a correction for unlabelled ones.

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
from torch.utils.checkpoint import checkpoint

_CELLS = 32_000_000
"""Scores held at once, 128 MB; a larger batch computes its scores again in the backward pass, part by part."""


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


def matching_pairs(anchor_ids: Tensor, candidate_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and columns where the ids are equal, by row and then by column.

    Args:
        anchor_ids: ``(B,)``.
        candidate_ids: ``(M,)``; the same id may stand several times.
    """
    ordered, columns = torch.sort(candidate_ids, stable=True)
    begin = torch.searchsorted(ordered, anchor_ids)
    counts = torch.searchsorted(ordered, anchor_ids, right=True) - begin
    rows = torch.repeat_interleave(torch.arange(len(anchor_ids), device=anchor_ids.device), counts)
    within = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    return rows, columns[begin[rows] + within]


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
        candidate_ids: ``(M,)``; null where a candidate's place is its id.
        temperature: cosines are divided by it.
        extra: further positives; they are nobody else's negatives.
        negatives: which of them count.

    Returns:
        A number; gradients flow to anchors and candidates.

    Raises:
        ValueError: an anchor has no positive among candidates and extra.
    """
    if candidate_ids is None:
        rows, columns = torch.arange(len(anchors), device=anchors.device), anchor_ids
    else:
        rows, columns = matching_pairs(anchor_ids, candidate_ids)
    has_positive = torch.zeros(len(anchors), dtype=torch.bool, device=anchors.device)
    has_positive[rows] = True
    if extra is not None:
        has_positive |= extra.valid.any(1)
    if not bool(has_positive.all()):
        raise ValueError("an anchor has no positive; put its target among the candidates")
    negatives = negatives or Negatives()
    count = max(1, _CELLS // max(1, len(candidates)))
    if len(anchors) <= count:
        return _losses(anchors, candidates, temperature, rows, columns, extra, negatives).mean()
    losses = []
    for begin in range(0, len(anchors), count):
        part = slice(begin, begin + count)
        inside = (rows >= begin) & (rows < begin + count)
        further = None if extra is None else Extra(extra.vectors[part], extra.valid[part])
        own = (rows[inside] - begin, columns[inside], further, negatives)
        losses.append(checkpoint(_losses, anchors[part], candidates, temperature, *own, use_reentrant=False))
    return torch.cat(losses).mean()


def _losses(
    anchors: Tensor,
    candidates: Tensor,
    temperature: float,
    rows: Tensor,
    columns: Tensor,
    extra: Extra | None,
    negatives: Negatives,
) -> Tensor:
    """Return the loss of each anchor, ``(B,)``; its positives are at ``rows, columns`` of the scores, and in ``extra``.

    Exponentials are taken of scores less the row's largest, so that none overflows.
    """
    sharp = anchors / temperature
    scores = sharp @ candidates.T
    own = scores[rows, columns]
    if negatives.hardest:
        scores = scores.masked_fill(_easy(scores.detach(), rows, columns, negatives), -torch.inf)
    counts = _per_row(torch.ones_like(own), rows, len(anchors))
    among = counts  # of its positives, those among the candidates
    logs, largest = _per_row(own, rows, len(anchors)), scores.detach().amax(1)
    further = None
    if extra is not None:
        further = torch.einsum("bd,bkd->bk", sharp, extra.vectors).masked_fill(~extra.valid, -torch.inf)
        largest = torch.maximum(largest, further.detach().amax(1))
        logs = logs + further.masked_fill(~extra.valid, 0.0).sum(1)
        counts = counts + extra.valid.sum(1)
    of_candidates = (scores - largest[:, None]).exp().sum(1)
    of_extra = 0.0 if further is None else (further - largest[:, None]).exp().sum(1)
    if negatives.prior is None:
        return largest + (of_candidates + of_extra).log() - logs / counts
    present = (scores > -torch.inf).sum(1) - among
    own_part = _per_row((own - largest[rows]).exp(), rows, len(anchors))
    positive = own_part + of_extra
    corrected = of_candidates - own_part - negatives.prior * present * positive / counts
    floor = present * (-1.0 / temperature - largest).exp()
    total = positive + torch.maximum(corrected / (1.0 - negatives.prior), floor)
    return largest + total.log() - logs / counts


def _easy(scores: Tensor, rows: Tensor, columns: Tensor, negatives: Negatives) -> Tensor:
    """Return which minable negatives are not among an anchor's nearest, ``(B, M)``; positives are not minable."""
    easy = torch.zeros_like(scores, dtype=torch.bool)
    if scores.shape[1] - negatives.start > negatives.hardest:
        minable = scores[:, negatives.start :].clone()
        inside = columns >= negatives.start
        minable[rows[inside], columns[inside] - negatives.start] = -torch.inf
        nearest = minable.topk(negatives.hardest, dim=1).indices
        easy[:, negatives.start :] = True
        easy.scatter_(1, nearest + negatives.start, False)
        easy[rows, columns] = False
    return easy


def _per_row(values: Tensor, rows: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, rows, values)
