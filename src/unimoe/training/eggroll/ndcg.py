"""nDCG@k and MRR@k of every perturbation, as the evaluator counts them.

Few documents of a pool are relevant, so nothing is sorted: the rank of a relevant document is one more than the number
of documents before it, those with a higher score and, of equal scores, those at a lower index. Pools stand in
descending order of document ids, which is how trec_eval breaks ties. Where many documents are relevant, a stable sort
gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from unimoe.errors import DataError, UsageError
from unimoe.training.eggroll.kernels import kernel

Gain = Literal["linear", "exp2"]
Metric = Literal["ndcg", "mrr"]

MOST_COUNTED = 64
"""Relevant documents of a pool up to which ranks are counted; a sort of a pool costs as much as about this many."""


def gains_of(grades: Tensor, gain: Gain) -> Tensor:
    """What documents of these grades are worth: the grade, or ``2^grade - 1``; nothing below 0.

    Raises:
        UsageError: an unknown gain.
    """
    if gain not in get_args(Gain):
        raise UsageError(f"gain {gain!r}: unknown; use {' or '.join(get_args(Gain))}")
    grades = grades.clamp_min(0)
    return grades if gain == "linear" else torch.exp2(grades) - 1


def ideal_dcg(grades: Sequence[float], k: int, gain: Gain = "linear") -> float:
    """The DCG@k of the best possible ranking of a query.

    Args:
        grades: of all judged documents of the query, those outside its pool too; fractions are allowed.
        k: the cut-off.
        gain: ``linear`` as in trec_eval, or ``exp2``.

    Raises:
        UsageError: an unknown gain, or a cut-off below 1.
    """
    _check_cutoff(k)
    best = gains_of(torch.tensor(grades, dtype=torch.float64), gain).sort(descending=True).values[:k]
    return float((best * _discounts(k)[: len(best)]).sum())


class PoolMetric:
    """nDCG@k or MRR@k of pools whose judgments are prepared once.

    Fastest where queries with more relevant documents come first: the others are then left out without a copy.

    Args:
        grades: ``(B, P)``, 0 where a document is not judged; fractions are allowed.
        ideal: ``ideal_dcg`` of each query, ``(B,)``; a query with 0 has nDCG 0.
        k: the cut-off.
        metric: ``ndcg`` or ``mrr``; the reciprocal rank needs no ``ideal``, but takes it.
        gain: ``linear`` as in trec_eval, or ``exp2``.
        valid: ``(B, P)`` bool, False where a pool is padded; None where none is.
        compiled: compile the counting; takes some seconds at first.

    Raises:
        DataError: shapes do not fit, or a padded document is graded.
        UsageError: an unknown metric or gain, a cut-off below 1, or nothing to compile with.
    """

    def __init__(
        self,
        grades: Tensor,
        ideal: Tensor,
        k: int,
        *,
        metric: Metric = "ndcg",
        gain: Gain = "linear",
        valid: Tensor | None = None,
        compiled: bool = False,
    ) -> None:
        if metric not in get_args(Metric):
            raise UsageError(f"metric {metric!r}: unknown; use {' or '.join(get_args(Metric))}")
        _check_cutoff(k)
        _check_shapes(grades, ideal, valid)
        self._k, self._valid, self._first_only = k, valid, metric == "mrr"
        device = grades.device
        exact = torch.float32 if device.type == "mps" else torch.float64
        gains = gains_of(grades.to(exact), gain)
        if metric == "ndcg":
            self._gains = torch.where(ideal[:, None] > 0, gains / ideal.to(exact)[:, None], 0.0)
            worth = _discounts(k).to(device, exact)
        else:
            self._gains = (gains > 0).to(exact)
            worth = 1 / torch.arange(1, k + 1, dtype=exact, device=device)
        self._table = torch.cat([worth, worth.new_zeros(max(0, grades.shape[1] - k))])
        self._prepare_counting()
        self._fused = kernel(count_ahead, compiled) if compiled else None
        self._scratch: Tensor | None = None

    def __call__(self, scores: Tensor, queries: slice = slice(None)) -> Tensor:
        """The metric of every ranking.

        Args:
            scores: ``(b, P, N)``, N rankings of each pool, finite where a pool is not padded.
            queries: which of the B they belong to.

        Returns:
            ``(b, N)``, float64 where the device has it.
        """
        most = max(self._relevant[queries], default=0)
        return self._by_counting(scores, queries, most) if most <= MOST_COUNTED else self._by_sorting(scores, queries)

    def over(self, blocks: Iterable[tuple[slice, Tensor]]) -> Tensor:
        """The metric of every ranking of ``Scorer.blocks``, ``(B, N)``."""
        return torch.cat([self(scores, queries) for queries, scores in blocks])

    def _prepare_counting(self) -> None:
        """For the i-th relevant document of each query: where it stands, and which documents stand beside it."""
        relevant = self._gains > 0
        self._relevant: list[int] = relevant.sum(dim=1).tolist()
        most = min(max(self._relevant, default=0), MOST_COUNTED)
        places = relevant.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most].T
        self._places = places.contiguous()
        self._worth = self._gains.gather(1, places.T).T.unsqueeze(2)
        index = torch.arange(relevant.shape[1], device=relevant.device)
        beside = torch.stack([index > places.unsqueeze(2), index < places.unsqueeze(2)], dim=2)
        self._beside = (beside if self._valid is None else beside & self._valid.unsqueeze(1)).float()

    def _by_counting(self, scores: Tensor, queries: slice, most: int) -> Tensor:
        relevant = self._relevant[queries]
        total = torch.zeros(scores.shape[0], scores.shape[2], dtype=self._gains.dtype, device=scores.device)
        for number in range(most):
            rows = _rows([count > number for count in relevant], scores.device)
            here = scores[rows]
            places, beside, worth = (part[number, queries][rows] for part in (self._places, self._beside, self._worth))
            chosen = here.gather(1, places.view(-1, 1, 1).expand(-1, 1, here.shape[2]))
            found = self._table.take(self._ahead(here, chosen, beside.to(here.dtype)).long()) * worth
            if self._first_only:
                total[rows] = torch.maximum(total[rows], found)
            else:
                total[rows] += found
        return total

    def _by_sorting(self, scores: Tensor, queries: slice) -> Tensor:
        if self._valid is not None:
            scores = scores.masked_fill(~self._valid[queries].unsqueeze(2), -torch.inf)
        order = scores.transpose(1, 2).sort(dim=2, descending=True, stable=True).indices[..., : self._k]
        gains = self._gains[queries].unsqueeze(1).expand(-1, order.shape[1], -1).gather(2, order)
        found = gains * self._table[: order.shape[2]]
        return found.amax(dim=2) if self._first_only else found.sum(dim=2)

    def _ahead(self, scores: Tensor, chosen: Tensor, beside: Tensor) -> Tensor:
        """How many documents are ahead of the chosen ones, ``(b, N)``; ``beside`` is which come after and before."""
        if self._fused is not None:
            counts: Tensor = self._fused(scores, chosen, beside)
            return counts
        need = 2 * scores.numel()
        if self._scratch is None or self._scratch.numel() < need or self._scratch.dtype != scores.dtype:
            self._scratch = scores.new_empty(need)
        # Comparisons that write floats are several times faster on a CPU than those that write bools, and the product
        # with the masks sums them in the same pass.
        flags = self._scratch[:need].view(len(scores), 2, -1, scores.shape[2])
        torch.gt(scores, chosen, out=flags[:, 0])
        torch.ge(scores, chosen, out=flags[:, 1])
        return torch.bmm(beside.flatten(1).unsqueeze(1), flags.flatten(1, 2)).squeeze(1)


def count_ahead(scores: Tensor, chosen: Tensor, beside: Tensor) -> Tensor:
    """How many documents are ahead of the chosen ones, in one pass: to be compiled."""
    after, before = beside.unsqueeze(3).unbind(dim=1)
    return ((scores > chosen) * after + (scores >= chosen) * before).sum(dim=1)


def _rows(chosen: list[bool], device: torch.device) -> slice | Tensor:
    """The chosen ones; as a slice, which copies nothing, where they are neighbours."""
    numbers = [number for number, is_chosen in enumerate(chosen) if is_chosen]
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return slice(numbers[0], numbers[-1] + 1)
    return torch.tensor(numbers, device=device)


def _discounts(k: int) -> Tensor:
    return 1 / torch.arange(2, k + 2, dtype=torch.float64).log2()


def _check_cutoff(k: int) -> None:
    if k < 1:
        raise UsageError(f"a metric cut off at {k} is always 0; use at least 1")


def _check_shapes(grades: Tensor, ideal: Tensor, valid: Tensor | None) -> None:
    if grades.ndim != 2 or tuple(ideal.shape) != (len(grades),):
        shapes = f"{tuple(grades.shape)} and {tuple(ideal.shape)}"
        raise DataError(f"judgments need grades (B, P) and ideal DCGs (B,), not {shapes}")
    if valid is not None:
        if valid.shape != grades.shape:
            raise DataError(f"grades of shape {tuple(grades.shape)} have a mask of shape {tuple(valid.shape)}")
        if bool((grades * ~valid > 0).any()):
            raise DataError("a padded document has a grade above 0; give padding grade 0")
