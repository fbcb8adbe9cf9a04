"""The model of variance: queries are shared by all arms, training runs belong to an arm or to a pair of arms.

A contrast is a weighted sum of the arms' mean scores. Its variance is estimated from the mean squares over queries,
over runs, and of the residual, which the first two both count (docs/statistics.md, "The model"):

    V = V_query + sum over groups of runs (V_run - V_residual)

Seeds of separately trained arms are two groups, whose numbers may differ and whose order cannot matter. Arms that share
data order and initial weights by seed are one group, in which seeds pair.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaincinv, psi

Array: TypeAlias = NDArray[np.float64]

Estimand = Literal["seeds_and_queries", "queries", "seeds"]

ESTIMANDS: dict[Estimand, str] = {  # what a statement holds for beyond the present data
    "seeds_and_queries": "other training seeds and other queries",
    "queries": "other queries, these very runs",
    "seeds": "other training seeds, these very queries",
}

_NOTHING = 1e-24  # a variance below this, of scores between 0 and 1, is the rounding of decimals

_POINTS, _ENDS = 40, np.array([1e-9, 1.0 - 1e-12])  # of a grid: p to 1e-3, and the quantiles that it lies between

# A variance below this part of the variances that it is a difference of is their rounding: arms a constant apart.
_CANCELLED = 1e-13


@dataclass(frozen=True)
class RunGroup:
    """Training runs, two or more, that vary together: those of one arm, or of two arms whose seeds pair."""

    means: Array  # mean score over queries of each run, centred, ``(runs, datasets, arms)``; 0 for arms outside
    residual: Array  # covariance of what is left, divided by runs and queries, ``(datasets, arms, arms)``; 0 outside


@dataclass(frozen=True)
class Moments:
    """Means and variances of arms on datasets; everything that an interval of a contrast needs.

    ``query`` is the covariance over queries of the arms' scores, averaged over runs, divided by the number of queries.
    """

    means: Array  # ``(datasets, arms)``, each over runs and queries
    query: Array  # ``(datasets, arms, arms)``
    queries: tuple[int, ...]  # number of queries of each dataset
    groups: tuple[RunGroup, ...]  # an arm in none of them is taken as it is

    def terms(self, contrast: Array, estimand: Estimand = "seeds_and_queries") -> Terms:
        """Return the parts of the variance of a contrast, the weight of each mean ``(datasets, arms)``."""
        groups = self.groups if estimand != "queries" else ()
        runs = tuple(len(group.means) for group in groups)
        query, run = np.zeros(len(contrast)), np.zeros(len(groups))
        residual = np.zeros((len(groups), len(contrast)))
        if estimand != "seeds":
            query = _quadratic(contrast, self.query)
        for i, (group, number) in enumerate(zip(groups, runs, strict=True)):
            of_runs = group.means.reshape(number, -1) @ contrast.ravel()  # centred, as the means are
            run[i] = of_runs @ of_runs / ((number - 1) * number)
            if estimand == "seeds_and_queries":
                residual[i] = _quadratic(contrast, group.residual)
        return Terms(query, run, residual, self.queries, runs)


@dataclass(frozen=True)
class Terms:
    """The parts of the variance of one contrast, in its squared unit, and the sizes they come from."""

    query: Array  # of each dataset, ``(datasets,)``
    run: Array  # of each group of runs, ``(groups,)``
    residual: Array  # part of the two above that both count, ``(groups, datasets)``
    queries: tuple[float, ...]  # number of queries by dataset
    runs: tuple[float, ...]  # number of runs by group

    @cached_property
    def variance(self) -> float:
        """Variance of the contrast."""
        total = float(total_variance(self.query.sum(), self.run.sum(), self.residual.sum()))
        return 0.0 if total < _NOTHING else total

    @property
    def freedom(self) -> float:
        """Degrees of freedom after Satterthwaite, never below those of the poorest part.

        A variance over few runs is usually estimated too small and then passes for a minor part. So each is made
        unbiased on the scale of logarithms (docs/statistics.md, "The model"): in draws of mean squares, intervals from
        three paired seeds cover 92.4 % at worst without that and 93.8 % with it.
        """
        of_queries, of_runs = self._freedoms
        run = self.run * without_bias(of_runs)
        total = float(total_variance(self.query.sum(), run.sum(), self.residual.sum()))
        parts = (
            float((self.query**2 / of_queries).sum())
            + float((run**2 / of_runs).sum())
            + float((self.residual**2 / (of_runs[:, None] * of_queries)).sum())
        )
        used = [*(of_queries if self.query.any() else ()), *of_runs]
        return max(total**2 / parts, float(min(used))) if parts > 0.0 else math.inf

    def generalised_p(self, values: Array) -> Array:
        """Return two-sided p of a true value of 0, averaged over what the runs' variance may be (Weerahandi 1995).

        Of each group that is its estimate divided by a chi-squared variable over its degrees of freedom. The grid is
        even in logarithms, since the tail of p comes from small values of that variable; of two groups it is the
        product of their grids, of more it would be too large.
        """
        of_queries, of_runs = self._freedoms
        may_be, weights = np.zeros(1), np.ones(1)
        for run, freedom in zip(self.run, of_runs, strict=True):
            low, high = 2.0 / freedom * gammaincinv(freedom / 2.0, _ENDS)
            ratio = np.geomspace(low, high, _POINTS)
            density = np.exp(freedom / 2.0 * (np.log(ratio) - ratio + 1.0))
            may_be = np.add.outer(may_be, run / ratio).ravel()
            weights = np.multiply.outer(weights, density / density.sum()).ravel()
        query = self.query.sum()
        variance = total_variance(query, may_be, self.residual.sum())
        freedom = query**2 / (self.query**2 / of_queries).sum()
        tails = betainc(freedom / 2.0, 0.5, freedom / (freedom + values[:, None] ** 2 / variance))  # Student's t
        return np.asarray(tails @ weights)

    @property
    def _freedoms(self) -> tuple[Array, Array]:
        """Degrees of freedom of each dataset's queries and of each group of runs."""
        queries, runs = (np.array(numbers, dtype=np.float64) - 1.0 for numbers in (self.queries, self.runs))
        return np.maximum(queries, 1.0), runs  # one query has no part in a variance

    @property
    def error(self) -> float:
        """Standard error of the contrast."""
        return math.sqrt(self.variance)

    @property
    def shares(self) -> tuple[float, float]:
        """Fractions of the variance that more runs alone, and more queries alone, would shrink."""
        if self.variance == 0.0:
            return 0.0, 0.0
        left = self.residual.sum()
        of_runs = max(0.0, float(self.run.sum() - left)) / self.variance
        return min(1.0, of_runs), min(1.0, max(0.0, float(self.query.sum() - left)) / self.variance)


def moments(
    blocks: Sequence[Sequence[Array]], groups: Sequence[Sequence[int]] = (), apart: Collection[int] = ()
) -> Moments:
    """Take the moments of scores ``(runs, queries)`` by dataset and arm.

    The arms of a dataset share its queries, and an arm has the same runs on every dataset, all in one order. ``groups``
    are the places of arms whose runs vary together; an arm with a single run belongs to none. The arms ``apart`` have
    other runs on every dataset, so that each dataset is a group of its own.
    """
    everywhere = range(len(blocks))
    own = [
        (members, places)
        for members in groups
        for places in ([everywhere] if set(apart).isdisjoint(members) else [range(d, d + 1) for d in everywhere])
    ]
    by_query = [np.stack([arm.mean(axis=0) for arm in arms]) for arms in blocks]
    centred = [rows - rows.mean(axis=1, keepdims=True) for rows in by_query]
    return Moments(
        means=np.array([rows.mean(axis=1) for rows in by_query]),
        query=np.array([rows @ rows.T / max(1, rows.shape[1] - 1) / rows.shape[1] for rows in centred]),
        queries=tuple(arms[0].shape[1] for arms in blocks),
        groups=tuple(_group(blocks, members, places) for members, places in own),
    )


def groups_of(runs: Sequence[int], *, paired: bool) -> tuple[tuple[int, ...], ...]:
    """Return the groups of arms with so many runs: one group where seeds pair, else one for each arm with several."""
    if paired and min(runs) > 1:
        return (tuple(range(len(runs))),)
    return tuple((arm,) for arm, number in enumerate(runs) if number > 1)


def _group(blocks: Sequence[Sequence[Array]], members: Sequence[int], places: Sequence[int]) -> RunGroup:
    arms, runs = len(blocks[0]), len(blocks[places[0]][members[0]])
    means = np.zeros((runs, len(blocks), arms))
    residual = np.zeros((len(blocks), arms, arms))
    for d in places:
        scores = blocks[d]
        queries = scores[members[0]].shape[1]
        left = []
        for arm in members:
            shift = scores[arm].mean(axis=1)
            shift -= shift.mean()
            means[:, d, arm] = shift
            rest = scores[arm] - shift[:, None]
            rest -= scores[arm].mean(axis=0)  # in place: fresh pages take longer than the subtraction
            left.append(rest.ravel())
        if queries > 1:
            freedom = (runs - 1) * (queries - 1) * runs * queries
            rows = np.stack(left) if len(left) > 1 else left[0][None]
            # Not by BLAS, whose threads wait for each other: on busy cores that takes a hundred times as long.
            residual[d][np.ix_(members, members)] = np.einsum("iq,jq->ij", rows, rows) / freedom
    return RunGroup(means, residual)


def total_variance(query: Array, run: Array, residual: Array) -> Array:
    """Return the sum, or its larger part where chance makes the sum of estimates smaller than that."""
    return np.maximum(query + run - residual, np.maximum(query, run))


def without_bias(freedom: Array) -> Array:
    """Return the factor that makes a variance of so many degrees of freedom unbiased on the scale of logarithms."""
    return np.asarray(np.exp(np.log(freedom / 2.0) - psi(freedom / 2.0)))


def _quadratic(contrast: Array, covariance: Array) -> Array:
    """Return the variance of a contrast by dataset; 0 where it is the rounding of the arms' own variances."""
    found = ((covariance @ contrast[:, :, None])[:, :, 0] * contrast).sum(axis=1)
    own = (np.diagonal(covariance, axis1=1, axis2=2) * contrast**2).sum(axis=1)
    return np.where(found > _CANCELLED * own, found, 0.0)
