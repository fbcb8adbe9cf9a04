"""The model of variance: queries are shared by all arms, training runs belong to an arm or to a pair of arms.

A contrast is a weighted sum of the arms' mean scores. Its variance is estimated from the mean squares over queries,
over runs, and of the residual, which the first two both count (docs/statistics.md, "The model"):

    V = V_query + sum over groups of runs (V_run - V_residual)

Seeds of separately trained arms are two groups, of equal or other size, in an order that cannot matter. Arms that share
data order and initial weights by seed are one group, in which seeds pair. Arms of one recipe may be declared to share
one variance of a run, which the runs of all of them together estimate (``pool``).

Queries are drawn: those of one dataset by themselves, or topics with all their queries where datasets share them. What
is drawn together is one ``Drawn``, which has its own mean squares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaincinv, psi, stdtr

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


Places: TypeAlias = NDArray[np.intp] | slice  # queries of one dataset, by their places


@dataclass(frozen=True)
class Drawn:
    """Independent draws: queries of one dataset, or topics that are drawn with all their queries on some datasets."""

    number: int
    # By the place of a dataset: its columns among them, the number of each column's draw (None for its own place), and
    # which of all its columns people judged, where a model judged all: the two kinds deviate each from its own mean.
    parts: Mapping[int, tuple[Places, NDArray[np.intp] | None, NDArray[np.bool_] | None]]

    def summed(self, place: int, values: Array) -> Array:
        """Return ``(rows, draws)`` from a dataset's ``(rows, queries)``: deviations with the row's mean."""
        columns, draws, labelled = self.parts[place]
        mean = values.mean(axis=1, keepdims=True)
        if labelled is not None:
            human, model = (values[:, of].mean(axis=1, keepdims=True) for of in (labelled, ~labelled))
            mean = np.where(labelled, human, model)
        here = (values - mean)[:, columns] * (self.number / values.shape[1])
        if draws is None:
            return np.asarray(here)
        found = np.zeros((len(values), self.number))
        np.add.at(found.T, draws, here.T)
        return found


@dataclass(frozen=True)
class RunGroup:
    """Training runs, two or more, that vary together: those of one arm, or of two arms with paired seeds."""

    runs: int
    # Mean score over queries of each run, centred, ``(runs, datasets, arms)``; 0 for arms outside. Of pooled runs those
    # of all arms, scaled to the same sum of squares over ``runs - 1``.
    means: Array
    residual: Array  # covariance of what is left, divided by runs and draws, as ``Moments.query``; 0 outside


@dataclass(frozen=True)
class Moments:
    """Means and variances of arms on datasets; everything that an interval of a contrast needs.

    ``query`` is the covariance over draws of the arms' scores, averaged over runs, divided by the number of draws;
    ``third`` is their third cumulant, divided by its square. Rows are places in ``means``, flat, which ``places`` holds
    for each kind of draws, ``(drawn, rows)``; where one has fewer rows than another, the rest is 0.
    """

    means: Array  # ``(datasets, arms)``, each over runs and queries
    places: NDArray[np.intp]
    query: Array  # ``(drawn, rows, rows)``
    third: Array  # ``(drawn, rows, rows, rows)``
    queries: tuple[int, ...]  # number of draws of each kind: of queries, by dataset, where no topic is shared
    groups: tuple[RunGroup, ...]  # an arm in none of them is taken as it is
    together: NDArray[np.intp]  # ``(datasets,)``, the same number for datasets that share draws
    pooled: int = 0  # degrees of freedom of the variance of a run that the groups share; 0 where each has its own

    def terms(self, contrast: Array, estimand: Estimand = "seeds_and_queries") -> Terms:
        """Return the parts of the variance of a contrast, the weight of each mean ``(datasets, arms)``."""
        groups = self.groups if estimand != "queries" else ()
        runs = tuple(group.runs for group in groups)
        query, run, third = np.zeros(len(self.queries)), np.zeros(len(groups)), 0.0
        residual = np.zeros((len(groups), len(self.queries)))
        weights = contrast.ravel()[self.places]
        if estimand != "seeds":
            query = _quadratic(weights, self.query)
            third = float(np.einsum("cijk,ci,cj,ck->", self.third, weights, weights, weights))
        for i, (group, number) in enumerate(zip(groups, runs, strict=True)):
            of_runs = group.means.reshape(len(group.means), -1) @ contrast.ravel()  # centred, as the means are
            run[i] = of_runs @ of_runs / ((number - 1) * number)
            if estimand == "seeds_and_queries":
                residual[i] = _quadratic(weights, group.residual)
        return Terms(query, run, residual, self.queries, runs, third if query.any() else 0.0, self.pooled)


class Held(NamedTuple):
    """The confidence that a true value lies below a cutoff, and that it lies above; together at most 1."""

    below: float
    above: float


def held(t: float, freedom: float, skew: float) -> Held:
    """Return both confidences by a statistic in standard errors: each the lower one by Student's t and by Hall's.

    Losses are skewed: most queries lose nothing, a few lose everything. Then t errs on one side far more than it says.
    Hall's (1992) transformation of the statistic takes the estimate's skew out of it, but errs where few queries
    differ, so that a statement needs both (docs/statistics.md, "Skewed differences").
    """
    straight = t + skew / 3.0 * t**2 + skew**2 / 27.0 * t**3 + skew / 6.0
    return Held(float(stdtr(freedom, -max(t, straight))), float(stdtr(freedom, min(t, straight))))


@dataclass(frozen=True)
class Terms:
    """The parts of the variance of one contrast, in its squared unit, and the sizes they come from."""

    query: Array  # of each kind of draws, ``(drawn,)``: of each dataset, where no topic is shared
    run: Array  # of each group of runs, ``(groups,)``
    residual: Array  # part of the two above that both count, ``(groups, drawn)``
    queries: tuple[float, ...]  # number of draws by kind
    runs: tuple[float, ...]  # number of runs by group
    third: float = 0.0  # third cumulant of the contrast, in its cubed unit: that of queries
    pooled: float = 0.0  # degrees of freedom of the variance that all groups of runs share; 0 where each has its own

    @cached_property
    def variance(self) -> float:
        """Variance of the contrast."""
        total = float(total_variance(self.query.sum(), self.run.sum(), self.residual.sum()))
        return 0.0 if total < _NOTHING else total

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom after Satterthwaite, never below those of the poorest part.

        A variance over few runs is usually estimated too small and then passes for a minor part. So each is made
        unbiased on the scale of logarithms (docs/statistics.md, "The model"): in draws of mean squares, intervals from
        three paired seeds cover 92.4 % at worst without that and 93.8 % with it.
        """
        of_queries, of_residual = self._freedoms
        run, of_runs = self._estimated
        run = run * without_bias(of_runs)
        total = float(total_variance(self.query.sum(), run.sum(), self.residual.sum()))
        parts = (
            float((self.query**2 / of_queries).sum())
            + float((run**2 / of_runs).sum())
            + float((self.residual**2 / (of_residual[:, None] * of_queries)).sum())
        )
        used = [*(of_queries if self.query.any() else ()), *of_runs]
        return max(total**2 / parts, float(min(used))) if parts > 0.0 else math.inf

    def generalised_p(self, values: Array) -> Array:
        """Return two-sided p of a true value of 0, averaged over what the runs' variance may be (Weerahandi 1995).

        Of each group that is its estimate divided by a chi-squared variable over its degrees of freedom. The grid is
        even in logarithms, since the tail of p comes from small values of that variable; of two groups it is the
        product of their grids, of more it would be too large.
        """
        of_queries, _ = self._freedoms
        may_be, weights = np.zeros(1), np.ones(1)
        for run, freedom in zip(*self._estimated, strict=True):
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
    def _estimated(self) -> tuple[Array, Array]:
        """The parts of runs that are estimated apart, and their degrees of freedom; of pooled runs there is one."""
        if self.pooled and len(self.run):
            return self.run.sum(keepdims=True), np.array([self.pooled], dtype=np.float64)
        return self.run, self._freedoms[1]

    @property
    def error(self) -> float:
        """Standard error of the contrast."""
        return math.sqrt(self.variance)

    @property
    def skew(self) -> float:
        """Skewness of the contrast: that of a query's differences over the root of their number, less what runs add."""
        return self.third / self.variance**1.5 if self.variance else 0.0

    @property
    def is_rough(self) -> bool:
        """Whether skew makes t rough: fewer than 25 skew**2 queries, as Cochran has it, where runs add nothing."""
        return self.skew**2 * 25.0 > 1.0

    def held(self, excess: float) -> Held:
        """Return the confidence that the contrast is below 0, and that it is above, from the value found."""
        if self.variance == 0.0:
            below = float(round(excess, 12) < 0.0)
            return Held(below, 1.0 - below)
        return held(excess / self.error, self.freedom, self.skew)

    @property
    def shares(self) -> tuple[float, float]:
        """Fractions of the variance that more runs alone, and more queries alone, would shrink."""
        if self.variance == 0.0:
            return 0.0, 0.0
        left = self.residual.sum()
        of_runs = max(0.0, float(self.run.sum() - left)) / self.variance
        return min(1.0, of_runs), min(1.0, max(0.0, float(self.query.sum() - left)) / self.variance)


def moments(
    blocks: Sequence[Sequence[Array]],
    groups: Sequence[Sequence[int]] = (),
    apart: Collection[int] = (),
    drawn: Sequence[Drawn] = (),
    pool: Sequence[Array] | None = None,
) -> Moments:
    """Take the moments of scores ``(runs, queries)`` by dataset and arm.

    The arms of a dataset share its queries, and an arm has the same runs on every dataset, all in one order. ``groups``
    are the places of arms that vary together by run; an arm with a single run belongs to none. The arms ``apart`` have
    other runs on every dataset, so that each dataset is a group of its own. Queries are drawn as ``drawn`` has it, by
    default those of each dataset by themselves. With a ``pool``, arms of runs that neither pair nor lie apart share one
    variance of a run with each other, and with the systems whose runs' mean scores ``(runs, datasets)`` it holds.
    """
    everywhere, arms = range(len(blocks)), len(blocks[0])
    drawn = drawn or [Drawn(scores[0].shape[1], {d: (slice(None), None, None)}) for d, scores in enumerate(blocks)]
    own = [
        (members, places)
        for members in groups
        for places in ([everywhere] if set(apart).isdisjoint(members) else [range(d, d + 1) for d in everywhere])
    ]
    by_query = [np.stack([arm.mean(axis=0) for arm in of_dataset]) for of_dataset in blocks]
    rows, together = max(len(of.parts) for of in drawn) * arms, np.arange(len(blocks))
    places = np.zeros((len(drawn), rows), dtype=np.intp)
    query, third = np.zeros((len(drawn), rows, rows)), np.zeros((len(drawn), rows, rows, rows))
    for c, of in enumerate(drawn):
        centred = np.concatenate([of.summed(d, by_query[d]) for d in of.parts])
        number, size, here = of.number, len(centred), slice(0, len(centred))
        together[np.isin(together, together[[*of.parts]])] = min(together[[*of.parts]])
        places[c, here] = [d * arms + arm for d in of.parts for arm in range(arms)]
        query[c, here, here] = centred @ centred.T / max(1, number - 1) / number
        products = (centred[:, None] * centred).reshape(size * size, number)
        cubes = (products @ centred.T).reshape(size, size, size)
        third[c, here, here, here] = cubes / (number * max(1, number - 1) * max(1, number - 2))
    found = [_group(blocks, by_query, members, datasets, drawn, rows) for members, datasets in own]
    pooled = 0
    if pool is not None and not apart and all(len(members) == 1 for members in groups):
        found, pooled = _pooled(found, [members[0] for members, _ in own], pool)
    return Moments(
        means=np.array([of_dataset.mean(axis=1) for of_dataset in by_query]),
        places=places,
        query=query,
        third=third,
        queries=tuple(of.number for of in drawn),
        groups=tuple(found),
        together=together,
        pooled=pooled,
    )


def groups_of(runs: Sequence[int], *, paired: bool) -> tuple[tuple[int, ...], ...]:
    """Return the groups of arms with so many runs: one group where seeds pair, else one for each arm with several."""
    if paired and min(runs) > 1:
        return (tuple(range(len(runs))),)
    return tuple((arm,) for arm, number in enumerate(runs) if number > 1)


def _group(
    blocks: Sequence[Sequence[Array]],
    by_query: Sequence[Array],
    members: Sequence[int],
    datasets: Sequence[int],
    drawn: Sequence[Drawn],
    rows: int,
) -> RunGroup:
    """Return the runs of some arms on some datasets: their means, and what neither run nor query explains."""
    arms, runs = len(blocks[0]), len(blocks[datasets[0]][members[0]])
    means = np.zeros((runs, len(blocks), arms))
    residual = np.zeros((len(drawn), rows, rows))
    for d in datasets:
        for arm in members:
            shift = blocks[d][arm].mean(axis=1)
            means[:, d, arm] = shift - shift.mean()
    for c, of in enumerate(drawn):
        left, places = [], []
        for slot, d in enumerate(of.parts):
            for arm in members if d in datasets else ():
                left.append(of.summed(d, blocks[d][arm] - by_query[d][arm]).ravel())
                places.append(slot * arms + arm)
        if left and of.number > 1:
            freedom = (runs - 1) * (of.number - 1) * runs * of.number
            stacked = np.stack(left) if len(left) > 1 else left[0][None]
            # Not by BLAS, whose threads wait for each other: on busy cores that takes a hundred times as long.
            residual[c][np.ix_(places, places)] = np.einsum("iq,jq->ij", stacked, stacked) / freedom
    return RunGroup(runs, means, residual)


def _pooled(groups: Sequence[RunGroup], arms: Sequence[int], pool: Sequence[Array]) -> tuple[list[RunGroup], int]:
    """Return groups of one arm each with the mean square of all of them and of others, and its degrees of freedom."""
    own = [group.means[:, :, arm] for group, arm in zip(groups, arms, strict=True)]
    every = [*own, *(of_system - of_system.mean(axis=0) for of_system in pool)]
    freedom, found = sum(len(of_system) - 1 for of_system in every), []
    for group, arm in zip(groups, arms, strict=True):
        means = np.zeros((sum(map(len, every)), *group.means.shape[1:]))
        means[:, :, arm] = np.concatenate(every) * math.sqrt((group.runs - 1) / freedom)
        found.append(RunGroup(group.runs, means, group.residual))
    return found, freedom if found else 0


def total_variance(query: Array, run: Array, residual: Array) -> Array:
    """Return the sum, or its larger part where chance makes the sum of estimates smaller than that."""
    return np.maximum(query + run - residual, np.maximum(query, run))


def without_bias(freedom: Array) -> Array:
    """Return the factor that makes a variance of so many degrees of freedom unbiased on the scale of logarithms."""
    return np.asarray(np.exp(np.log(freedom / 2.0) - psi(freedom / 2.0)))


def _quadratic(weights: Array, covariance: Array) -> Array:
    """Return the variance of weighted rows by kind of draws; 0 where it is the rounding of the rows' own variances."""
    found = ((covariance @ weights[:, :, None])[:, :, 0] * weights).sum(axis=1)
    own = (np.diagonal(covariance, axis1=1, axis2=2) * weights**2).sum(axis=1)
    return np.where(found > _CANCELLED * own, found, 0.0)
