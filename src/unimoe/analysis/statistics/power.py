"""How many seeds and queries would settle a gate, and what the present ones can settle at all.

Of the variance ``V = v_query / n + sum over groups of runs (v_run / S + v_left / (S * n))`` more queries leave
``v_run / S``, more seeds leave ``v_query / n`` (Searle, Casella & McCulloch 1992, Variance Components, ch. 4).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.variance import Terms, held

POWER = 0.80
MOST_SEEDS = 100
MOST_QUERIES = 10**9
ENDLESS = 1e15  # as good as infinitely many, and finite in every formula


@dataclass(frozen=True)
class Aim:
    """What is asked of a gate: the confidence its label needs, and the chance that other data reaches that.

    ``power`` is the chance that new data of the planned size settles the gate if the true value is the one observed:
    half of all data sets of a size that settles it only just would not. ``one_sided``: a region between two cutoffs
    needs the confidence on either side (two one-sided tests, as for equivalence), not on both at once (as MARGINAL);
    what lies outside needs it two-sided.
    """

    cutoffs: Sequence[float]  # ascending; they bound the regions that have a label
    confidence: float  # that the estimate's region must hold
    power: float = POWER
    one_sided: bool = False

    def region(self, estimate: float) -> tuple[float, float]:
        """Return the region around an estimate, ``low <= estimate < high``; its outer ends are infinite."""
        ends = (-math.inf, *self.cutoffs, math.inf)
        above = next(i for i, end in enumerate(ends) if estimate < end)
        return ends[above - 1], ends[above]


@dataclass(frozen=True)
class PowerPlan:
    """What would settle a gate at the observed estimate; None where no number of seeds or queries up to the most does.

    Where the present data settles it, ``seeds``, ``queries`` and ``grid`` are the present sizes.
    """

    at_hand: tuple[int, int]  # ``(seeds, queries)``, the seeds of the arm with fewest
    settled: bool  # the present data settles it
    seeds: int | None  # smallest number of seeds of each arm, queries as they are; None too where no arm has seeds
    queries: int | None  # smallest number of queries, seeds as they are
    grid: tuple[int, int] | None  # the ``(seeds, queries)`` with the fewest scored pairs that keep what there is
    decides: float  # smallest distance from a cutoff that data of this size settles, with the asked power
    decides_with_any_queries: float  # the same with these seeds and any number of queries
    decides_with_any_seeds: float  # the reverse


def at_size(terms: Terms, seeds: float, queries: float) -> Terms:
    """Return the parts of the variance to expect with other numbers of seeds and queries.

    An arm that has more seeds keeps what it has; the queries, two or more, are those of all datasets, in their present
    proportions.
    """
    times = queries / sum(terms.queries)
    runs = np.array([max(have, seeds) for have in terms.runs], dtype=np.float64)
    more = np.array(terms.runs, dtype=np.float64) / runs
    left = terms.residual.sum(axis=0)
    in_query, in_run = np.minimum(terms.query, left), np.minimum(terms.run, terms.residual.sum(axis=1))
    shrink = np.divide(terms.residual.T @ more, left, out=np.ones_like(left), where=left > 0.0)
    return Terms(
        query=(terms.query - in_query + in_query * shrink) / times,
        run=(terms.run - in_run + in_run / times) * more,
        residual=terms.residual * more[:, None] / times,
        queries=tuple(max(2.0, number * times) for number in terms.queries),
        runs=tuple(runs.tolist()),
        third=terms.third / times**2,
        pooled=terms.pooled and terms.pooled + float(runs.sum()) - sum(terms.runs),
    )


def half_width(terms: Terms, seeds: float, queries: float) -> float:
    """Return half of the 95 % interval to expect with other numbers of seeds and queries, to first order."""
    expected = at_size(terms, seeds, queries)
    return float(stdtrit(expected.freedom, (1.0 + LEVEL) / 2.0)) * expected.error


def plan(terms: Terms, estimate: float, aim: Aim) -> PowerPlan:
    """Find the numbers of seeds and queries that would settle a gate at the estimate, in the unit of the cutoffs."""
    fewest, queries = int(min(terms.runs, default=0)), int(sum(terms.queries))
    settled = _held(terms, estimate, replace(aim, power=0.5)) >= aim.confidence
    alone = _queries_needed(terms, estimate, aim, fewest, MOST_QUERIES)
    grid = None if alone is None else (fewest, alone)
    for seeds in range(fewest + 1, MOST_SEEDS + 1) if fewest else ():
        most = MOST_QUERIES if grid is None else (grid[0] * grid[1] - 1) // seeds
        if most < queries:
            break  # more seeds cost more, whatever queries they save
        number = _queries_needed(terms, estimate, aim, seeds, most)
        grid = grid if number is None else (seeds, number)
    tried = range(fewest, MOST_SEEDS + 1) if fewest and _settles(terms, estimate, aim, MOST_SEEDS, queries) else ()
    enough = next((seeds for seeds in tried if _settles(terms, estimate, aim, seeds, queries)), None)
    return PowerPlan(
        at_hand=(fewest, queries),
        settled=settled,
        seeds=fewest if settled else enough,
        queries=queries if settled else alone,
        grid=(fewest, queries) if settled else grid,
        decides=smallest_distance(terms, fewest, queries, aim),
        decides_with_any_queries=smallest_distance(terms, fewest, ENDLESS, aim),
        decides_with_any_seeds=smallest_distance(terms, ENDLESS, queries, aim),
    )


def smallest_distance(terms: Terms, seeds: float, queries: float, aim: Aim) -> float:
    """Return how far from a cutoff an estimate must lie for data of some size to settle the gate.

    The distance is that of a region with one cutoff: both the confidence and the power are one-sided.
    """
    expected = at_size(terms, seeds, queries)
    t, luck = stdtrit(expected.freedom, [aim.confidence, aim.power])
    if skew := abs(expected.skew):  # on one side of a cutoff, that of the longer tail, Hall's transformation asks more
        t = max(t, 3.0 * (1.0 - np.cbrt(1.0 - skew * (t + skew / 6.0))) / skew)
    return float(t + luck) * expected.error


def _held(terms: Terms, estimate: float, aim: Aim) -> float:
    """Return the confidence of the estimate's region after the bad luck that ``aim.power`` asks to bear.

    Bad luck moves the estimate towards a cutoff. In a region with two of them either side is bad, so that each gets
    half of the chance that remains.
    """
    error, freedom, skew = terms.error, terms.freedom, terms.skew
    if error == 0.0:
        return 1.0
    low, high = aim.region(estimate)
    two_sided = math.isfinite(low) and math.isfinite(high) and aim.power > 0.5
    shift = float(stdtrit(freedom, (1.0 + aim.power) / 2.0 if two_sided else aim.power)) * error

    def inside(luck: float) -> float:
        at = estimate + luck
        under = held((at - high) / error, freedom, skew).below if math.isfinite(high) else 1.0
        over = held((at - low) / error, freedom, skew).above if math.isfinite(low) else 1.0
        if not aim.one_sided:
            return under + over - 1.0
        return min(under, over) if math.isfinite(low) and math.isfinite(high) else 2.0 * (under + over - 1.0) - 1.0

    return min(inside(-shift), inside(shift))


def _settles(terms: Terms, estimate: float, aim: Aim, seeds: float, queries: float) -> bool:
    """Return whether data of a size settles the gate for good: with any more seeds or queries too.

    Intervals may widen on the way: as the runs' part comes to dominate, the degrees of freedom fall to those of the
    runs, and t rises faster than the standard error falls.
    """
    sizes = ((seeds, queries), (seeds, ENDLESS), (ENDLESS, queries))
    return all(_held(at_size(terms, *size), estimate, aim) >= aim.confidence for size in sizes)


def _queries_needed(terms: Terms, estimate: float, aim: Aim, seeds: int, most: int) -> int | None:
    """Return the smallest number of queries up to ``most`` that settles the gate, by bisection; None without one."""
    if not _settles(terms, estimate, aim, seeds, most):
        return None
    sizes = range(int(sum(terms.queries)), most)
    return sizes.start + bisect_left(sizes, True, key=lambda queries: _settles(terms, estimate, aim, seeds, queries))
