"""Paired tests, worked by hand, by a plain loop, or by SciPy on the same data."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from support.results import make_result

from unimoe.analysis.compare import Results, compute_significance
from unimoe.analysis.corrections import benjamini_hochberg
from unimoe.analysis.resampling import bootstrap_means, bootstrap_t, max_t, sign_flip_p

Array = NDArray[np.float64]


def some_arms(queries: int = 60, arms: int = 4) -> tuple[Array, Array, Results]:
    """Scores of zero-shot and of single-seed arms, ``(queries,)`` and ``(arms, queries)``, and their results."""
    rng = np.random.default_rng(7)
    baseline = rng.uniform(0.2, 0.8, queries)
    systems = baseline + rng.normal(0.0, 0.1, (arms, queries)) + 0.015 * np.arange(arms)[:, None]
    items = [make_result("zero_shot", None, baseline.tolist())]
    items += [make_result(f"rank_only_r{i}", 0, scores.tolist()) for i, scores in enumerate(systems)]
    return baseline, systems, Results(Path("outputs"), items)


def test_p_t_is_scipys_paired_t_test() -> None:
    baseline, systems, results = some_arms()
    found = compute_significance(results, iterations=50)
    peers = [scipy.stats.ttest_rel(scores, baseline).pvalue for scores in systems]
    assert [c.p_t for c in found] == pytest.approx(peers, rel=1e-9)


def test_percentile_interval_is_scipys_within_resampling_error() -> None:
    baseline, systems, results = some_arms()
    for c, scores in zip(compute_significance(results), systems, strict=True):
        peer = scipy.stats.bootstrap(
            (scores, baseline),
            lambda a, b, axis: (a - b).mean(axis=axis),
            paired=True,
            method="percentile",
            n_resamples=10_000,
            rng=np.random.default_rng(1),
        ).confidence_interval
        error = (scores - baseline).std() / math.sqrt(len(baseline))
        assert [c.low, c.high] == pytest.approx([peer.low, peer.high], abs=0.1 * error)


def test_p_is_the_share_of_all_sign_flips_as_extreme() -> None:
    baseline, systems, results = some_arms(queries=9, arms=3)
    signs = np.array(list(itertools.product((1, -1), repeat=9)))
    for c, scores in zip(compute_significance(results, iterations=40_000), systems, strict=True):
        sums = np.abs(signs @ (scores - baseline))
        exact = (sums >= sums[0] - 1e-12).mean()
        assert c.p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 40_000) + 1e-4)


def test_p_bh_and_p_holm_correct_the_family_over_datasets() -> None:
    rng = np.random.default_rng(2)
    items = []
    for dataset in ("a", "b", "c"):
        base = rng.uniform(size=20)
        items.append(make_result("zero_shot", None, base.tolist(), dataset=dataset))
        for arm in ("rank_only_r8", "rank_only_r16"):
            scores = base + rng.normal(0.06, 0.1, 20)
            items.append(make_result(arm, 0, scores.tolist(), dataset=dataset))
    found = compute_significance(Results(Path("outputs"), items), iterations=999)
    peers = scipy.stats.false_discovery_control([c.p for c in found], method="bh")
    assert [c.p_bh for c in found] == pytest.approx(peers.tolist())
    smallest = min(found, key=lambda c: c.p)
    assert smallest.p_holm == pytest.approx(6 * smallest.p)


def test_benjamini_hochberg_worked_by_hand() -> None:
    # In order .005, .03, .04, .5, times 4/1, 4/2, 4/3, 4/4: .02, .06, .0533, .5; the second takes the third's.
    assert benjamini_hochberg([0.04, 0.005, 0.5, 0.03]) == pytest.approx([0.16 / 3, 0.02, 0.5, 0.16 / 3])
    assert benjamini_hochberg([]) == []


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


def test_bootstrap_t_and_max_t_agree_with_a_plain_loop() -> None:
    values = np.random.default_rng(5).exponential(size=(30, 3)) - 0.8
    n, iterations = len(values), 4_000
    errors = values.std(axis=0, ddof=1) / math.sqrt(n)
    observed = values.mean(axis=0) / errors
    rng = np.random.default_rng(6)
    largest = []
    for _ in range(iterations):
        drawn = values[rng.integers(0, n, n)]
        t = (drawn.mean(axis=0) - values.mean(axis=0)) / (drawn.std(axis=0, ddof=1) / math.sqrt(n))
        largest.append(np.abs(t).max())
    reach, p = max_t(observed, bootstrap_t(values, iterations, seed=0)[1], alpha=0.1)
    assert reach == pytest.approx(np.quantile(largest, 0.9), rel=0.06)
    for i in range(3):
        assert p[i] == pytest.approx(np.mean(np.array(largest) >= abs(observed[i])), abs=0.03)


def test_max_t_worked_by_hand() -> None:
    # The largest |t| of the four resamples: 1, 2, 3, 4.
    resampled = np.array([[1.0, 0.5], [-2.0, 1.0], [0.0, 3.0], [4.0, -4.0]])
    reach, p = max_t(np.array([2.5, -9.0]), resampled, alpha=0.25)
    assert reach == 4.0  # the smallest that leaves at most a quarter of resamples beyond, rounded outwards
    assert p.tolist() == [3 / 5, 1 / 5]


def test_a_simultaneous_interval_leaves_out_zero_where_its_p_lies_below_alpha() -> None:
    for c in compute_significance(some_arms()[2], alpha=0.05):
        assert (c.p_max_t <= 0.05) == (c.simultaneous_low > 0.0 or c.simultaneous_high < 0.0)


def test_tests_hold_their_level_and_simultaneous_intervals_theirs() -> None:
    rng = np.random.default_rng(11)
    studies, n, comparisons, iterations = 300, 50, 4, 199
    false_p, families, covered = 0, 0, 0
    for study in range(studies):
        shared = rng.normal(size=(n, 1))
        values = rng.normal(size=(n, comparisons)) + shared
        false_p += int((sign_flip_p(values, iterations, seed=study) <= 0.05).sum())
        t = values.mean(axis=0) / (values.std(axis=0, ddof=1) / math.sqrt(n))
        reach, p = max_t(t, bootstrap_t(values, iterations, seed=study)[1], alpha=0.05)
        families += int((p <= 0.05).any())
        covered += int(np.abs(t).max() <= reach)
    assert 0.03 <= false_p / (studies * comparisons) <= 0.07
    assert 0.02 <= families / studies <= 0.08
    assert 0.92 <= covered / studies <= 0.98
