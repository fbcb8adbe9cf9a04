"""nDCG@k of every perturbation, as the evaluator computes it.

Few documents of a pool are relevant, so nothing is sorted: the rank of a relevant document is one more than the number
of documents ahead of it, which are those with a higher score and, of equal scores, those at a lower index. Pools are in
descending order of document ids, which is how trec_eval breaks ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unimoe.models.batching import arrays_to_device

Gain = Literal["linear", "exp2"]


def gains_of(grades: Tensor, gain: Gain) -> Tensor:
    """Return the gain of each grade: the grade, or ``2^grade - 1``; 0 for grades below 0."""
    grades = grades.clamp_min(0)
    return grades if gain == "linear" else torch.exp2(grades) - 1


def ideal_dcg(grades: Sequence[float], k: int, gain: Gain = "linear") -> float:
    """Return the DCG@k of the best ranking of all judged documents of a query, those outside its pool too."""
    best = gains_of(torch.tensor(grades, dtype=torch.float64), gain).sort(descending=True).values[:k]
    return float((best * discounts(k)[: len(best)]).sum())


def discounts(k: int) -> Tensor:
    """Return ``1 / log2(1 + rank)`` of the first k ranks."""
    return 1 / torch.arange(2, k + 2, dtype=torch.float64).log2()


class PoolMetric:
    """nDCG@k of pools whose judgments are prepared once.

    Args:
        grades: ``(B, P)``, 0 where a document is not judged or a pool is padded; fractions are allowed.
        ideal: ``ideal_dcg`` of each query, ``(B,)``; a query with 0 has nDCG 0.
        k: the cut-off.
        gain: ``linear`` as in trec_eval, or ``exp2``.
        rounds: drop the last digits: equal rankings of three relevant documents differ in them by the order of the
            sum, and shaping would blow that up to a full step where all other fitness is tied.
    """

    def __init__(self, grades: Tensor, ideal: Tensor, k: int, *, gain: Gain = "linear", rounds: bool = False) -> None:
        self._rounds = rounds
        exact = torch.float32 if grades.device.type == "mps" else torch.float64
        gains = gains_of(grades.to(exact), gain)
        gains = torch.where(ideal[:, None] > 0, gains / ideal.to(exact)[:, None], 0.0)
        # What each relevant document can earn, and the share of it by the number of documents ahead.
        found = (gains > 0).cpu().numpy()  # read once: every reading waits for a GPU
        self._owners, self._places = np.nonzero(found)
        self._gains = gains[tuple(arrays_to_device([self._owners, self._places], grades.device))]
        self._table = torch.nn.functional.pad(discounts(k).to(grades.device, exact), (0, max(0, grades.shape[1] - k)))

    def __call__(self, scores: Tensor, queries: slice = slice(None)) -> Tensor:
        """Return the nDCG of every ranking, ``(b, N)``, float64 where the device has it.

        Args:
            scores: ``(b, P, N)``, N rankings of each pool; ``-inf`` where a pool is padded, and finite elsewhere.
            queries: which of the B they belong to.
        """
        count, size, rankings = scores.shape
        begin = queries.start or 0
        first, last = np.searchsorted(self._owners, [begin, begin + count])
        owners, places = self._owners[first:last] - begin, self._places[first:last]
        ahead, is_ahead = scores.new_empty(len(owners), rankings), scores.new_empty(size, rankings)
        for number, (owner, place) in enumerate(zip(owners.tolist(), places.tolist(), strict=True)):
            pool = scores[owner]
            torch.ge(pool[:place], pool[place], out=is_ahead[:place])
            torch.gt(pool[place:], pool[place], out=is_ahead[place:])
            torch.sum(is_ahead, 0, out=ahead[number])
        found = self._table[ahead.long()] * self._gains[first:last].unsqueeze(1)
        total, (owner,) = found.new_zeros(count, rankings), arrays_to_device([owners], scores.device)
        total.index_add_(0, owner, found)
        return total.round(decimals=12 if total.dtype == torch.float64 else 5) if self._rounds else total
