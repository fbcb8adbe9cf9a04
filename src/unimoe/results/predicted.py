"""Scores by a model's judgments with those by a few human ones: prediction-powered means.

Of N queries, n have human judgments and a score y by them; all have a score f by a model's. The mean over unlabelled
queries of ``weight * f`` plus the mean over labelled ones of ``y - weight * f`` is right whatever the model's errors
are, since the labelled queries show them (Angelopoulos et al. 2023; for retrieval, Oosterhuis et al. 2024). Both parts
are means over queries of their own, so that seeds, ratios, looks and gates work on them as on any scores. The labelled
queries must be a random sample of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import stdtr

from unimoe.checks import Check
from unimoe.core.io import Strict
from unimoe.core.limits import MOST
from unimoe.core.trec import Grades

Matrix: TypeAlias = NDArray[np.float64]
_Score = Annotated[float, Field(allow_inf_nan=False, ge=-MOST, le=MOST)]

FEWEST = 30  # labelled queries: of fewer, no simulation says that the weight holds
_CHOSEN = 0.01  # p below which labelled queries look chosen


class PredictedScores(Strict):
    """The scores of one run by a model's judgments."""

    judgments: str  # name of their file
    hash: str  # of their content
    queries: list[str]  # ascending ids of all queries, labelled ones among them
    scores: dict[str, list[_Score]]  # by metric, in that order
    weights: dict[str, Annotated[float, Field(ge=0, le=1)]]  # of the model's scores, by metric: ``lambda`` in papers

    @model_validator(mode="after")
    def _consistent(self) -> PredictedScores:
        if self.scores.keys() != self.weights.keys() or {*map(len, self.scores.values())} != {len(self.queries)}:
            raise ValueError(f"predicted has not {len(self.queries)} scores and a weight of every metric")
        return self

    def labelled(self, ids: Mapping[str, object]) -> NDArray[np.bool_]:
        """Return which of the queries have human judgments, by the ids of those that do."""
        return np.array([query in ids for query in self.queries])

    def columns(self, metric: str, human: Sequence[float], labelled: NDArray[np.bool_]) -> Matrix:
        """Return a number for each query; their mean is the estimate; ``human`` are scores by ascending id."""
        values = self.weights[metric] * np.array(self.scores[metric])
        values[labelled] = np.asarray(human) - values[labelled]
        values[labelled] *= len(values) / labelled.sum()
        values[~labelled] *= len(values) / (~labelled).sum()
        return values

    def mean(self, metric: str, human: Mapping[str, float]) -> float:
        """Return the estimate of the mean over all queries."""
        in_order = [human[query] for query in sorted(human)]
        return float(self.columns(metric, in_order, self.labelled(human)).mean())


class Labels:
    """What human labels and a model's say together of one metric of some systems."""

    def __init__(self, human: Matrix, model: Matrix, labelled: NDArray[np.bool_]) -> None:
        """Take scores ``(systems, labelled queries)`` and ``(systems, queries)``, averaged over runs.

        What systems have in common does not matter to their differences: it is taken out where there are several.
        """
        self.levels = model.mean(axis=0)
        self.bias = float((model[:, labelled] - human).mean())
        if len(human) > 1:
            human, model = human - human.mean(axis=0), model - model.mean(axis=0)
        self.labelled, self.number, self.others = labelled, int(labelled.sum()), int((~labelled).sum())
        self.human, self.on_labelled, self.elsewhere = human, model[:, labelled], model[:, ~labelled]
        self.weight = self._weight()

    def _weight(self) -> float:
        """Return the weight of the model's scores that makes the variance of differences smallest, 0 to 1."""
        human, model = (of - of.mean(axis=1, keepdims=True) for of in (self.human, self.on_labelled))
        scatter = float((model**2).sum()) * (1.0 + self.number / self.others)
        return min(1.0, max(0.0, float((human * model).sum()) / scatter)) if scatter > 0.0 else 0.0

    @property
    def as_good_as(self) -> int:
        """The number of human queries that would tell as much of the differences, by the variance over queries."""
        left = (self.human - self.weight * self.on_labelled).var(axis=1, ddof=1).sum() / self.number
        left += self.weight**2 * self.elsewhere.var(axis=1, ddof=min(1, self.others - 1)).sum() / self.others
        return round(float(self.human.var(axis=1, ddof=1).sum() / left)) if left > 0.0 else self.number

    def checks(self, dataset: str, metric: str, judged: str, agreement: str) -> Iterator[Check]:
        """Yield what the labels brought, how the model errs, and whether the labelled queries look chosen."""
        n, total = self.number, self.number + self.others
        brought = (
            f"as good as {self.as_good_as:,} human ones for differences" if self.weight else "no better than alone"
        )
        data = {"labelled": n, "queries": total, "weight": self.weight, "as_good_as": self.as_good_as}
        yield Check(
            "predicted",
            "caveat",
            f"{dataset}: {n:,} of {total:,} queries have human judgments; with those of {judged} they are {brought} "
            f"({metric}, lambda {self.weight:.2f}), if they are a random sample of all",
            data,
        )
        yield Check(
            "predicted_errors",
            "caveat",
            f"{dataset}: on these {n:,} the model's judgments move {metric} by {100 * self.bias:+.1f} points, which "
            f"the estimate takes out{agreement}",
            {"bias": self.bias},
        )
        p = self._p_chosen()
        if p < _CHOSEN:
            here, there = (100 * self.levels[of].mean() for of in (self.labelled, ~self.labelled))
            yield Check(
                "chosen_queries",
                "caveat",
                f"{dataset}: the labelled queries look chosen: {metric} by the model is {here:.1f} there and "
                f"{there:.1f} elsewhere (p {p:.2g}); of queries that are no random sample nothing follows for others",
                {"p": p},
            )
        if n < FEWEST:
            yield Check("few_labels", "caveat", f"{dataset}: fewer than {FEWEST} labelled queries: intervals are rough")

    def _p_chosen(self) -> float:
        """Return the two-sided p of equal means of labelled and other queries, by Welch's t."""
        parts = [self.levels[of] for of in (self.labelled, ~self.labelled)]
        if min(map(len, parts)) < 2:
            return 1.0
        first, second = (of.var(ddof=1) / len(of) for of in parts)
        if not first + second:
            return 1.0
        freedom = (first + second) ** 2 / sum(
            v**2 / (len(of) - 1) for v, of in zip((first, second), parts, strict=True)
        )
        return 2.0 * float(stdtr(freedom, -abs(parts[0].mean() - parts[1].mean()) / math.sqrt(first + second)))


def agreement_of(human: Grades, model: Grades) -> str:
    """Say how often the model grades a document as people do, and Cohen's kappa; empty where they share none."""
    pairs = [(grade, model[query][doc]) for query, of in human.items() for doc, grade in of.items()
             if doc in model.get(query, {})]  # fmt: skip
    if not pairs:
        return "; they share no judged document"
    same = sum(one == other for one, other in pairs) / len(pairs)
    grades = {grade for pair in pairs for grade in pair}
    by_chance = (
        sum(sum(one == grade for one, _ in pairs) * sum(other == grade for _, other in pairs) for grade in grades)
        / len(pairs) ** 2
    )
    kappa = f", kappa {(same - by_chance) / (1.0 - by_chance):.2f}" if by_chance < 1.0 else ""
    return f"; of {len(pairs):,} documents that both judged, {100 * same:.0f} % have the same grade{kappa}"
