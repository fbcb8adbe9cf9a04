"""How many seeds and queries would settle a gate, and what the present ones can settle at all.

An error matrix over seeds and queries, crossed, is a sum of a seed's part, a query's part and what is left:
``r = a_seed + b_query + e``. Its mean over S seeds and n queries has variance
``V(S, n) = v_seed / S + v_query / n + v_residual / (S * n)``, so more queries leave ``v_seed / S`` standing and more
seeds ``v_query / n`` (Searle, Casella & McCulloch 1992, Variance Components, ch. 4).

The components are estimates themselves: from three seeds, the 95 % interval of the seeds' standard deviation reaches
from half to six times the estimate. Numbers of seeds and queries that follow from them are plans, not promises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from unimoe.analysis.crossed import CONFIDENCE, FAIL_BELOW, LEVEL, PASS_AT, Array, MeanSquares
from unimoe.errors import UsageError

POWER = 0.80
MOST_SEEDS = 100
MOST_QUERIES = 10**9
FAST_TIER_QUERIES = 300 + 323 + 648
"""Test queries of SciFact, NFCorpus and FiQA2018."""


@dataclass(frozen=True)
class Aim:
    """What is asked of a gate: the confidence its label needs, and the chance that other data reaches that.

    Attributes:
        cutoffs: ascending; they cut the line into the regions that have a label.
        confidence: that the estimate's region must hold.
        power: chance that new data of the planned size settles the gate if the true value is the one observed. Half
            of all data sets of a size that settles it only just would not.
        one_sided: a region between two cutoffs needs the confidence on either side (two one-sided tests, as for
            equivalence), not on both at once (as MARGINAL does).

    Raises:
        UsageError: no cutoffs or unordered ones; a confidence or a power outside [.5, 1).
    """

    cutoffs: Sequence[float] = (FAIL_BELOW, PASS_AT)
    confidence: float = CONFIDENCE
    power: float = POWER
    one_sided: bool = False

    def __post_init__(self) -> None:
        if not self.cutoffs or any(a >= b for a, b in zip(self.cutoffs, self.cutoffs[1:], strict=False)):
            raise UsageError(f"cutoffs {list(self.cutoffs)}: give one or more, in ascending order")
        for name, value in (("confidence", self.confidence), ("power", self.power)):
            if not 0.5 <= value < 1.0:
                raise UsageError(f"{name} {value}: choose a value from 0.5 to below 1, for example 0.9")

    def region(self, estimate: float) -> tuple[float, float]:
        """The region around an estimate, ``low <= estimate < high``; its outer ends are infinite."""
        ends = (-math.inf, *self.cutoffs, math.inf)
        above = next(i for i, end in enumerate(ends) if estimate < end)
        return ends[above - 1], ends[above]


@dataclass(frozen=True)
class PowerPlan:
    """What would settle a gate at the observed estimate; ``None`` means never.

    Attributes:
        at_hand: ``(seeds, queries)``.
        settled: the data at hand settles it; ``seeds``, ``queries`` and ``grid`` are then the sizes at hand.
        seeds: smallest number of seeds, queries as they are; None where no number up to ``MOST_SEEDS`` does.
        queries: smallest number of queries, seeds as they are; None where no number up to ``MOST_QUERIES`` does.
        grid: cheapest ``(seeds, queries)`` that keeps what there is.
        decides: smallest distance from a cutoff that data of this size settles, with the asked power.
        decides_with_any_queries: the same with these seeds and infinitely many queries: the seeds' own limit.
        decides_with_any_seeds: the same with these queries and infinitely many seeds.
        decides_in_fast_tier: the same with these seeds and the fast tier's queries, if they vary as these do.
    """

    at_hand: tuple[int, int]
    settled: bool
    seeds: int | None
    queries: int | None
    grid: tuple[int, int] | None
    decides: float
    decides_with_any_queries: float
    decides_with_any_seeds: float
    decides_in_fast_tier: float


def precision(squares: MeanSquares, n_seeds: ArrayLike, n_queries: ArrayLike) -> tuple[Array, Array]:
    """Standard error and Satterthwaite degrees of freedom that ``crossed_interval`` can expect at other sizes.

    Its formulas on expected mean squares, all divided by ``S * n``: ``V = V_seed + V_query - V_residual``, at least the
    larger of the first two, and ``V**2 / (V_seed**2 / (S - 1) + V_query**2 / (n - 1) + V_residual**2 / ((S - 1) *
    (n - 1)))`` degrees of freedom, at least ``min(S, n) - 1`` (Satterthwaite 1946). A mean square that chance put below
    the residual's stays as it is. At the observed sizes the numbers are those of ``crossed_interval``.

    Args:
        squares: what was observed.
        n_seeds: numbers of seeds, at least 2; infinity gives the limit. Broadcast against ``n_queries``.
        n_queries: numbers of queries, likewise.
    """
    seeds, queries = np.asarray(n_seeds, dtype=np.float64), np.asarray(n_queries, dtype=np.float64)
    both = seeds * queries
    residual = squares.residual / both
    seed = squares.seed_variance / seeds + min(squares.seed, squares.residual) / both
    query = squares.query_variance / queries + min(squares.query, squares.residual) / both
    total = np.maximum(seed + query - residual, np.maximum(seed, query))
    parts = seed**2 / (seeds - 1) + query**2 / (queries - 1) + residual**2 / ((seeds - 1) * (queries - 1))
    freedom = np.divide(total**2, parts, out=np.full(np.shape(total), np.inf), where=parts > 0.0)
    return np.sqrt(total), np.maximum(freedom, np.minimum(seeds, queries) - 1)


def half_width(squares: MeanSquares, n_seeds: ArrayLike, n_queries: ArrayLike, level: float = LEVEL) -> Array:
    """Half the width of the two-sided interval to expect at other sizes; arguments as in ``precision``.

    More queries can widen it: as the seeds' part comes to dominate, the degrees of freedom fall to those of the seeds,
    and t rises faster than the standard error falls. The same holds for seeds where there are few queries.
    """
    error, freedom = precision(squares, n_seeds, n_queries)
    return np.asarray(stdtrit(freedom, (1.0 + level) / 2.0) * error)


def smallest_distance(squares: MeanSquares, n_seeds: ArrayLike, n_queries: ArrayLike, aim: Aim) -> Array:
    """Smallest distance from one cutoff that data of a size settles: ``(t[confidence] + t[power]) * standard error``.

    The usual sum of two quantiles (Chow, Shao & Wang 2008, Sample Size Calculations, ch. 3) with t's. Arguments as in
    ``precision``; the cutoffs of ``aim`` do not matter.
    """
    error, freedom = precision(squares, n_seeds, n_queries)
    return np.asarray((stdtrit(freedom, aim.confidence) + stdtrit(freedom, aim.power)) * error)


def settles(
    squares: MeanSquares, estimate: float, n_seeds: ArrayLike, n_queries: ArrayLike, aim: Aim
) -> NDArray[np.bool_]:
    """Whether data of a size settles the gate for good, if the observed estimate is the true value.

    For good: with any more seeds or queries too. Since intervals may widen on the way (see ``half_width``), the
    confidence must be held at the sizes asked for and in the limits of either size. So more of either never unsettles.
    Arguments as in ``precision``.
    """
    here = _held(squares, estimate, n_seeds, n_queries, aim)
    limits = np.minimum(
        _held(squares, estimate, n_seeds, math.inf, aim), _held(squares, estimate, math.inf, n_queries, aim)
    )
    return np.asarray(np.minimum(here, limits) >= aim.confidence)


def plan(
    squares: MeanSquares, estimate: float, aim: Aim | None = None, seed_cost: float = 0.0, query_cost: float = 1.0
) -> PowerPlan:
    """The numbers of seeds and queries that would settle a gate at the observed estimate.

    Args:
        squares: mean squares of the linearised errors, with the sizes at hand.
        estimate: what was observed, in the unit of the cutoffs.
        aim: cutoffs, confidence and power; the rule's for TIR when left out.
        seed_cost: of training the arms with one seed more, in any unit.
        query_cost: of scoring one query with the arms of one seed, in the same unit. Left as they are, the costs ask
            for the fewest scored pairs of seed and query.

    Raises:
        UsageError: a negative cost, or both costs 0.
    """
    aim = aim or Aim()
    if (
        round(max(squares.seed, squares.query, squares.residual), 12) == 0.0
    ):  # as crossed_interval has it: nothing varies
        squares = replace(squares, seed=0.0, query=0.0, residual=0.0)
    if min(seed_cost, query_cost) < 0.0 or seed_cost + query_cost == 0.0:
        raise UsageError(f"costs {seed_cost} and {query_cost}: none may be negative, and one must be positive")
    here = squares.n_seeds, squares.n_queries
    settled = bool(_held(squares, estimate, *here, replace(aim, power=0.5)) >= aim.confidence)
    seeds = np.arange(here[0], max(here[0], MOST_SEEDS) + 1)
    queries = _smallest(lambda n: settles(squares, estimate, seeds, n, aim), np.full(seeds.shape, here[1]))
    possible = queries <= MOST_QUERIES
    cost = np.where(possible, seeds * (seed_cost + query_cost * queries), np.inf)
    best = int(cost.argmin())
    grid = (int(seeds[best]), int(queries[best])) if possible[best] else None
    return PowerPlan(
        at_hand=here,
        settled=settled,
        seeds=here[0] if settled else next(map(int, seeds[queries == here[1]]), None),
        queries=here[1] if settled else int(queries[0]) if possible[0] else None,
        grid=here if settled else grid,
        decides=float(smallest_distance(squares, *here, aim)),
        decides_with_any_queries=float(smallest_distance(squares, here[0], math.inf, aim)),
        decides_with_any_seeds=float(smallest_distance(squares, math.inf, here[1], aim)),
        decides_in_fast_tier=float(smallest_distance(squares, here[0], FAST_TIER_QUERIES, aim)),
    )


def settle_sentence(plan: PowerPlan) -> str:
    """What would settle the gate, in words; what never would is said too."""
    seeds, queries = plan.at_hand
    if plan.settled:
        return f"these {seeds} seeds x {queries:,} queries settle it"
    if plan.grid is None:
        return (
            f"the estimate lies too near a cutoff: up to {MOST_SEEDS:,} seeds and {MOST_QUERIES:,} queries would not "
            "settle it"
        )
    more_seeds = f"about {plan.seeds:,} seeds with these {queries:,} queries" if plan.seeds else "never by seeds alone"
    more_queries = (
        f"about {plan.queries:,} queries with these {seeds} seeds" if plan.queries else "never by queries alone"
    )
    ways = [more_seeds, more_queries]
    if plan.grid not in ((plan.seeds, queries), (seeds, plan.queries)):
        ways.append(f"fewest scores: about {plan.grid[0]:,} seeds x {plan.grid[1]:,} queries")
    return "; ".join(ways)


def decides_sentence(plan: PowerPlan) -> str:
    """What data can decide at all, in words; distances in points, which are percent for a TIR."""
    return (
        f"only what lies {points(plan.decides)} points or more from a cutoff; with the fast tier's "
        f"{FAST_TIER_QUERIES:,} queries {points(plan.decides_in_fast_tier)}, with any number of queries "
        f"{points(plan.decides_with_any_queries)}, with any number of seeds {points(plan.decides_with_any_seeds)}"
    )


def points(distance: float) -> str:
    """A distance from a cutoff; no limit is seen where a variance was estimated as 0, which it hardly is."""
    return f"{100 * distance:.2f}" if distance else "no limit seen"


def _held(squares: MeanSquares, estimate: float, n_seeds: ArrayLike, n_queries: ArrayLike, aim: Aim) -> Array:
    """Confidence that the estimate's region still holds after the bad luck that ``aim.power`` asks to bear.

    Bad luck moves the estimate towards a cutoff. In a region with two of them either side is bad, so that each gets
    half of the chance that remains.
    """
    error, freedom = precision(squares, n_seeds, n_queries)
    low, high = aim.region(estimate)
    two_sided = math.isfinite(low) and math.isfinite(high) and aim.power > 0.5
    shift = stdtrit(freedom, (1.0 + aim.power) / 2.0 if two_sided else aim.power) * error

    def below(cutoff: float, luck: Array) -> Array:
        distance = np.asarray(cutoff - estimate - luck)
        return np.asarray(stdtr(freedom, np.divide(distance, error, out=np.zeros_like(distance), where=error > 0.0)))

    def inside(luck: Array) -> Array:
        under, over = below(high, luck), 1.0 - below(low, luck)
        return np.minimum(under, over) if aim.one_sided else under + over - 1.0

    return np.where(error > 0.0, np.minimum(inside(-shift), inside(shift)), 1.0)


def _smallest(holds: Callable[[NDArray[np.int64]], NDArray[np.bool_]], start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Elementwise smallest number from ``start`` to ``MOST_QUERIES`` that holds, by bisection; else one more."""
    low, high = start, np.full(start.shape, MOST_QUERIES + 1)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        found = holds(middle)
        low, high = np.where(open_ & ~found, middle + 1, low), np.where(open_ & found, middle, high)
    return low
