"""Exact numbers: worked by hand, or by SciPy on the same data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from unimoe.analysis.corrections import holm
from unimoe.analysis.crossed import crossed_interval, linearised_tir, seeds_mean
from unimoe.analysis.resampling import bootstrap_means, sign_flip_p


def test_crossed_interval_worked_by_hand() -> None:
    # specialist all 1, joint [[.9, .8], [.7, .4]]: T = .3 and r = .7 - joint = [[-.2, -.1], [0, .3]].
    # Row means -.15, .15; column means -.1, .1; residuals +-.05:
    # MS_seed = 2 * .045 = .09, MS_query = 2 * .02 = .04, MS_residual = 4 * .0025 = .01; total .12.
    found = crossed_interval(np.ones((2, 2)), np.array([[0.9, 0.8], [0.7, 0.4]]))
    assert found is not None
    freedom = 0.12**2 / (0.09**2 + 0.04**2 + 0.01**2)
    assert found.estimate == pytest.approx(0.3)
    assert found.standard_error == pytest.approx(math.sqrt(0.12 / 4))
    assert found.degrees_of_freedom == pytest.approx(freedom)
    reach = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(0.03)
    assert [found.low, found.high] == pytest.approx([0.3 - reach, 0.3 + reach])
    assert found.seed_share == pytest.approx(0.08 / 0.12)
    assert found.query_share == pytest.approx(0.03 / 0.12)
    passing = 1 - scipy.stats.t.cdf((0.02 - 0.3) / math.sqrt(0.03), freedom)
    assert found.confidence["PASS"] == pytest.approx(passing)


def test_interval_with_fixed_queries_is_students() -> None:
    per_seed = np.array([0.031, 0.012, 0.025])
    found = seeds_mean(per_seed)
    assert found is not None
    peer = scipy.stats.ttest_1samp(per_seed, 0.0).confidence_interval(0.95)
    assert [found.low, found.high] == pytest.approx([peer.low, peer.high])
    assert found.confidence_below(0.01) == pytest.approx(scipy.stats.ttest_1samp(per_seed, 0.01).pvalue / 2)
    assert (found.seed_share, found.query_share) == (1.0, 0.0)


def test_linearised_tir_worked_by_hand() -> None:
    # Means .5 and .4: T = .2, and T + (.8 * specialist - joint) / .5.
    found = linearised_tir(np.array([[0.4, 0.6]]), np.array([[0.3, 0.5]]))
    assert found == pytest.approx(np.array([[0.2 + 0.02 / 0.5, 0.2 - 0.02 / 0.5]]))


def test_mean_squares_are_those_of_a_two_way_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    joint = rng.uniform(size=(4, 9)) + rng.uniform(size=9) + rng.uniform(size=(4, 1))
    found = crossed_interval(np.ones((4, 9)), joint)
    assert found is not None
    rows, columns, grand = joint.mean(1, keepdims=True), joint.mean(0, keepdims=True), joint.mean()
    ms_seed = 9 * ((rows - grand) ** 2).sum() / 3
    ms_query = 4 * ((columns - grand) ** 2).sum() / 8
    ms_residual = ((joint - rows - columns + grand) ** 2).sum() / 24
    assert found.standard_error**2 == pytest.approx((ms_seed + ms_query - ms_residual) / 36)


def test_a_variance_is_never_below_its_larger_part() -> None:
    # r = [[.1, -.1], [-.1, .1]]: all residual, so MS_seed + MS_query - MS_residual is negative.
    found = crossed_interval(np.ones((2, 2)), np.array([[0.6, 0.8], [0.8, 0.6001]]))
    assert found is not None
    assert found.standard_error > 0.0


@pytest.mark.parametrize("n", [50, 200])
def test_bootstrap_interval_agrees_with_scipy(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.02, 0.2, (n, 3))
    low, high = np.quantile(bootstrap_means(differences, 10_000, seed=0), [0.025, 0.975], axis=0)
    for i in range(3):
        peer = scipy.stats.bootstrap(
            (differences[:, i],), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
        ).confidence_interval
        tolerance = 0.1 * differences[:, i].std() / math.sqrt(n)
        assert low[i] == pytest.approx(peer.low, abs=tolerance)
        assert high[i] == pytest.approx(peer.high, abs=tolerance)


def test_resamples_are_means_of_drawn_rows() -> None:
    # Three rows can only be resampled to ten multisets.
    values = np.array([[0.0], [1.0], [10.0]])
    possible = {round(sum(rows) / 3, 6) for rows in itertools.product((0.0, 1.0, 10.0), repeat=3)}
    drawn = {round(float(mean), 6) for mean in bootstrap_means(values, 2_000, seed=0)[:, 0]}
    assert drawn == possible


def test_sign_flip_p_agrees_with_every_permutation() -> None:
    differences = np.random.default_rng(3).normal(0.1, 0.2, (10, 2))
    exact = [
        scipy.stats.permutation_test(
            (column,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        ).pvalue
        for column in differences.T
    ]
    assert sign_flip_p(differences, 20_000, seed=0) == pytest.approx(exact, abs=0.01)


def test_sign_flip_p_agrees_with_the_paired_t_test_where_it_should() -> None:
    differences = np.random.default_rng(4).normal(0.02, 0.2, (300, 1))
    peer = scipy.stats.ttest_1samp(differences[:, 0], 0.0).pvalue
    assert sign_flip_p(differences, 20_000, seed=0)[0] == pytest.approx(peer, abs=0.01)


def test_sign_flip_p_is_never_zero_and_is_one_where_nothing_differs() -> None:
    differences = np.column_stack([np.ones(60), np.zeros(60)])
    assert sign_flip_p(differences, 999, seed=0).tolist() == [1 / 1000, 1.0]


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
