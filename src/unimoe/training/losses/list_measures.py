"""Measures of rankings of a list, with its labels as judgments: thousands of rankings at a time.

nDCG, reciprocal rank, average precision, precision, recall, success and ERR are computed in tensors. Any other measure
is computed by its library, ranking by ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from unimoe.core.errors import InputError
from unimoe.metrics.names import Metric, parse_metric
from unimoe.metrics.scoring import score_run


class RankedLists(NamedTuple):
    """Rankings of b lists."""

    labels: Tensor  # of the first documents of N rankings, best first, (b, N, k); 0 where there is no document
    judged: Tensor  # of all documents of each list, (b, P); 0 where padded
    sizes: Tensor  # documents of each list, (b,)
    level: int  # the lowest relevant label

    @property
    def relevant(self) -> Tensor:
        """1 where a ranked document is relevant, else 0."""
        return (self.labels >= self.level).to(self.labels)

    @property
    def ranks(self) -> Tensor:
        """1 for the first place, ``(k,)``."""
        return torch.arange(1, self.labels.shape[2] + 1, device=self.labels.device, dtype=self.labels.dtype)

    @property
    def reachable(self) -> Tensor:
        """Relevant documents of each list, ``(b, 1)``."""
        return (self.judged >= self.level).to(self.labels).sum(1, keepdim=True)


def _ndcg(ranked: RankedLists, k: int) -> Tensor:
    discounts = 1 / torch.log2(1 + ranked.ranks)
    best = ranked.judged.clamp_min(0).sort(dim=1, descending=True).values[:, : len(discounts)]
    return _share(ranked.labels.clamp_min(0) @ discounts, (best @ discounts).unsqueeze(1))


def _reciprocal_rank(ranked: RankedLists, k: int) -> Tensor:
    return (ranked.relevant / ranked.ranks).amax(2)


def _average_precision(ranked: RankedLists, k: int) -> Tensor:
    precision = ranked.relevant.cumsum(2) / ranked.ranks
    return _share((precision * ranked.relevant).sum(2), ranked.reachable)


def _precision(ranked: RankedLists, k: int) -> Tensor:
    return ranked.relevant.sum(2) / k


def _recall(ranked: RankedLists, k: int) -> Tensor:
    return _share(ranked.relevant.sum(2), ranked.reachable)


def _capped_recall(ranked: RankedLists, k: int) -> Tensor:
    return _share(ranked.relevant.sum(2), ranked.reachable.clamp(max=k))


def _recall_of_retrieved(ranked: RankedLists, k: int) -> Tensor:
    places = ranked.sizes.clamp(max=k).unsqueeze(1)
    return _share(ranked.relevant.sum(2), torch.minimum(ranked.reachable, places.to(ranked.labels)))


def _success(ranked: RankedLists, k: int) -> Tensor:
    return ranked.relevant.amax(2)


def _err(ranked: RankedLists, k: int) -> Tensor:
    """Return ERR as gdeval counts it, with a highest grade of 4 (Chapelle et al. 2009)."""
    satisfied = (torch.exp2(ranked.labels.clamp_min(0)) - 1) / 2.0**_HIGHEST_OF_ERR
    reached = torch.cat([torch.ones_like(satisfied[..., :1]), (1 - satisfied).cumprod(2)[..., :-1]], dim=2)
    return (satisfied * reached / ranked.ranks).sum(2)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Return parts of a whole, 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole.where(whole > 0, 1.0), 0.0)


_HIGHEST_OF_ERR = 4

Formula = Callable[[RankedLists, int], Tensor]
"""From rankings and a cutoff to measures ``(b, N)``."""

_FORMULAS: Mapping[str, Formula] = {
    "ndcg": _ndcg,
    "mrr": _reciprocal_rank,
    "map": _average_precision,
    "p": _precision,
    "recall": _recall,
    "recall_cap": _capped_recall,
    "recall_of_retrieved": _recall_of_retrieved,
    "Success": _success,
    "ERR": _err,
}


class ListMeasure:
    """A measure of the rankings of some lists.

    ``labels`` are ``(B, P)``, 0 where a list is padded; ``valid`` says which places hold a document. An ``InputError``
    has the index of a list with labels that the measure does not take.

    Attributes:
        cutoff: how many documents of a ranking the measure looks at; None for all of them.
    """

    def __init__(self, name: str, labels: Tensor, valid: Tensor) -> None:
        self._metric = parse_metric(name)
        self.cutoff = self._metric.cutoff
        exact = torch.float32 if labels.device.type == "mps" else torch.float64
        self._labels, self._valid = labels.to(exact).masked_fill(~valid, 0), valid
        self._formula, self._level = _formula_of(self._metric)
        _refuse_labels(self._metric, self._labels, whole=self._formula is None)

    def __call__(self, scores: Tensor, lists: slice = slice(None)) -> Tensor:
        """Return the measure ``(b, N)`` of rankings of some lists by scores ``(b, P, N)``, ``-inf`` where padded."""
        rows = scores.transpose(1, 2)
        if self.cutoff is not None and self.cutoff < rows.shape[2]:
            return self.of_orders(rows.topk(self.cutoff, dim=2).indices, lists)
        return self.of_orders(rows.argsort(dim=2, descending=True), lists)

    def of_orders(self, orders: Tensor, lists: slice = slice(None)) -> Tensor:
        """Return the measure ``(b, N)`` of rankings of some lists.

        The orders are places of documents, the best first and padding last, ``(b, N, P)``, or the first of them.
        """
        if self.cutoff is not None:
            orders = orders[..., : self.cutoff]
        judged, valid = self._labels[lists], self._valid[lists]
        labels = judged.unsqueeze(1).expand(-1, orders.shape[1], -1).gather(2, orders)
        if self._formula is None:
            inside = valid.unsqueeze(1).expand(-1, orders.shape[1], -1).gather(2, orders)
            return self._by_library(orders, inside, judged, valid)
        ranked = RankedLists(labels, judged, valid.sum(1), self._level)
        return self._formula(ranked, self.cutoff or orders.shape[2])

    def _by_library(self, orders: Tensor, inside: Tensor, judged: Tensor, valid: Tensor) -> Tensor:
        qrels: dict[str, dict[str, int]] = {}
        run: dict[str, dict[str, float]] = {}
        for row in range(len(orders)):
            grades = {str(place): int(judged[row, place]) for place in valid[row].nonzero().flatten().tolist()}
            for number, order in enumerate(orders[row].tolist()):
                kept = [place for place, there in zip(order, inside[row, number].tolist(), strict=True) if there]
                qrels[f"{row} {number}"] = grades
                run[f"{row} {number}"] = {str(place): -float(rank) for rank, place in enumerate(kept)}
        found = score_run(qrels, run, self._metric.name).per_query[self._metric.name]
        return torch.tensor([found[key] for key in run], dtype=judged.dtype, device=judged.device).view(len(orders), -1)


def _formula_of(metric: Metric) -> tuple[Formula | None, int]:
    """Return the formula of a measure, None where there is none, and the lowest relevant label."""
    if metric.family:
        return _FORMULAS.get(metric.family), metric.level or 1
    # A measure of ir_measures is one of ours where nothing but cutoff and level is given.
    if metric.measure is not None and metric.measure.params.keys() <= {"cutoff", "rel"}:
        return _FORMULAS.get(metric.measure.NAME or ""), metric.measure.params.get("rel", 1)
    return None, 1


def _refuse_labels(metric: Metric, labels: Tensor, *, whole: bool) -> None:
    wrong = (labels != labels.round()) if whole else (labels > _HIGHEST_OF_ERR) & metric.name.startswith("ERR")
    rows = wrong.any(1).nonzero().flatten().tolist()
    if rows:
        label = float(labels[rows[0]][wrong[rows[0]]][0])
        takes = "whole labels" if whole else f"labels up to {_HIGHEST_OF_ERR}"
        raise InputError(rows[0], f"the measure {metric.name} takes {takes}, and one is {label:g}; take ndcg@10")
