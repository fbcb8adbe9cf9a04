"""InfoNCE of anchors over candidates, with its gradient computed in the same pass.

For an anchor with positives P and negatives N, scores ``s = cosine / temperature``:

    loss = log(sum_P e^s + N_g) - mean_P s,      N_g = sum_N e^s

which is the mean of logs of Khosla et al. 2020 (SupCon's ``L_out``), and plain InfoNCE where P is one. The debiased
variant (Chuang et al. 2020) corrects for negatives that are unlabelled positives, with prior t:

    N_g = |N| max((mean_N e^s - t mean_P e^s) / (1 - t), e^(-1/temperature))

The matrix of scores is made once and changed in place until it is the gradient's; backward only scales what forward
left. So a step costs two matrix products and a few passes over one matrix, where autograd would keep three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CELLS = 32_000_000
"""Scores held at once: 128 MB."""


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
    given = (temperature, rows, columns, extra, negatives or Negatives())
    loss: Tensor = _Contrastive.apply(anchors, candidates, *given)
    return loss


class _Contrastive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        candidates: Tensor,
        temperature: float,
        rows: Tensor,
        columns: Tensor,
        extra: Extra | None,
        negatives: Negatives,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[:2]
        count = max(1, _CELLS // max(1, len(candidates)))
        of_anchors = torch.empty_like(anchors) if wanted[0] else None
        of_candidates = torch.zeros_like(candidates) if wanted[1] else None
        losses = []
        for begin in range(0, len(anchors), count):
            part = slice(begin, min(begin + count, len(anchors)))
            inside = (rows >= part.start) & (rows < part.stop)
            block = _Block(
                anchors[part],
                candidates,
                temperature,
                rows[inside] - begin,
                columns[inside],
                None if extra is None else Extra(extra.vectors[part], extra.valid[part]),
                negatives,
            )
            losses.append(block.losses)
            if of_anchors is not None or of_candidates is not None:
                block.differentiate()
            if of_anchors is not None:
                of_anchors[part] = block.of_anchors(temperature * len(anchors))
            if of_candidates is not None:
                of_candidates += block.of_candidates(temperature * len(anchors))
        ctx.gradients = (of_anchors, of_candidates)
        return torch.cat(losses).mean()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if gradient is None else gradient * upstream[0] for gradient in ctx.gradients]
        return (*scaled, None, None, None, None, None)


class _Block:
    """Some anchors against all candidates.

    Every row is shifted by its largest score, so that no exponential overflows.

    Attributes:
        losses: ``(b,)``.
    """

    def __init__(
        self,
        anchors: Tensor,
        candidates: Tensor,
        temperature: float,
        rows: Tensor,
        columns: Tensor,
        extra: Extra | None,
        negatives: Negatives,
    ) -> None:
        self._anchors, self._candidates, self._rows, self._columns = anchors, candidates, rows, columns
        self._extra = extra
        sharp = anchors / temperature
        scores = sharp @ candidates.T
        own = scores[rows, columns]
        if negatives.hardest:
            _keep_hardest(scores, rows, columns, negatives)
        present = None if negatives.prior is None else (scores > -torch.inf).sum(1)
        largest = scores.amax(1)
        further = None
        if extra is not None:
            further = torch.einsum("bd,bkd->bk", sharp, extra.vectors).masked_fill_(~extra.valid, -torch.inf)
            largest = torch.maximum(largest, further.amax(1))
        self._weights = scores.sub_(largest[:, None]).exp_()
        self._own = (own - largest[rows]).exp()
        self._further = None if further is None else (further - largest[:, None]).exp()
        counts = _per_row(torch.ones_like(own), rows, len(anchors))
        if present is not None:
            self._present = present - counts
        logs, positive = _per_row(own, rows, len(anchors)), _per_row(self._own, rows, len(anchors))
        negative = self._weights.sum(1) - positive
        if further is not None and extra is not None and self._further is not None:
            logs += further.masked_fill(~extra.valid, 0.0).sum(1)
            positive = positive + self._further.sum(1)
            counts += extra.valid.sum(1)
        self._counts, self._prior = counts, negatives.prior
        if negatives.prior is None:
            self._total, self._open = positive + negative, torch.ones_like(positive)
        else:
            prior = negatives.prior
            floor = self._present * (-1.0 / temperature - largest).exp()
            corrected = (negative - prior * self._present * positive / counts) / (1.0 - prior)
            self._open = (corrected > floor).to(own.dtype)
            self._total = positive + torch.maximum(corrected, floor)
        self.losses = largest + self._total.log() - logs / counts

    def differentiate(self) -> None:
        """Turn the exponentials into derivatives by score: of all candidates, then of the positives among them."""
        inverse = 1.0 / self._total
        prior = self._prior or 0.0
        self._scale = self._open * inverse / (1.0 - prior)
        share = inverse
        if self._prior is not None:
            share = inverse * (1.0 - self._open * prior / (1.0 - prior) * self._present / self._counts)
        # What the row's scale gives a positive, as if it were a negative, is taken back.
        rows = self._rows
        self._own = self._own * (share - self._scale)[rows] - (1.0 / self._counts)[rows]
        if self._further is not None and self._extra is not None:
            self._further = self._further * share[:, None] - self._extra.valid / self._counts[:, None]

    def of_anchors(self, divisor: float) -> Tensor:
        """Return the gradient of the sum of losses over ``divisor`` with respect to the anchors, ``(b, D)``."""
        found = (self._weights @ self._candidates).mul_(self._scale[:, None])
        found.index_add_(0, self._rows, self._own[:, None] * self._candidates[self._columns])
        if self._further is not None and self._extra is not None:
            found += torch.einsum("bk,bkd->bd", self._further, self._extra.vectors)
        return found.div_(divisor)

    def of_candidates(self, divisor: float) -> Tensor:
        """Return the gradient with respect to the candidates, ``(M, D)``; see ``of_anchors``."""
        scaled = self._anchors * self._scale[:, None]
        found = (scaled.T @ self._weights).T  # this way round nobody copies the weights
        found.index_add_(0, self._columns, self._own[:, None] * self._anchors[self._rows])
        return found.div_(divisor)


def _keep_hardest(scores: Tensor, rows: Tensor, columns: Tensor, negatives: Negatives) -> None:
    """Put minus infinity in the place of all minable negatives but an anchor's nearest; positives are not minable."""
    minable = scores[:, negatives.start :]
    if minable.shape[1] <= negatives.hardest:
        return
    inside = columns >= negatives.start
    rows, columns = rows[inside], columns[inside] - negatives.start
    own = minable[rows, columns]
    minable[rows, columns] = -torch.inf
    values, places = minable.topk(negatives.hardest, dim=1)
    minable.fill_(-torch.inf).scatter_(1, places, values)
    minable[rows, columns] = own


def _per_row(values: Tensor, rows: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, rows, values)
