"""Estimates of too little data, and the power of larger ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.results import simulate
from support.variances import known

from unimoe.analysis.gates.wording import settle_sentence
from unimoe.analysis.statistics.estimates import Estimate, Linear, LossRatios, estimate
from unimoe.analysis.statistics.power import Aim, at_size, half_width, plan, smallest_distance
from unimoe.analysis.statistics.variance import Estimand, Terms, groups_of, moments

Array = NDArray[np.float64]
TIR = LossRatios(np.ones((1, 1)))


def tir(specialist: Array, joint: Array, estimand: Estimand = "seeds_and_queries", *, paired: bool = False) -> Estimate:
    groups = groups_of((len(specialist), len(joint)), paired=paired)
    return estimate(moments([[specialist, joint]], groups), TIR, estimand)


def refused(found: Estimate) -> str:
    """Why there is no interval; then there is no p and no confidence either."""
    assert (found.interval, found.p) == (None, None)
    with pytest.raises(ValueError, match="without an interval"):
        found.confidence_below(0.0)
    return found.unfit


class TestTooLittle:
    def test_one_seed_says_nothing_of_other_seeds(self) -> None:
        scores = np.random.default_rng(0).uniform(size=(2, 1, 20))
        assert "one run of each arm" in refused(tir(scores[0], scores[1], "seeds"))

    def test_a_denominator_near_zero_is_refused_by_its_mean_over_standard_error(self) -> None:
        specialist = np.zeros((3, 300))
        specialist[:, :2] = [[0.5, 0.4], [0.4, 0.5], [0.6, 0.3]]
        found = tir(specialist, specialist[:, ::-1])
        assert "mean of 0.0030 is only" in refused(found)
        assert "standard errors above 0" in found.unfit

    def test_equal_arms_near_zero_never_pass(self) -> None:
        """A specialist's mean of .003, a true TIR of 0: an interval of first order says PASS in one of five."""
        rng, settled = np.random.default_rng(1), 0
        for _ in range(200):
            hits = rng.random((2, 3, 300)) < 0.006
            specialist, joint = np.where(hits, 0.5, 0.0)
            found = tir(specialist, joint)
            settled += found.interval is not None and found.confidence_below(0.02) <= 0.1
        assert settled <= 200 * 0.05

    def test_a_denominator_of_several_must_be_clear_of_zero_each(self) -> None:
        rng = np.random.default_rng(2)
        good = rng.uniform(0.4, 0.6, (2, 3, 50))
        poor = np.where(rng.random((2, 3, 50)) < 0.01, 0.5, 0.0)
        poor[:, :, 0] = 0.5
        found = moments([list(good), list(poor)], groups_of((3, 3), paired=False))
        assert "standard errors above 0" in refused(estimate(found, LossRatios(np.eye(2))))


class TestEstimates:
    def test_p_is_never_zero(self) -> None:
        scores = np.random.default_rng(0).uniform(0.0, 0.001, (2, 1, 5_000))
        found = estimate(moments([[scores[0] + 0.9, scores[1]]]), Linear(np.array([[1.0, -1.0]])), "queries")
        assert found.p is not None
        assert 0.0 < found.p < 1e-300

    def test_plain_data_hold_no_infinity(self) -> None:
        plain = tir(*simulate(3, 30, 0.05, rng=np.random.default_rng(3))).as_json()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain["level"] == 0.95
        assert plain["low"] < plain["value"] < plain["high"]
        for unfit in (tir(np.zeros((2, 4)), np.ones((2, 4))), tir(np.ones((2, 4)), np.ones((2, 4)))):
            plain = json.loads(json.dumps(unfit.as_json(), allow_nan=False))
            assert plain["low"] is plain["high"] is plain["standard_error"] is None
            assert plain["unfit"]


RULE = Aim(cutoffs=(0.01, 0.02), confidence=0.90)
components = st.floats(1e-6, 10.0)
paired = st.builds(known, components, components, components, st.integers(2, 10), st.integers(2, 2_000))
query_counts = st.integers(2, 10**5)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    """Of two arms whose seeds pair, or of two whose runs vary apart and differ in number."""
    first = draw(paired)
    if draw(st.booleans()):
        return first
    second = known(draw(components), 0.0, draw(components), draw(st.integers(2, 10)), int(first.queries[0]))
    return Terms(
        query=first.query + second.query,
        run=np.concatenate([first.run, second.run]),
        residual=np.concatenate([first.residual, second.residual]),
        queries=first.queries,
        runs=first.runs + second.runs,
    )


@given(terms(), st.integers(2, 200), query_counts, st.integers(0, 100), st.integers(0, 10**6))
def test_more_seeds_or_queries_never_raise_the_standard_error(
    found: Terms, seeds: int, queries: int, more_seeds: int, more_queries: int
) -> None:
    fewer, larger = at_size(found, seeds, queries), at_size(found, seeds + more_seeds, queries + more_queries)
    assert larger.error <= fewer.error * (1 + 1e-9)
    assert larger.freedom >= min(*larger.runs, *larger.queries) - 1 - 1e-9


@given(terms(), st.integers(2, 200), query_counts, st.floats(1.0, 100.0))
def test_the_error_and_the_interval_have_the_unit_of_the_estimate(
    found: Terms, seeds: int, queries: int, scale: float
) -> None:
    factor = scale**2
    scaled = Terms(factor * found.query, factor * found.run, factor * found.residual, found.queries, found.runs)
    assert half_width(scaled, seeds, queries) == pytest.approx(scale * half_width(found, seeds, queries))
    near, far = (smallest_distance(each, seeds, queries, RULE) for each in (found, scaled))
    assert far == pytest.approx(scale * near)


def test_on_a_cutoff_nothing_settles_it_and_without_variance_everything_does() -> None:
    found = plan(known(seed=0.00003, query=0.03, residual=0.02, seeds=3, queries=300), 0.02, RULE)
    assert "too near a cutoff" in settle_sentence(found)
    nothing = plan(Terms(np.array([1e-21]), np.zeros(0), np.zeros((0, 1)), (50,), ()), 0.03, RULE)
    assert (nothing.settled, nothing.decides_with_any_queries) == (True, 0.0)
