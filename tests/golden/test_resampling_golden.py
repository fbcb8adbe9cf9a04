"""The checks beside the model, bootstrap and sign flips, and Holm's correction: by hand, a plain loop, or SciPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.resampling import bootstrap_means, sign_flip_p


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


def test_sign_flips_hold_their_level() -> None:
    rng = np.random.default_rng(11)
    studies, comparisons, false_p = 300, 4, 0
    for study in range(studies):
        values = rng.normal(size=(50, comparisons)) + rng.normal(size=(50, 1))
        false_p += int((sign_flip_p(values, 199, seed=study) <= 0.05).sum())
    assert 0.03 <= false_p / (studies * comparisons) <= 0.07


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
