"""Objectives of a ranking: relevance, diversity, fairness of exposure, freshness, and a weighted sum of them.

Every objective lies between 0 and 1, except diversity, which lies between 0 and 2, and all use the first k documents
alone. Evolution needs only their values, so none has to be differentiable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.ndcg import PoolMetric, ideal_dcg
from unimoe.studies.heads.pools import Batch, PoolSet


class Top(NamedTuple):
    """The first documents of n rankings of b pools.

    Attributes:
        places: their indices in their pools, best first, ``(b, k, n)``.
        inside: whether there is a document, ``(b, k, n)``: a pool may hold fewer than k.
    """

    places: Tensor
    inside: Tensor


class Objectives:
    """The objectives of a training, prepared for its pools.

    Arguments and errors are those of ``evolution``; ``objectives``, ``ndcg_k`` and ``gain`` of the config are used.
    """

    def __init__(
        self,
        config: TrainConfig,
        train: PoolSet,
        *,
        groups: Mapping[str, str] | None = None,
        dates: Mapping[str, date] | None = None,
    ) -> None:
        self.weights: dict[str, float] = {str(name): weight for name, weight in config.objectives.items()}
        self._k, self._gain = config.ndcg_k, config.gain
        device = train.rows.device
        ideal = [ideal_dcg(grades.tolist(), self._k, self._gain) for grades in train.judged]
        exact = torch.float32 if device.type == "mps" else torch.float64
        self._ideal = torch.tensor(ideal, dtype=exact, device=device)
        self._groups = self._ages = None
        if "fairness" in self.weights and groups is not None:
            numbers = {name: float(number) for number, name in enumerate(sorted(set(groups.values())))}
            of_document = {document_id: numbers[name] for document_id, name in groups.items()}
            self._groups = _spread(train, of_document, "group").long()
        if "freshness" in self.weights:
            if not dates:
                raise UsageError("objectives: freshness needs the documents' dates, and there are none; leave it out")
            days = _spread(train, {key: float(day.toordinal()) for key, day in dates.items()}, "date")
            oldest, newest = days[train.valid].aminmax()
            self._ages = (days - oldest) / (newest - oldest).clamp(min=1)

    def of(self, batch: Batch) -> BatchObjectives:
        """Prepare the objectives of a step's queries."""
        groups = _halves(batch) if self._groups is None else self._groups[batch.places]
        recency = None if self._ages is None else self._ages[batch.places]
        return BatchObjectives(tuple(self.weights), self._k, batch, self.relevance(batch), groups, recency)

    def relevance(self, batch: Batch) -> PoolMetric:
        """Prepare the nDCG of a step's queries."""
        ideal = self._ideal[batch.places]
        return PoolMetric(batch.grades, ideal, self._k, gain=self._gain, valid=batch.valid, rounds=True)

    def total(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of objectives."""
        return torch.stack([weight * values[name] for name, weight in self.weights.items()]).sum(0)


@dataclass(frozen=True)
class BatchObjectives:
    """The objectives of a step's B queries; see ``Objectives.of``.

    Attributes:
        names: of the objectives.
        k: the cutoff.
        batch: the queries.
        relevance: their nDCG.
        groups: number of each document's group, ``(B, P)``.
        recency: 0 for the oldest document of all pools, 1 for the newest, ``(B, P)``; None without dates.
    """

    names: tuple[str, ...]
    k: int
    batch: Batch
    relevance: PoolMetric
    groups: Tensor
    recency: Tensor | None

    @property
    def relevance_alone(self) -> PoolMetric | None:
        """The metric of relevance where it is the only objective; else None."""
        return self.relevance if set(self.names) == {"relevance"} else None

    def values(self, scores: Tensor, block: slice) -> dict[str, Tensor]:
        """Return each objective of n rankings, summed over b of the B queries, ``(n,)``.

        Args:
            scores: ``(b, P, n)``, ``-inf`` where a pool is padded.
            block: which queries.
        """
        found = {}
        if "relevance" in self.names:
            found["relevance"] = self.relevance(scores, block).sum(0)
        if set(self.names) != {"relevance"}:
            top = first_documents(scores, self.batch.valid[block], self.k)
        if "diversity" in self.names:
            found["diversity"] = diversity(top, self.batch.documents[block]).sum(0)
        if "fairness" in self.names:
            found["fairness"] = fairness(top, self.groups[block], self.batch.valid[block]).sum(0)
        if self.recency is not None:
            found["freshness"] = freshness(top, self.recency[block]).sum(0)
        return found


def first_documents(scores: Tensor, valid: Tensor, k: int) -> Top:
    """Return up to k best documents of every ranking, best first; the order of equal scores is undefined.

    Args:
        scores: ``(b, P, n)``.
        valid: ``(b, P)``, False where a pool is padded; scores are ``-inf`` there.
        k: the cut-off.
    """
    places = scores.topk(min(k, scores.shape[1]), dim=1).indices
    inside = _at(valid.float(), places) > 0
    return Top(places, inside)


def diversity(top: Top, documents: Tensor) -> Tensor:
    """Return the mean of one minus the cosine over pairs of first documents, ``(b, n)``; 0 where there is no pair.

    Args:
        top: of n rankings.
        documents: ``(b, P, D)``, as the frozen encoder embeds them: the head cannot make them differ.
    """
    size, (queries, k, count) = documents.shape[1], top.places.shape
    first, second = torch.triu_indices(k, k, 1, device=documents.device)
    if not len(first):
        return documents.new_zeros(queries, count)
    unit = functional.normalize(documents, dim=-1)
    cosines = (unit @ unit.transpose(1, 2)).reshape(queries, size * size)
    pairs = (top.places[:, first] * size + top.places[:, second]).view(queries, -1)
    both = top.inside[:, first] & top.inside[:, second]
    apart = (1 - cosines.gather(1, pairs).view_as(both)) * both
    return apart.sum(1) / both.sum(1).clamp(min=1)


def fairness(top: Top, groups: Tensor, valid: Tensor) -> Tensor:
    """Return how equal the exposure of a pool's groups is, ``(b, n)``: 1 where it is equal, 0 where one gets all.

    A document at rank r is exposed by ``1 / log2(1 + r)``. With shares e of the exposure among the first documents it
    is ``1 - sum |e - 1/G| / (2 - 2/G)`` over the G groups of the pool; 1 where there is one group.

    Args:
        top: of n rankings.
        groups: number of each document's group, from 0, ``(b, P)``.
        valid: ``(b, P)``.
    """
    exposed = _discounts(top) * top.inside
    queries, _, count = exposed.shape
    total = int(groups.max()) + 1 if groups.numel() else 1
    of_group = exposed.new_zeros(queries, total, count).scatter_add_(1, _at(groups, top.places), exposed)
    present = groups.new_zeros(queries, total).scatter_add_(1, groups, valid.long()) > 0
    number = present.sum(1, keepdim=True).clamp(min=1)
    shares = of_group / exposed.sum(1, keepdim=True).clamp(min=1e-9)
    apart = ((shares - (1 / number).unsqueeze(2)).abs() * present.unsqueeze(2)).sum(1)
    return torch.where(number > 1, 1 - apart / (2 - 2 / number).clamp(min=1e-9), 1.0)


def freshness(top: Top, recency: Tensor) -> Tensor:
    """Return the mean of the first documents' freshness, weighted by ``1 / log2(1 + rank)``, ``(b, n)``.

    Args:
        top: of n rankings; an empty pool has freshness 0.
        recency: ``(b, P)``: 0 for the oldest document of all pools, 1 for the newest.
    """
    weights = _discounts(top) * top.inside
    return (weights * _at(recency, top.places)).sum(1) / weights.sum(1).clamp(min=1e-9)


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of points that no other is at least as good as in all objectives and better in one.

    Args:
        points: objectives of each, the larger the better; equal points are all on the front.

    Raises:
        DataError: lengths differ, or an objective is not a number.
    """
    if len({len(point) for point in points}) > 1:
        raise DataError("points of a Pareto front have different numbers of objectives; give all the same")
    values = np.array(points, dtype=float).reshape(len(points), len(points[0]) if points else 0)
    if np.isnan(values).any():
        raise DataError(
            f"point {int(np.isnan(values).any(1).argmax())} of a Pareto front holds an objective that is NaN"
        )
    no_worse = (values[:, None] >= values[None]).all(2)
    better = (values[:, None] > values[None]).any(2)
    return np.flatnonzero(~(no_worse & better).any(0)).tolist()


def _halves(batch: Batch) -> Tensor:
    """Return 0 where the first stage ranks a document in the upper half of its pool, 1 elsewhere, ``(B, P)``."""
    return (2 * batch.ranks > batch.valid.sum(1, keepdim=True) + 1).long()


def _discounts(top: Top) -> Tensor:
    ranks = torch.arange(1, top.places.shape[1] + 1, device=top.places.device)
    return (1 / torch.log2(1 + ranks.float())).view(1, -1, 1).expand(top.places.shape)


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Return values ``(b, P)`` at places ``(b, k, n)``."""
    return values.gather(1, places.flatten(1)).view(places.shape)


def _spread(train: PoolSet, of_document: Mapping[str, float], kind: str) -> Tensor:
    """Put a number of each document at its place in the pools, ``(Q, P)`` float32; 0 where padded."""
    found = torch.zeros(train.rows.shape)
    for place, ids in enumerate(train.document_ids):
        missing = [document_id for document_id in ids if document_id not in of_document]
        if missing:
            raise DataError(f"{train.name}: document {missing[0]!r} has no {kind}; give every document of a pool one")
        found[place, : len(ids)] = torch.tensor([of_document[document_id] for document_id in ids])
    return found.to(train.rows.device)
