"""Exact numbers: worked by hand, by the crossed analysis on the same data, or by simulation with known components."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpy.typing import NDArray

from unimoe.analysis.crossed import MeanSquares, crossed_interval
from unimoe.analysis.power import Aim, half_width, plan, precision, settles, smallest_distance

Array = NDArray[np.float64]


def mean_squares(r: Array) -> MeanSquares:
    """By the textbook's sums of squares, so that nothing is shared with the code under test."""
    n_seeds, n_queries = r.shape
    grand, rows, columns = r.mean(), r.mean(1, keepdims=True), r.mean(0, keepdims=True)
    return MeanSquares(
        seed=n_queries * float(((rows - grand) ** 2).sum()) / (n_seeds - 1),
        query=n_seeds * float(((columns - grand) ** 2).sum()) / (n_queries - 1),
        residual=float(((r - rows - columns + grand) ** 2).sum()) / ((n_seeds - 1) * (n_queries - 1)),
        n_seeds=n_seeds,
        n_queries=n_queries,
    )


def known(seed: float, query: float, residual: float, n_seeds: int, n_queries: int) -> MeanSquares:
    """The expected mean squares of known variance components."""
    return MeanSquares(n_queries * seed + residual, n_seeds * query + residual, residual, n_seeds, n_queries)


def test_worked_by_hand() -> None:
    # MS .09, .04, .01 on 2 x 2: components (.09 - .01) / 2 = .04, (.04 - .01) / 2 = .015, residual .01.
    squares = MeanSquares(seed=0.09, query=0.04, residual=0.01, n_seeds=2, n_queries=2)
    assert (squares.seed_variance, squares.query_variance) == pytest.approx((0.04, 0.015))
    # On 4 x 10 the mean squares become .41, .07, .01: V = .47 / 40 = .04 / 4 + .015 / 10 + .01 / 40.
    error, freedom = precision(squares, 4, 10)
    assert error**2 == pytest.approx(0.01 + 0.0015 + 0.00025)
    assert freedom == pytest.approx(0.47**2 / (0.41**2 / 3 + 0.07**2 / 9 + 0.01**2 / 27))
    reach = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(0.01175)
    assert half_width(squares, 4, 10) == pytest.approx(reach)
    # Infinitely many queries leave the seeds: variance .04 / 4 on 3 degrees of freedom.
    assert list(precision(squares, 4, math.inf)) == pytest.approx([0.1, 3.0])
    assert list(precision(squares, math.inf, 10)) == pytest.approx([math.sqrt(0.0015), 9.0])


@pytest.mark.parametrize(
    ("std", "points", "queries"),
    [(0.25, 1, 3865), (0.44, 1, 11_970), (0.60, 1, 22_258), (0.25, 3, 430), (0.44, 3, 1_330), (0.60, 3, 2_474)],
)
def test_queries_needed_are_the_textbook_s(std: float, points: int, queries: int) -> None:
    # Only queries vary: ((z[.95] + z[.80]) * std / distance)**2, and up to two more because t takes the place of z.
    squares = known(seed=0.0, query=std**2, residual=0.0, n_seeds=2, n_queries=50)
    aim = Aim(cutoffs=(0.02,), confidence=0.95, power=0.80)
    found = plan(squares, 0.02 + points / 100, aim)
    textbook = math.ceil(((scipy.stats.norm.ppf(0.95) + scipy.stats.norm.ppf(0.80)) * std / (points / 100)) ** 2)
    assert textbook == queries
    assert found.queries is not None
    assert 0 <= found.queries - queries <= 3
    assert found.seeds is None  # the queries' own variance stays


def test_three_seeds_have_a_limit_that_no_number_of_queries_passes() -> None:
    # Each arm's mean varies by .003 with the seed around .44; TIR's linearised error adds both.
    seed_variance = 2 * (0.003 / 0.44) ** 2
    squares = known(seed=seed_variance, query=0.06, residual=0.02, n_seeds=3, n_queries=300)
    limit = scipy.stats.t.ppf(0.975, 2) * math.sqrt(seed_variance / 3)
    assert half_width(squares, 3, math.inf) == pytest.approx(limit)
    assert half_width(squares, 3, 10**8) == pytest.approx(limit, rel=1e-3)
    found = plan(squares, 0.03)
    assert found.decides_with_any_queries == pytest.approx(
        (scipy.stats.t.ppf(0.9, 2) + scipy.stats.t.ppf(0.8, 2)) * math.sqrt(seed_variance / 3)
    )
    assert found.queries is None
    assert found.grid is not None
    assert found.grid[0] > 3


@pytest.mark.parametrize("seed", range(30))
def test_at_the_observed_sizes_the_interval_is_the_crossed_one(seed: int) -> None:
    # Small samples, so that some mean squares of seeds or queries fall below the residual's by chance.
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(2, 6)), int(rng.integers(2, 30)))
    specialist = rng.uniform(0.3, 1.0, shape)
    joint = specialist + rng.normal(0, 0.1, shape) + rng.choice([0.0, 0.1]) * rng.normal(size=(shape[0], 1))
    found = crossed_interval(specialist, joint)
    assert found is not None
    squares = mean_squares(((1 - found.estimate) * specialist - joint) / specialist.mean())
    error, freedom = precision(squares, *shape)
    assert error == pytest.approx(found.standard_error)
    assert freedom == pytest.approx(found.degrees_of_freedom)
    assert half_width(squares, *shape) == pytest.approx((found.high - found.low) / 2)
    assert plan(squares, found.estimate).settled == (found.label != "INCONCLUSIVE")


def test_the_formula_predicts_what_a_simulation_at_another_size_finds() -> None:
    seed_std, query_std, residual_std = 0.02, 0.2, 0.1
    rng = np.random.default_rng(5)

    def simulate(n_seeds: int, n_queries: int) -> Array:
        seeds, queries = rng.normal(0, seed_std, (n_seeds, 1)), rng.normal(0, query_std, n_queries)
        return np.asarray(seeds + queries + rng.normal(0, residual_std, (n_seeds, n_queries)))

    drawn = [mean_squares(simulate(3, 60)) for _ in range(2_000)]
    seed, query, residual = np.mean([(each.seed, each.query, each.residual) for each in drawn], axis=0).tolist()
    averaged = MeanSquares(seed, query, residual, n_seeds=3, n_queries=60)
    predicted = float(precision(averaged, 6, 200)[0])
    assert predicted == pytest.approx(
        math.sqrt(seed_std**2 / 6 + query_std**2 / 200 + residual_std**2 / 1200), rel=0.03
    )
    assert np.std([simulate(6, 200).mean() for _ in range(4_000)]) == pytest.approx(predicted, rel=0.03)


@pytest.mark.parametrize(
    ("estimate", "power"), [(0.03, 0.8), (0.03, 0.5), (-0.005, 0.8), (0.015, 0.8), (0.013, 0.9), (0.035, 0.9)]
)
def test_data_of_the_planned_size_settles_the_gate_as_often_as_asked(estimate: float, power: float) -> None:
    squares = known(seed=0.0001, query=0.06, residual=0.02, n_seeds=5, n_queries=300)
    aim = Aim(power=power)
    planned = plan(squares, estimate, aim, seed_cost=2_000)
    grid = planned.grid
    assert grid is not None
    assert not planned.settled
    n_seeds, n_queries = grid
    rng = np.random.default_rng(8)
    repeats = 4_000
    expected = known(0.0001, 0.06, 0.02, *grid)
    degrees = (n_seeds - 1, n_queries - 1, (n_seeds - 1) * (n_queries - 1))
    parts = zip((expected.seed, expected.query, expected.residual), degrees, strict=True)
    # Under normal errors the mean squares are independent of the mean and of each other.
    drawn = zip(*(square * rng.chisquare(d, repeats) / d for square, d in parts), strict=True)
    estimates = rng.normal(estimate, float(precision(expected, *grid)[0]), repeats)
    low, high = aim.region(estimate)
    settled = 0
    for value, (seed, query, residual) in zip(estimates, drawn, strict=True):
        error, freedom = precision(MeanSquares(seed, query, residual, *grid), *grid)
        held = np.diff(scipy.special.stdtr(freedom, (np.array([low, high]) - value) / error))
        settled += bool(held[0] >= aim.confidence)
    assert settled / repeats == pytest.approx(power, abs=0.05)


def test_the_smallest_numbers_are_the_smallest() -> None:
    squares = known(seed=0.00001, query=0.002, residual=0.05, n_seeds=3, n_queries=600)
    aim = Aim()
    found = plan(squares, 0.027, aim, seed_cost=500.0)
    assert found.seeds is not None
    assert found.queries is not None
    assert found.grid is not None
    assert not found.settled
    assert settles(squares, 0.027, found.seeds, 600, aim)
    assert not settles(squares, 0.027, found.seeds - 1, 600, aim)
    assert settles(squares, 0.027, 3, found.queries, aim)
    assert not settles(squares, 0.027, 3, found.queries - 1, aim)
    seeds, queries = np.arange(3, 40)[:, None], np.arange(600, found.queries + 1)
    costs = np.where(settles(squares, 0.027, seeds, queries, aim), seeds * (500.0 + queries), np.inf)
    assert found.grid[0] * (500.0 + found.grid[1]) == costs.min()


def test_the_smallest_distance_is_settled_and_nothing_nearer() -> None:
    squares = known(seed=0.00002, query=0.02, residual=0.03, n_seeds=6, n_queries=400)
    aim = Aim(cutoffs=(0.02,))
    distance = float(smallest_distance(squares, 6, 400, aim))
    assert settles(squares, 0.02 + distance * 1.0001, 6, 400, aim)
    assert not settles(squares, 0.02 + distance * 0.9999, 6, 400, aim)
    assert not settles(squares, 0.02 - distance * 0.9999, 6, 400, aim)
