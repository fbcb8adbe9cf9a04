"""Objectives of a ranking: relevance, diversity, fairness of exposure, freshness, and a weighted sum of them.

Every objective lies between 0 and 1, except diversity, which lies between 0 and 2, and all use the first k documents
alone. Evolution needs only their values, so none has to be differentiable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.ndcg import PoolMetric, discounts, ideal_dcg
from unimoe.studies.heads.pools import Batch, PoolSet


class Objectives:
    """The objectives of a training, prepared for its pools.

    Args:
        config: ``objectives``, ``ndcg_k`` and ``gain`` are used.
        train: the training pools.
        dates: document id to date, for ``freshness``.

    Raises:
        UsageError: freshness without dates.
        DataError: a document without a date.
    """

    def __init__(self, config: TrainConfig, train: PoolSet, *, dates: Mapping[str, date] | None = None) -> None:
        self.weights: dict[str, float] = {str(name): weight for name, weight in config.objectives.items()}
        self._k, self._gain = config.ndcg_k, config.gain
        device = train.rows.device
        ideal = [ideal_dcg(grades.tolist(), self._k, self._gain) for grades in train.judged]
        exact = torch.float32 if device.type == "mps" else torch.float64
        self._ideal = torch.tensor(ideal, dtype=exact, device=device)
        if "freshness" in self.weights:
            if not dates:
                raise UsageError("objectives: freshness needs the documents' dates, and there are none; leave it out")
            self._recency = _recency(train, dates)

    def relevance(self, batch: Batch) -> PoolMetric:
        """Prepare the nDCG of a step's queries."""
        return PoolMetric(batch.grades, self._ideal[batch.places], self._k, gain=self._gain, rounds=True)

    def means(self, batch: Batch, blocks: Iterable[tuple[slice, Tensor]]) -> dict[str, Tensor]:
        """Return each objective of n rankings, ``(n,)``, a mean over the B queries of a batch.

        Args:
            batch: the queries.
            blocks: which of them, and their scores ``(b, P, n)``, ``-inf`` where a pool is padded.
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
    """The first documents of n rankings of b pools.

    Attributes:
        places: their indices in their pools, best first, ``(b, k, n)``.
        inside: whether there is a document, ``(b, k, n)``: a pool may hold fewer than k.
    """

    places: Tensor
    inside: Tensor


def first_documents(scores: Tensor, valid: Tensor, k: int) -> Top:
    """Return up to k best documents of every ranking, best first; the order of equal scores is undefined.

    Args:
        scores: ``(b, P, n)``.
        valid: ``(b, P)``, False where a pool is padded; scores are ``-inf`` there.
        k: the cut-off.
    """
    places = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return Top(places, _at(valid, places))


def diversity(top: Top, documents: Tensor) -> Tensor:
    """Return the mean of one minus the cosine over pairs of first documents, ``(b, n)``; 0 where there is no pair.

    Args:
        top: of n rankings.
        documents: ``(b, P, D)``, as the frozen encoder embeds them: the head cannot make them differ.
    """
    unit = functional.normalize(documents, dim=-1)
    apart = 1 - unit @ unit.mT
    apart.diagonal(dim1=1, dim2=2).zero_()
    chosen = apart.new_zeros(*apart.shape[:2], top.places.shape[2]).scatter_(1, top.places, top.inside.to(apart))
    number = top.inside.sum(1)
    return (chosen * (apart @ chosen)).sum(1) / (number * (number - 1)).clamp(min=1)


def fairness(top: Top, groups: Tensor) -> Tensor:
    """Return how equal the exposure of two groups of a pool is, ``(b, n)``: 1 where it is equal, 0 where one gets all.

    A document at rank r is exposed by ``1 / log2(1 + r)``.

    Args:
        top: of n rankings.
        groups: 1 for documents of one group, -1 for those of the other, ``(b, P)``; one document has no other group.
    """
    exposed = _exposure(top)
    difference = (exposed * _at(groups, top.places)).sum(1).abs() / exposed.sum(1).clamp(min=1e-9)
    return torch.where(groups.abs().sum(1, keepdim=True) > 1, 1 - difference, 1.0)


def freshness(top: Top, recency: Tensor) -> Tensor:
    """Return the mean of the first documents' freshness, weighted by ``1 / log2(1 + rank)``, ``(b, n)``.

    Args:
        top: of n rankings; an empty pool has freshness 0.
        recency: ``(b, P)``: 0 for the oldest document of all pools, 1 for the newest.
    """
    weights = _exposure(top)
    return (weights * _at(recency, top.places)).sum(1) / weights.sum(1).clamp(min=1e-9)


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of points that no other is at least as good as in all objectives and better in one.

    Args:
        points: objectives of each, the larger the better; equal points are all on the front.
    """
    values = np.array(points, dtype=float)
    no_worse = (values[:, None] >= values[None]).all(2)
    better = (values[:, None] > values[None]).any(2)
    return np.flatnonzero(~(no_worse & better).any(0)).tolist()


def _halves(batch: Batch) -> Tensor:
    """Return -1 where the first stage ranks a document in the upper half of its pool, 1 elsewhere, 0 where padded."""
    lower = 2 * batch.ranks > batch.valid.sum(1, keepdim=True) + 1
    return (2.0 * lower - 1) * batch.valid


def _exposure(top: Top) -> Tensor:
    weights = discounts(top.places.shape[1]).to(top.places.device, torch.float32)
    return weights.view(1, -1, 1) * top.inside


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Return values ``(b, P)`` at places ``(b, k, n)``."""
    return values.gather(1, places.flatten(1)).view(places.shape)


def _recency(train: PoolSet, dates: Mapping[str, date]) -> Tensor:
    """Return 0 for the oldest document of all pools and 1 for the newest, at their places in the pools, ``(Q, P)``."""
    days = torch.zeros(train.rows.shape)
    for place, ids in enumerate(train.document_ids):
        missing = [document_id for document_id in ids if document_id not in dates]
        if missing:
            raise DataError(f"{train.name}: document {missing[0]!r} has no date; give every document of a pool one")
        days[place, : len(ids)] = torch.tensor([float(dates[document_id].toordinal()) for document_id in ids])
    oldest, newest = days[train.valid.cpu()].aminmax()
    return ((days - oldest) / (newest - oldest).clamp(min=1)).to(train.rows.device)
