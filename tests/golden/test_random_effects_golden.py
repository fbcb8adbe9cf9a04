"""The mean over collections: the BCG trials as metafor and statsmodels have them, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from unimoe.analysis.statistics.random_effects import hartung_knapp, over_collections, variance_between
from unimoe.analysis.statistics.variance import groups_of, moments

# Thirteen trials of the BCG vaccine (Colditz et al. 1994): cases and others, vaccinated and not.
BCG = np.array(
    [
        *[(4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619), (33, 5036, 47, 5761)],
        *[(180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892), (29, 7470, 45, 7232)],
        *[(17, 1699, 65, 1600), (186, 50448, 141, 27197), (5, 2493, 3, 2338), (27, 16886, 29, 17825)],
    ],
    dtype=np.float64,
)
CASES, OTHERS, CONTROL_CASES, CONTROL_OTHERS = BCG.T
SIZES, CONTROL_SIZES = CASES + OTHERS, CONTROL_CASES + CONTROL_OTHERS
LOG_RISK_RATIOS = np.log((CASES / SIZES) / (CONTROL_CASES / CONTROL_SIZES))
VARIANCES = 1 / CASES - 1 / SIZES + 1 / CONTROL_CASES - 1 / CONTROL_SIZES


def test_the_bcg_trials_as_metafor_tests_itself() -> None:
    """By DerSimonian & Laird's variance of .3088 the mean is -.7141, with -1.0644 to -.3638 for its normal interval."""
    weights = 1.0 / (VARIANCES + 0.30876)
    mean, reach = float(weights @ LOG_RISK_RATIOS / weights.sum()), 1.959964 / math.sqrt(weights.sum())
    assert (mean, mean - reach, mean + reach) == pytest.approx((-0.7141, -1.0644, -0.3638), abs=5e-5)


def test_statsmodels_has_the_same_variances_and_interval() -> None:
    between = variance_between(LOG_RISK_RATIOS, VARIANCES)
    error = math.sqrt(hartung_knapp(LOG_RISK_RATIOS, VARIANCES + between))
    peer = combine_effects(LOG_RISK_RATIOS, VARIANCES, method_re="iterated", use_t=True, atol=1e-12)
    assert between == pytest.approx(peer.tau2, rel=1e-4)
    assert error == pytest.approx(math.sqrt(peer.var_hksj_re), rel=1e-4)
    interval = peer.mean_effect_re + np.array([-1.0, 1.0]) * stats.t.ppf(0.975, 12) * error
    assert interval == pytest.approx([-1.1091, -0.3208], abs=5e-5)


def test_of_datasets_with_the_same_variance_it_is_students_t() -> None:
    """By hand: weights are equal, so the interval is that of a t test over the datasets' differences."""
    shifts = np.array([0.02, -0.01, 0.05, 0.04, 0.0, 0.03])
    wave = np.array([0.1, -0.1, 0.1, -0.1])
    blocks = [[np.array([0.5 + shift + wave]), np.full((1, 4), 0.5)] for shift in shifts]
    found = over_collections(moments(blocks), np.eye(6), "queries")
    peer = stats.ttest_1samp(shifts, 0.0).confidence_interval(0.95)
    assert found is not None
    assert found.value == pytest.approx(shifts.mean())
    assert found.interval == pytest.approx((peer.low, peer.high))


def test_what_runs_move_on_all_datasets_is_added() -> None:
    """By hand: runs at -.1, 0 and .1 everywhere add their variance of .01 / 3, which no scatter of datasets shows."""
    shifts = np.array([0.02, -0.01, 0.05, 0.04, 0.0, 0.03])
    wave = np.array([0.1, -0.1, 0.1, -0.1])
    runs = np.array([[-0.1], [0.0], [0.1]])
    blocks = [[0.5 + shift + wave + runs, np.full((1, 4), 0.5)] for shift in shifts]
    found = over_collections(moments(blocks, groups_of((3, 1), paired=False)), np.eye(6), "seeds_and_queries")
    assert found is not None
    assert found.standard_error**2 == pytest.approx(shifts.var(ddof=1) / 6 + 0.01 / 3)


def test_scatter_that_queries_explain_leaves_no_variance_between() -> None:
    assert variance_between(np.array([0.1, 0.11, 0.09, 0.1, 0.1]), np.full(5, 0.01)) == 0.0
