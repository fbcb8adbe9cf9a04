"""The crossed bootstrap against what it must average to, and against the variance that verdicts use."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from support.results import simulate

from unimoe.analysis.across import linearised_across, ratio_weights, tir_across
from unimoe.analysis.crossed import crossed_interval, crossed_mean
from unimoe.analysis.crossed_bootstrap import crossed_bootstrap_across, crossed_bootstrap_tir, percentile_interval

Scores = NDArray[np.float64]


@pytest.fixture(scope="module")
def arms() -> tuple[Scores, Scores]:
    return simulate(8, 300, 0.03, rng=np.random.default_rng(1), seed_sd=0.01)


def test_two_seeds_and_two_queries_have_only_these_resamples() -> None:
    # Powers of two, so that every draw of seeds and queries has a ratio of its own.
    specialist, joint = np.array([[0.5, 1.0], [0.25, 0.125]]), np.array([[0.25, 0.5], [0.5, 1.0]])
    pairs = list(itertools.product((0, 1), repeat=2))
    possible = {
        round(float(1.0 - joint[np.ix_(b, q)].mean() / specialist[np.ix_(a, q)].mean()), 4)
        for a, b, q in itertools.product(pairs, repeat=3)
    }
    assert set(np.round(crossed_bootstrap_tir(specialist, joint, 4_000, seed=0), 4)) == possible


def test_its_spread_agrees_with_the_crossed_standard_error(arms: tuple[Scores, Scores]) -> None:
    # The rows of both arms are drawn apart, and S rows resampled spread sqrt(1 - 1/S) too little; the interaction
    # counts up to three times (Owen 2007). With eight seeds and this noise that leaves a few percent.
    found = crossed_interval(*arms)
    draws = crossed_bootstrap_tir(*arms, 10_000, seed=0)
    assert found is not None
    assert draws.mean() == pytest.approx(found.estimate, abs=0.1 * found.standard_error)
    assert draws.std() == pytest.approx(found.standard_error, rel=0.15)


def test_across_datasets_its_spread_agrees_too() -> None:
    rng = np.random.default_rng(2)
    scores = [simulate(8, n, 0.03, rng=rng, seed_sd=0.01) for n in (100, 400, 50)]
    for averaging in ("mean_of_tirs", "tir_of_means"):
        weights = ratio_weights(["a", "b", "c"], averaging)
        found = crossed_mean(linearised_across(scores, weights))
        draws = crossed_bootstrap_across(scores, weights, 10_000, seed=0)
        assert found is not None
        assert found.estimate == pytest.approx(tir_across(scores, weights))
        assert draws.mean() == pytest.approx(found.estimate, abs=0.1 * found.standard_error)
        assert draws.std() == pytest.approx(found.standard_error, rel=0.2)


def test_one_seed_leaves_the_bootstrap_over_queries(arms: tuple[Scores, Scores]) -> None:
    specialist, joint = (scores[:1] for scores in arms)
    draws = crossed_bootstrap_tir(specialist, joint, 10_000, seed=0)
    base = specialist.mean()
    errors = (joint.mean() / base * specialist - joint)[0] / base
    assert draws.std() == pytest.approx(errors.std() / np.sqrt(errors.size), rel=0.05)


def test_datasets_share_the_seeds_that_are_drawn() -> None:
    # Without noise between queries only seeds vary, and two datasets that agree seed by seed agree in every draw.
    specialist = np.array([[0.5], [0.6], [0.7]]).repeat(4, axis=1)
    joint = np.array([[0.4], [0.5], [0.45]]).repeat(4, axis=1)
    once = crossed_bootstrap_tir(specialist, joint, 500, seed=3)
    weights = ratio_weights(["a", "b"], "mean_of_tirs")
    twice = crossed_bootstrap_across([(specialist, joint)] * 2, weights, 500, seed=3)
    assert np.ptp(once) > 0.1
    assert twice == pytest.approx(once, abs=1e-6)


def test_the_same_seed_gives_the_same_bits(arms: tuple[Scores, Scores]) -> None:
    once, again, other = (crossed_bootstrap_tir(*arms, 200, seed) for seed in (5, 5, 6))
    assert once.tobytes() == again.tobytes()
    assert once.tobytes() != other.tobytes()


def test_a_specialist_that_may_score_nothing_has_no_lower_end() -> None:
    specialist, joint = np.array([[0.0, 0.0, 0.6]]), np.array([[0.1, 0.1, 0.1]])
    low, high = percentile_interval(crossed_bootstrap_tir(specialist, joint, 1_000, seed=0))
    assert low == -np.inf
    assert 0.5 < high < 1.0


def test_percentiles_are_those_of_the_draws() -> None:
    assert percentile_interval(np.arange(1001.0)) == (25.0, 975.0)
    assert percentile_interval(np.arange(1001.0), level=0.9) == (50.0, 950.0)
