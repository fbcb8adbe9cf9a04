from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unimoe.analysis.crossed import MeanSquares
from unimoe.analysis.power import (
    Aim,
    decides_sentence,
    half_width,
    plan,
    precision,
    settle_sentence,
    settles,
    smallest_distance,
)
from unimoe.errors import UsageError

MANY_MORE = 10**12

mean_squares = st.builds(
    MeanSquares,
    seed=st.floats(1e-6, 10.0),
    query=st.floats(1e-6, 10.0),
    residual=st.floats(1e-6, 10.0),
    n_seeds=st.integers(2, 10),
    n_queries=st.integers(2, 2_000),
)
seed_counts = st.integers(2, 200)
query_counts = st.integers(2, 10**5)
estimates = st.floats(-0.5, 0.5)


@given(mean_squares, seed_counts, query_counts, st.integers(0, 100), st.integers(0, 10**6))
def test_more_seeds_or_queries_never_raise_the_standard_error(
    squares: MeanSquares, seeds: int, queries: int, more_seeds: int, more_queries: int
) -> None:
    error, _ = precision(squares, seeds, queries)
    larger, freedom = precision(squares, seeds + more_seeds, queries + more_queries)
    assert larger <= error * (1 + 1e-9)
    assert freedom >= min(seeds + more_seeds, queries + more_queries) - 1


@given(mean_squares, seed_counts, query_counts, st.floats(1.0, 100.0))
def test_the_error_and_the_interval_have_the_unit_of_the_estimate(
    squares: MeanSquares, seeds: int, queries: int, scale: float
) -> None:
    factor = scale**2
    scaled = replace(
        squares, seed=factor * squares.seed, query=factor * squares.query, residual=factor * squares.residual
    )
    assert half_width(scaled, seeds, queries) == pytest.approx(scale * half_width(squares, seeds, queries))
    aim = Aim()
    near, far = (smallest_distance(each, seeds, queries, aim) for each in (squares, scaled))
    assert far == pytest.approx(scale * near)


@given(mean_squares, estimates, seed_counts, query_counts, st.integers(0, 500), st.integers(0, 10**6))
def test_more_seeds_or_queries_never_unsettle(
    squares: MeanSquares, estimate: float, seeds: int, queries: int, more_seeds: int, more_queries: int
) -> None:
    if settles(squares, estimate, seeds, queries, Aim()):
        assert settles(squares, estimate, seeds + more_seeds, queries + more_queries, Aim())


@settings(max_examples=25)
@given(mean_squares, estimates, st.floats(0.5, 0.98), st.floats(0.5, 0.98), st.floats(0.0, 0.01))
def test_asking_for_more_never_needs_less(
    squares: MeanSquares, estimate: float, confidence: float, power: float, more: float
) -> None:
    less = plan(squares, estimate, Aim(confidence=confidence, power=power))
    for aim in (Aim(confidence=confidence + more, power=power), Aim(confidence=confidence, power=power + more)):
        asked = plan(squares, estimate, aim)
        assert (asked.queries or MANY_MORE) >= (less.queries or MANY_MORE)
        assert (asked.seeds or MANY_MORE) >= (less.seeds or MANY_MORE)
        assert asked.decides >= less.decides


@settings(max_examples=25)
@given(mean_squares, estimates)
def test_the_grid_needs_no_more_of_either_than_either_alone(squares: MeanSquares, estimate: float) -> None:
    found = plan(squares, estimate)
    cells = [s * n for s, n in ((squares.n_seeds, found.queries), (found.seeds, squares.n_queries)) if s and n]
    if cells:
        assert found.grid is not None
        assert squares.n_seeds <= found.grid[0]
        assert squares.n_queries <= found.grid[1]
        assert found.grid[0] * found.grid[1] <= min(cells)


def test_more_queries_can_widen_the_interval_when_seeds_are_few() -> None:
    # Why a plan looks at the limits too: t with 2 degrees of freedom is 4.30, and with 5 it is 2.57.
    squares = MeanSquares(seed=0.05, query=0.2, residual=0.02, n_seeds=3, n_queries=300)
    widths = half_width(squares, 3, [300, 3_000, math.inf])
    assert widths[1] < widths[0]
    assert widths[1] < widths[2]
    aim = Aim(cutoffs=(0.02,), confidence=0.975, power=0.5)
    estimate = 0.02 + 1.01 * float(widths[1])
    assert not settles(squares, estimate, 3, 3_000, aim)
    assert settles(squares, 0.02 + 1.01 * float(widths[2]), 3, 3_000, aim)


def test_never_where_the_other_factor_alone_leaves_too_much() -> None:
    seeds_vary = MeanSquares(seed=1.0, query=0.02, residual=0.02, n_seeds=3, n_queries=1_000)
    found = plan(seeds_vary, 0.03)
    assert found.queries is None
    assert found.decides_with_any_queries > 0.01
    assert found.seeds is not None
    queries_vary = MeanSquares(seed=0.02, query=0.2, residual=0.02, n_seeds=3, n_queries=100)
    found = plan(queries_vary, 0.03)
    assert found.seeds is None
    assert found.decides_with_any_seeds > 0.01
    assert found.queries is not None


@pytest.mark.parametrize("cutoff", [0.01, 0.02])
def test_on_a_cutoff_nothing_ever_settles(cutoff: float) -> None:
    found = plan(MeanSquares(seed=0.03, query=0.1, residual=0.02, n_seeds=3, n_queries=300), cutoff)
    assert (found.settled, found.seeds, found.queries, found.grid) == (False, None, None, None)


def test_what_is_settled_needs_nothing_more() -> None:
    squares = MeanSquares(seed=0.02, query=0.05, residual=0.02, n_seeds=3, n_queries=1_000)
    found = plan(squares, 0.10)
    assert (found.settled, found.seeds, found.queries, found.grid) == (True, 3, 1_000, (3, 1_000))


def test_arms_that_differ_by_a_factor_are_settled_wherever_they_stand() -> None:
    exact = MeanSquares(seed=0.0, query=0.0, residual=0.0, n_seeds=2, n_queries=5)
    found = plan(exact, 0.02)
    assert found.settled
    assert (found.decides, found.decides_with_any_queries) == (0.0, 0.0)
    error, freedom = precision(exact, 2, 5)
    assert (float(error), float(freedom)) == (0.0, math.inf)


def test_the_price_of_a_seed_moves_the_grid_towards_queries() -> None:
    squares = MeanSquares(seed=0.06, query=0.1, residual=0.05, n_seeds=3, n_queries=500)
    free = plan(squares, 0.028).grid
    dear = plan(squares, 0.028, seed_cost=100_000.0).grid
    assert free is not None
    assert dear is not None
    assert dear[0] < free[0]
    assert dear[1] > free[1]


def test_a_region_holds_its_lower_end() -> None:
    aim = Aim()
    assert aim.region(0.0099) == (-math.inf, 0.01)
    assert aim.region(0.01) == (0.01, 0.02)
    assert aim.region(0.02) == (0.02, math.inf)
    assert Aim(cutoffs=(-0.005,)).region(0.0) == (-0.005, math.inf)


def test_sizes_broadcast() -> None:
    squares = MeanSquares(seed=0.05, query=0.2, residual=0.02, n_seeds=3, n_queries=300)
    widths = half_width(squares, np.array([[3], [5]]), [100, 200, 400])
    assert widths.shape == (2, 3)
    assert widths[1, 2] == half_width(squares, 5, 400)
    assert settles(squares, 0.1, np.array([[3], [5]]), [100, 200, 400], Aim()).shape == (2, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cutoffs": ()}, "one or more"),
        ({"cutoffs": (0.02, 0.01)}, "ascending"),
        ({"confidence": 1.0}, "confidence 1.0"),
        ({"power": 0.2}, "power 0.2"),
    ],
)
def test_refuses_what_no_gate_can_ask(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Aim(**wrong)


@pytest.mark.parametrize("costs", [(-1.0, 1.0), (0.0, 0.0)])
def test_refuses_costs_that_leave_the_cheapest_open(costs: tuple[float, float]) -> None:
    squares = MeanSquares(seed=0.05, query=0.2, residual=0.02, n_seeds=3, n_queries=300)
    with pytest.raises(UsageError, match="costs"):
        plan(squares, 0.1, None, *costs)


def test_two_one_sided_tests_ask_for_less_than_both_sides_at_once() -> None:
    squares = MeanSquares(seed=0.03, query=0.1, residual=0.02, n_seeds=3, n_queries=300)
    equivalence = plan(squares, 0.0, Aim(cutoffs=(-0.01, 0.01), one_sided=True))
    between = plan(squares, 0.0, Aim(cutoffs=(-0.01, 0.01)))
    assert equivalence.grid is not None
    assert between.grid is not None
    assert equivalence.grid[0] * equivalence.grid[1] < between.grid[0] * between.grid[1]


class TestSentences:
    def test_never_is_said_in_words(self) -> None:
        found = plan(MeanSquares(seed=1.0, query=0.02, residual=0.02, n_seeds=3, n_queries=1_000), 0.03)
        said = settle_sentence(found)
        assert f"about {found.seeds:,} seeds with these 1,000 queries" in said
        assert "never by queries alone" in said

    def test_on_a_cutoff_the_reason_is_given(self) -> None:
        found = plan(MeanSquares(seed=0.03, query=0.1, residual=0.02, n_seeds=3, n_queries=300), 0.02)
        assert "too near a cutoff" in settle_sentence(found)

    def test_what_is_settled_asks_for_nothing(self) -> None:
        found = plan(MeanSquares(seed=0.02, query=0.05, residual=0.02, n_seeds=3, n_queries=1_000), 0.1)
        assert settle_sentence(found) == "these 3 seeds x 1,000 queries settle it"

    def test_the_fast_tier_and_both_limits_are_named(self) -> None:
        found = plan(MeanSquares(seed=0.05, query=0.2, residual=0.02, n_seeds=3, n_queries=300), 0.03)
        said = decides_sentence(found)
        assert f"only what lies {100 * found.decides:.2f} points or more from a cutoff" in said
        assert f"the fast tier's 1,271 queries {100 * found.decides_in_fast_tier:.2f}" in said

    def test_a_variance_estimated_as_none_gives_no_limit_rather_than_zero(self) -> None:
        found = plan(MeanSquares(seed=0.01, query=0.2, residual=0.02, n_seeds=3, n_queries=300), 0.03)
        assert "with any number of queries no limit seen" in decides_sentence(found)
