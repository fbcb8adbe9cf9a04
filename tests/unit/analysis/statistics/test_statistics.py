"""The model of variance at its edges: what it refuses to decide, and what it says in words and JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from support.results import simulate

from unimoe.analysis.statistics.estimates import Estimate, Linear, LossRatios, estimate
from unimoe.analysis.statistics.variance import Estimand, groups_of, moments

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


@pytest.mark.parametrize(
    ("runs", "paired", "groups"),
    [
        ((3, 3), True, ((0, 1),)),
        ((3, 3), False, ((0,), (1,))),
        ((3, 1), False, ((0,),)),
        ((1, 1), True, ()),
        ((1, 4), False, ((1,),)),
    ],
)
def test_which_runs_vary_together(runs: tuple[int, int], paired: bool, groups: tuple[tuple[int, ...], ...]) -> None:
    assert groups_of(runs, paired=paired) == groups


class TestTooLittle:
    def test_constant_scores_are_no_certainty(self) -> None:
        found = tir(np.full((2, 2), 0.5), np.full((2, 2), 0.4))
        assert found.value == pytest.approx(0.2)
        why = "nothing varies over seeds and queries, so a result cannot be distinguished from chance"
        assert refused(found) == why

    def test_one_seed_says_nothing_of_other_seeds(self) -> None:
        scores = np.random.default_rng(0).uniform(size=(2, 1, 20))
        assert "one run of each arm" in refused(tir(scores[0], scores[1], "seeds"))

    def test_a_specialist_at_zero_has_no_ratio(self) -> None:
        found = tir(np.zeros((2, 4)), np.full((2, 4), 0.1))
        assert math.isnan(found.value)
        assert refused(found) == "the specialist does not score above 0"

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
    def test_what_holds_for_less_is_narrower(self) -> None:
        specialist, joint = simulate(4, 50, 0.05, rng=np.random.default_rng(4), seed_sd=0.01)
        both, queries, seeds = (
            tir(specialist, joint, estimand).standard_error for estimand in ("seeds_and_queries", "queries", "seeds")
        )
        assert max(queries, seeds) <= both
        assert seeds < queries

    @pytest.mark.parametrize(("seed_sd", "query_sd", "larger"), [(0.05, 0.01, 0), (0.0005, 0.3, 1)])
    def test_tells_which_variance_dominates(self, seed_sd: float, query_sd: float, larger: int) -> None:
        arms = simulate(5, 200, 0.02, rng=np.random.default_rng(5), seed_sd=seed_sd, query_sd=query_sd)
        terms = tir(*arms).terms
        assert terms is not None
        assert terms.shares[larger] > 0.5

    def test_more_datasets_shrink_the_part_of_queries_and_not_that_of_shared_seeds(self) -> None:
        rng = np.random.default_rng(0)
        runs = [simulate(5, 60, 0.03, rng=rng, seed_sd=0.001, query_sd=0.15) for _ in range(6)]
        groups = groups_of((5, 5), paired=False)
        one = estimate(moments(runs[:1], groups), TIR)
        six = estimate(moments(runs, groups), LossRatios(np.eye(6)))
        assert six.standard_error / one.standard_error == pytest.approx(1 / math.sqrt(6), rel=0.3)
        shift = np.array([[-0.05], [0.0], [0.05], [0.1], [-0.1]])
        moved = estimate(moments([(s, j + shift) for s, j in runs], groups), LossRatios(np.eye(6)))
        assert moved.terms is not None
        assert moved.terms.shares[0] > 0.8

    def test_degrees_of_freedom_never_fall_below_the_poorest_part(self) -> None:
        specialist, joint = simulate(3, 500, 0.05, rng=np.random.default_rng(1), seed_sd=0.05)
        assert tir(specialist, joint[:2]).degrees_of_freedom >= 1.0
        assert tir(specialist, joint, paired=True).degrees_of_freedom >= 2.0

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


class TestOrder:
    def test_paired_results_do_and_pairing_pays_where_runs_go_together(self) -> None:
        rng = np.random.default_rng(8)
        specialist, joint = simulate(5, 300, 0.03, rng=rng, seed_sd=0.0, query_sd=0.01)
        common = rng.normal(0.0, 0.02, (5, 1))
        specialist, joint = specialist + common, joint + common
        paired, unpaired = tir(specialist, joint, paired=True), tir(specialist, joint)
        assert paired.standard_error < 0.5 * unpaired.standard_error
        assert tir(specialist, joint[::-1], paired=True).standard_error > 2 * paired.standard_error
