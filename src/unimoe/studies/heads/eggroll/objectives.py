"""Objectives of a ranking: relevance, diversity, fairness of exposure, freshness, and a weighted sum of them.

Every objective lies between 0 and 1, except diversity, which lies between 0 and 2, and all use the first k documents
alone. Evolution needs only their values, so none has to be differentiable.

nDCG@k of every perturbation is as the evaluator computes it. Few documents of a pool are relevant, so nothing is
sorted: the rank of a relevant document is one more than the number of documents ahead of it, which are those with a
higher score and, of equal scores, those at a lower index. Pools are in descending order of document ids, which is how
trec_eval breaks ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unimoe.models.batching import arrays_to_device
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.pools import PoolBatch, PoolSet

Gain = Literal["linear", "exp2"]


class Objectives:
    """The objectives of a training, prepared for its pools.

    Args:
        config: ``objectives``, ``ndcg_k`` and ``gain`` are used.
        train: the training pools, with the candidates' recency for ``freshness``.
    """

    def __init__(self, config: TrainConfig, train: PoolSet) -> None:
        self.weights: dict[str, float] = {str(name): weight for name, weight in config.objectives.items()}
        self._k, self._gain = config.ndcg_k, config.gain
        ideal = [ideal_dcg(grades.tolist(), self._k, self._gain) for grades in train.judged]
        exact = torch.float32 if train.rows.device.type == "mps" else torch.float64
        self._ideal = torch.tensor(ideal, dtype=exact, device=train.rows.device)
        self._recency = train.rows.new_zeros(()) if train.recency is None else train.recency

    def relevance(self, batch: PoolBatch) -> PoolMetric:
        """Prepare the nDCG of a step's queries."""
        return PoolMetric(batch.grades, self._ideal[batch.places], self._k, gain=self._gain, rounds=True)

    def means(self, batch: PoolBatch, blocks: Iterable[tuple[slice, Tensor]]) -> dict[str, Tensor]:
        """Return each objective of n rankings, ``(n,)``, a mean over the B queries of a batch.

        ``blocks`` are some of them, and their scores ``(b, P, n)``, ``-inf`` where a pool is padded.
        """
        relevance, totals = self.relevance(batch), dict[str, Tensor]()
        for block, scores in blocks:
            if self.weights.keys() != {"relevance"}:
                top = first_documents(scores, batch.valid[block], self._k)
            for name in self.weights:
                if name == "relevance":
                    found = relevance(scores, block)
                elif name == "diversity":
                    found = diversity(top, batch.documents[block])
                elif name == "fairness":
                    found = fairness(top, _halves(batch)[block])
                else:
                    found = freshness(top, self._recency[batch.places][block])
                totals[name] = totals[name] + found.sum(0) if name in totals else found.sum(0)
        return {name: total / len(batch.queries) for name, total in totals.items()}

    def total(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of objectives."""
        return torch.stack([weight * values[name] for name, weight in self.weights.items()]).sum(0)


class Top(NamedTuple):
    """The first documents of n rankings of b pools: their places, best first, and whether a document is there.

    Both are ``(b, k, n)``; a pool may hold fewer than k.
    """

    places: Tensor
    inside: Tensor


def first_documents(scores: Tensor, valid: Tensor, k: int) -> Top:
    """Return up to k best documents of the rankings ``(b, P, n)``; the order of equal scores is undefined.

    ``valid`` ``(b, P)`` is False where a pool is padded; scores are ``-inf`` there.
    """
    places = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return Top(places, _at(valid, places))


def diversity(top: Top, documents: Tensor) -> Tensor:
    """Return the mean of one minus the cosine over pairs of first documents, ``(b, n)``; 0 where there is no pair.

    The documents ``(b, P, D)`` are as the frozen encoder embeds them: the head cannot make them differ.
    """
    unit = functional.normalize(documents, dim=-1)
    apart = 1 - unit @ unit.mT
    apart.diagonal(dim1=1, dim2=2).zero_()
    chosen = apart.new_zeros(*apart.shape[:2], top.places.shape[2]).scatter_(1, top.places, top.inside.to(apart))
    number = top.inside.sum(1)
    return (chosen * (apart @ chosen)).sum(1) / (number * (number - 1)).clamp(min=1)


def fairness(top: Top, groups: Tensor) -> Tensor:
    """Return how equal the exposure of two groups of a pool is, ``(b, n)``: 1 where it is equal, 0 where one gets all.

    A document at rank r is exposed by ``1 / log2(1 + r)``. ``groups`` ``(b, P)`` is 1 for one group, -1 for the other;
    a pool of one document has no other group.
    """
    exposed = _exposure(top)
    difference = (exposed * _at(groups, top.places)).sum(1).abs() / exposed.sum(1).clamp(min=1e-9)
    return torch.where(groups.abs().sum(1, keepdim=True) > 1, 1 - difference, 1.0)


def freshness(top: Top, recency: Tensor) -> Tensor:
    """Return the mean ``recency`` ``(b, P)`` of the first documents, weighted by ``1 / log2(1 + rank)``, ``(b, n)``."""
    weights = _exposure(top)
    return (weights * _at(recency, top.places)).sum(1) / weights.sum(1).clamp(min=1e-9)


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of points that no other is at least as good as in all objectives and better in one.

    The larger the better; equal points are all on the front.
    """
    values = np.array(points, dtype=float)
    no_worse = (values[:, None] >= values[None]).all(2)
    better = (values[:, None] > values[None]).any(2)
    return np.flatnonzero(~(no_worse & better).any(0)).tolist()


def _halves(batch: PoolBatch) -> Tensor:
    """Return -1 where the first stage ranks a document in the upper half of its pool, 1 elsewhere, 0 where padded."""
    lower = 2 * batch.ranks > batch.valid.sum(1, keepdim=True) + 1
    return (2.0 * lower - 1) * batch.valid


def _exposure(top: Top) -> Tensor:
    weights = discounts(top.places.shape[1]).to(top.places.device, torch.float32)
    return weights.view(1, -1, 1) * top.inside


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Return values ``(b, P)`` at places ``(b, k, n)``."""
    return values.gather(1, places.flatten(1)).view(places.shape)


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
    """nDCG@k of pools with judgments that are prepared once.

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
