"""nDCG@k and MRR@k of every perturbation, as the evaluator computes them.

Few documents of a pool are relevant, so nothing is sorted: the rank of a relevant document is one more than the number
of documents ahead of it, which are those with a higher score and, of equal scores, those at a lower index. Pools are in
descending order of document ids, which is how trec_eval breaks ties. Where many documents are relevant, a stable sort
gives the same ranks faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.core.errors import DataError, UsageError
from unimoe.models.batching import arrays_to_device
from unimoe.studies.heads.eggroll.kernels import machine_code, takes_machine_code

Gain = Literal["linear", "exp2"]
Metric = Literal["ndcg", "mrr"]

MOST_COUNTED = 64
"""Relevant documents of a pool up to which ranks are counted; a sort of a pool costs as much as about this many."""

MOST_COUNTED_ON_CPU = 512
"""The same for machine code on a CPU."""

_ALL_VALID = np.empty((0, 0), dtype=np.bool_)
_COMPARED_BYTES = 2**28  # of comparisons that are held at once, where ranks are counted in tensors


class Judged(NamedTuple):
    """The relevant documents of b pools, as machine code takes them.

    Attributes:
        ends: those of pool i are numbers ``ends[i]`` to ``ends[i + 1]``, ``(b + 1,)``.
        places: their indices in their pools.
        worth: the most that each can earn.
        table: the share of it by the number of documents ahead, of at least P entries.
        valid: ``(b, P)``, False for documents that never count; ``(0, 0)`` where all do.
        first_only: take the best of a pool's documents in place of their sum.
    """

    ends: NDArray[np.int64]
    places: NDArray[np.int64]
    worth: NDArray[np.float64]
    table: NDArray[np.float64]
    valid: NDArray[np.bool_]
    first_only: bool


def gains_of(grades: Tensor, gain: Gain) -> Tensor:
    """Return the gain of each grade: the grade, or ``2^grade - 1``; 0 for grades below 0.

    Raises:
        UsageError: an unknown gain.
    """
    if gain not in get_args(Gain):
        raise UsageError(f"gain {gain!r}: unknown; use {' or '.join(get_args(Gain))}")
    grades = grades.clamp_min(0)
    return grades if gain == "linear" else torch.exp2(grades) - 1


def ideal_dcg(grades: Sequence[float], k: int, gain: Gain = "linear") -> float:
    """Return the DCG@k of the best possible ranking of a query.

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

    Args:
        grades: ``(B, P)``, 0 where a document is not judged; fractions are allowed.
        ideal: ``ideal_dcg`` of each query, ``(B,)``; a query with 0 has nDCG 0.
        k: the cut-off.
        metric: ``ndcg`` or ``mrr``; the reciprocal rank ignores ``ideal``.
        gain: ``linear`` as in trec_eval, or ``exp2``.
        valid: ``(B, P)`` bool, False where a pool is padded; None where none is.
        rounds: drop the last digits: equal rankings of three relevant documents differ in them by the order of the
            sum, and shaping would blow that up to a full step where all other fitness is tied.

    Raises:
        DataError: shapes do not fit, or a padded document is graded.
        UsageError: an unknown metric or gain, or a cut-off below 1.
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
        rounds: bool = False,
    ) -> None:
        if metric not in get_args(Metric):
            raise UsageError(f"metric {metric!r}: unknown; use {' or '.join(get_args(Metric))}")
        _check_cutoff(k)
        _check_shapes(grades, ideal, valid)
        self._k, self._valid, self._first_only, self._rounds = k, valid, metric == "mrr", rounds
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
        relevant = self._gains > 0
        found = relevant.cpu().numpy()  # read once: every reading waits for a GPU
        owners, self._places = np.nonzero(found)
        self._ends = np.concatenate([[0], found.sum(axis=1).cumsum()])
        self._worth = self._gains[tuple(arrays_to_device([owners, self._places], device))]

    def __call__(self, scores: Tensor, queries: slice = slice(None)) -> Tensor:
        """Return the metric of every ranking.

        Args:
            scores: ``(b, P, N)``, N rankings of each pool, finite where a pool is not padded.
            queries: which of the B they belong to.

        Returns:
            ``(b, N)``, float64 where the device has it.
        """
        most = np.diff(self._ends_of(queries)).max(initial=0)
        if most > (MOST_COUNTED_ON_CPU if takes_machine_code(scores) else MOST_COUNTED):
            return self.rounded(self._by_sorting(scores, queries))
        if takes_machine_code(scores):
            rankings = np.ascontiguousarray(scores.detach().numpy())
            return self.rounded(torch.from_numpy(earned_by_pools(rankings, self.judged(queries))))
        return self.rounded(self._by_counting(scores, queries))

    @property
    def counts_in_machine_code(self) -> bool:
        """Whether ``judged`` is enough to compute the metric."""
        few = np.diff(self._ends).max(initial=0) <= MOST_COUNTED_ON_CPU
        return bool(few) and takes_machine_code(self._gains)

    def rounded(self, found: Tensor) -> Tensor:
        """Return metrics without the last digits, which depend on the order of a sum, if ``rounds`` asks for it."""
        if not self._rounds:
            return found
        return found.round(decimals=12 if found.dtype == torch.float64 else 5)

    def judged(self, queries: slice) -> Judged:
        """Return the relevant documents of some queries."""
        valid = _ALL_VALID if self._valid is None else self._valid[queries].numpy()
        worth, table = self._worth.numpy(), self._table.numpy()
        return Judged(self._ends_of(queries), self._places, worth, table, valid, self._first_only)

    def over(self, blocks: Iterable[tuple[slice, Tensor]]) -> Tensor:
        """Return the metric of every ranking of ``Scorer.blocks``, ``(B, N)``."""
        return torch.cat([self(scores, queries) for queries, scores in blocks])

    def _ends_of(self, queries: slice) -> NDArray[np.int64]:
        first, last, _ = queries.indices(len(self._gains))
        return self._ends[first : last + 1]

    def _by_counting(self, scores: Tensor, queries: slice) -> Tensor:
        """Count for as many relevant documents at a time as memory has room for, on any device."""
        ends = self._ends_of(queries)
        valid = None if self._valid is None else self._valid[queries]
        total = torch.zeros(scores.shape[0], scores.shape[2], dtype=self._gains.dtype, device=scores.device)
        part = slice(ends[0], ends[-1])
        if part.start == part.stop:
            return total
        owners = np.repeat(np.arange(len(total)), np.diff(ends))
        owner, place = arrays_to_device([owners, self._places[part]], scores.device)
        most = max(1, _COMPARED_BYTES // (scores[0].numel() * scores.element_size()))
        parts = zip(torch.split(owner, most), torch.split(place, most), strict=True)
        ahead = torch.cat([_count_ahead(scores, owners, places, valid) for owners, places in parts])
        found = self._table.take(ahead.long()) * self._worth[part].unsqueeze(1)
        if self._first_only:
            return total.scatter_reduce_(0, owner.unsqueeze(1).expand_as(found), found, "amax")
        return total.index_add_(0, owner, found)

    def _by_sorting(self, scores: Tensor, queries: slice) -> Tensor:
        if self._valid is not None:
            scores = scores.masked_fill(~self._valid[queries].unsqueeze(2), -torch.inf)
        order = scores.transpose(1, 2).sort(dim=2, descending=True, stable=True).indices[..., : self._k]
        gains = self._gains[queries].unsqueeze(1).expand(-1, order.shape[1], -1).gather(2, order)
        found = gains * self._table[: order.shape[2]]
        return found.amax(dim=2) if self._first_only else found.sum(dim=2)


@machine_code
def earned_by_pools(scores: NDArray[np.floating], judged: Judged) -> NDArray[np.float64]:
    """Return the sum that the relevant documents of each ranking earn, ``(b, N)``, from scores ``(b, P, N)``."""
    pools, _, rankings = scores.shape
    found, ahead = np.zeros((pools, rankings)), np.empty(rankings, np.int32)
    for pool in range(pools):
        earned_by_pool(pool, scores[pool], judged, ahead, found[pool])
    return found


@machine_code
def earned_by_pool(
    pool: int, scores: NDArray[np.floating], judged: Judged, ahead: NDArray[np.int32], found: NDArray[np.float64]
) -> None:
    """Add what pool number ``pool``, with scores ``(P, N)``, earns to ``found`` ``(N,)``; ``ahead`` is scratch."""
    size, rankings = scores.shape
    for number in range(judged.ends[pool], judged.ends[pool + 1]):
        place, worth = judged.places[number], judged.worth[number]
        own = scores[place]
        ahead[:] = 0
        for other in range(size):
            if other == place or (judged.valid.size and not judged.valid[pool, other]):
                continue
            theirs = scores[other]
            if other < place:
                for j in range(rankings):
                    ahead[j] += theirs[j] >= own[j]
            else:
                for j in range(rankings):
                    ahead[j] += theirs[j] > own[j]
        for j in range(rankings):
            earned = judged.table[ahead[j]] * worth
            found[j] = max(found[j], earned) if judged.first_only else found[j] + earned


def _count_ahead(scores: Tensor, owner: Tensor, place: Tensor, valid: Tensor | None) -> Tensor:
    """Count the documents of pool ``owner[t]`` ahead of the one at ``place[t]``, in the dtype of the scores."""
    pools, relevant = scores[owner], scores[owner, place].unsqueeze(1)
    is_before = torch.arange(scores.shape[1], device=scores.device).view(1, -1, 1) < place.view(-1, 1, 1)
    is_ahead = torch.where(is_before, pools >= relevant, pools > relevant)
    if valid is not None:
        is_ahead = is_ahead & valid[owner].unsqueeze(2)
    return is_ahead.to(scores.dtype).sum(dim=1)


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
