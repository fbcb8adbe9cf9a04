"""Resampling and power against scipy and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpy.typing import NDArray
from support.variances import known

from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.power import Aim, at_size, half_width, plan, smallest_distance
from unimoe.analysis.statistics.resampling import bootstrap_means, sign_flip_p
from unimoe.analysis.statistics.variance import Terms


def test_bootstrap_interval_agrees_with_scipy() -> None:
    differences = np.random.default_rng(50).normal(0.02, 0.2, (50, 3))
    found = np.quantile(bootstrap_means(differences, 10_000, seed=0), [0.025, 0.975], axis=0)
    for column, ends in zip(differences.T, found.T, strict=True):
        peer = scipy.stats.bootstrap(
            (column,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
        ).confidence_interval
        assert ends == pytest.approx((peer.low, peer.high), abs=0.1 * column.std() / math.sqrt(50))


def test_resamples_have_the_moments_of_multinomial_draws() -> None:
    # With one column per row and a single 1 in each, means are counts over n: mean 1, variance 1 - 1/n,
    # covariance -1/n, and n in all.
    n, iterations = 40, 20_000
    counts = n * bootstrap_means(np.eye(n), iterations, seed=0)
    assert np.abs(counts - np.round(counts)).max() < 1e-4
    assert np.abs(counts.sum(axis=1) - n).max() < 1e-3
    assert counts.min() > -1e-4
    covariance = np.cov(counts.T)
    expected = np.eye(n) - 1.0 / n
    assert np.abs(covariance - expected).max() < 6 * math.sqrt(3 / iterations)
    observed = np.bincount(np.round(counts).astype(int).ravel(), minlength=8)[:8] / counts.size
    assert observed == pytest.approx(scipy.stats.binom.pmf(np.arange(8), n, 1 / n), abs=2e-3)


def test_sign_flip_p_agrees_with_every_permutation_and_is_never_zero() -> None:
    differences = np.random.default_rng(3).normal(0.1, 0.2, (10, 2))
    exact = [
        scipy.stats.permutation_test((column,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
        for column in differences.T
    ]
    assert sign_flip_p(differences, 20_000, seed=0) == pytest.approx(exact, abs=0.01)
    without_variance = np.column_stack([np.ones(60), np.zeros(60)])
    assert sign_flip_p(without_variance, 999, seed=0).tolist() == [1 / 1000, 1.0]


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


Array = NDArray[np.float64]

RULE = Aim(cutoffs=(0.01, 0.02), confidence=0.90)


def settles(terms: Terms, value: float, seeds: int, queries: int, aim: Aim) -> bool:
    """Whether data of a size and all larger data settle a region with one cutoff."""
    sizes: tuple[tuple[float, float], ...] = ((seeds, queries), (seeds, 1e15), (1e15, queries))
    return all(abs(value - aim.cutoffs[-1]) >= smallest_distance(terms, s, n, aim) for s, n in sizes)


def test_worked_by_hand() -> None:
    # Components .04, .015, .01 seen on 2 x 2; on 4 x 10: V = .04 / 4 + .015 / 10 + .01 / 40.
    expected = at_size(known(0.04, 0.015, 0.01, 2, 2), 4, 10)
    assert [*expected.query, *expected.run] == pytest.approx([0.0015 + 0.00025, 0.01 + 0.00025])
    assert expected.variance == pytest.approx(0.01 + 0.0015 + 0.00025)
    assert [*expected.queries, *expected.runs] == [10, 4]
    reach = scipy.stats.t.ppf(0.975, expected.freedom) * math.sqrt(0.01175)
    assert half_width(known(0.04, 0.015, 0.01, 2, 2), 4, 10) == pytest.approx(reach)


def test_unequal_numbers_of_seeds_by_hand() -> None:
    # Two groups, .04 with 2 runs and .09 with 5, no residual: four seeds leave the second as it is.
    terms = Terms(np.array([0.001]), np.array([0.02, 0.018]), np.zeros((2, 1)), (100,), (2, 5))
    expected = at_size(terms, 4, 200)
    assert expected.run == pytest.approx([0.01, 0.018])
    assert list(expected.runs) == [4, 5]
    assert expected.query == pytest.approx([0.0005])


@pytest.mark.parametrize(
    ("std", "points", "queries"),
    [(0.25, 1, 3865), (0.60, 1, 22_258), (0.25, 3, 430), (0.44, 3, 1_330)],
)
def test_queries_needed_are_the_textbook_s(std: float, points: int, queries: int) -> None:
    # Only queries vary: ((z[.95] + z[.80]) * std / distance)**2, and up to two more because t takes the place of z.
    terms = Terms(np.array([std**2 / 50]), np.zeros(0), np.zeros((0, 1)), (50,), ())
    found = plan(terms, 0.02 + points / 100, Aim(cutoffs=(0.02,), confidence=0.95, power=0.80))
    assert found.queries is not None
    assert 0 <= found.queries - queries <= 3
    assert found.seeds is None  # no arm has seeds


def test_three_seeds_have_a_limit_that_no_number_of_queries_passes() -> None:
    # Each arm's mean varies by .003 with the seed around .44; TIR's linearised error adds both.
    seed_variance = 2 * (0.003 / 0.44) ** 2
    terms = known(seed=seed_variance, query=0.06, residual=0.02, seeds=3, queries=300)
    limit = scipy.stats.t.ppf(0.975, 2) * math.sqrt(seed_variance / 3)
    assert half_width(terms, 3, 1e15) == pytest.approx(limit, rel=1e-4)
    found = plan(terms, 0.03, RULE)
    assert found.decides_with_any_queries == pytest.approx(
        (scipy.stats.t.ppf(0.9, 2) + scipy.stats.t.ppf(0.8, 2)) * math.sqrt(seed_variance / 3), rel=1e-4
    )
    assert found.queries is None
    assert found.grid is not None
    assert found.grid[0] > 3


@pytest.mark.parametrize(
    ("value", "power"), [(0.03, 0.8), (0.03, 0.5), (-0.005, 0.8), (0.015, 0.8), (0.013, 0.9), (0.035, 0.9)]
)
def test_data_of_the_planned_size_settles_the_gate_as_often_as_asked(value: float, power: float) -> None:
    aim = Aim(cutoffs=(0.01, 0.02), confidence=0.90, power=power)
    planned = plan(known(seed=0.0001, query=0.06, residual=0.02, seeds=5, queries=300), value, aim)
    assert planned.grid is not None
    assert not planned.settled
    seeds, queries = planned.grid
    expected = known(0.0001, 0.06, 0.02, seeds, queries)
    rng = np.random.default_rng(8)
    repeats, settled = 3_000, 0
    for _ in range(repeats):
        # Under normal errors the mean squares are independent of the mean and of each other.
        terms = Terms(
            query=expected.query * rng.chisquare(queries - 1) / (queries - 1),
            run=expected.run * rng.chisquare(seeds - 1) / (seeds - 1),
            residual=expected.residual * rng.chisquare((seeds - 1) * (queries - 1)) / ((seeds - 1) * (queries - 1)),
            queries=(queries,),
            runs=(seeds,),
        )
        low, high = aim.region(value)
        error, freedom = terms.error, terms.freedom
        ends = (np.array([low, high]) - rng.normal(value, expected.error)) / error
        settled += bool(np.diff(scipy.special.stdtr(freedom, ends))[0] >= aim.confidence)
    # between two cutoffs a plan guards both sides, though only the nearer one may matter
    assert power - 0.05 <= settled / repeats <= power + (0.07 if 0.01 < value < 0.02 else 0.05)


def test_the_smallest_numbers_are_the_smallest() -> None:
    terms = known(seed=0.00001, query=0.002, residual=0.05, seeds=3, queries=600)
    aim, value = Aim(cutoffs=(0.02,), confidence=0.90), 0.027
    found = plan(terms, value, aim)
    assert found.seeds is not None
    assert found.queries is not None
    assert found.grid is not None
    assert not found.settled
    assert settles(terms, value, found.seeds, 600, aim)
    assert not settles(terms, value, found.seeds - 1, 600, aim)
    assert settles(terms, value, 3, found.queries, aim)
    assert not settles(terms, value, 3, found.queries - 1, aim)
    seeds, queries = found.grid
    assert seeds * queries <= min(found.seeds * 600, 3 * found.queries)
    assert settles(terms, value, seeds, queries, aim)
    assert not settles(terms, value, seeds, queries - 1, aim)
