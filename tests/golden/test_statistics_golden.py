"""The model of variance, and the mean over collections: by hand, by textbook formulas, scipy, statsmodels, metafor."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import statsmodels.formula.api as smf
from numpy.typing import NDArray
from statsmodels.stats.anova import anova_lm
from support.results import simulate

from unimoe.analysis.comparisons import difference
from unimoe.analysis.statistics.estimates import Estimate, Linear, LossRatios, estimate, holm, over_collections
from unimoe.analysis.statistics.variance import Estimand, groups_of, moments

Array = NDArray[np.float64]

TIR = LossRatios(np.ones((1, 1)))
MINUS = Linear(np.array([[1.0, -1.0]]))


def tir(specialist: Array, joint: Array, *, paired: bool, estimand: Estimand = "seeds_and_queries") -> Estimate:
    groups = groups_of((len(specialist), len(joint)), paired=paired)
    return estimate(moments([[specialist, joint]], groups), TIR, estimand)


def log_unbiased(freedom: float) -> float:
    """By how much the geometric mean of a chi-squared variable falls short of its mean."""
    return math.exp(math.log(freedom / 2.0) - float(scipy.special.psi(freedom / 2.0)))


def mean_squares(r: Array) -> tuple[float, float, float]:
    """Of seeds, queries and residual, by the textbook's sums of squares."""
    n_seeds, n_queries = r.shape
    grand, rows, columns = r.mean(), r.mean(1, keepdims=True), r.mean(0, keepdims=True)
    return (
        n_queries * float(((rows - grand) ** 2).sum()) / (n_seeds - 1),
        n_seeds * float(((columns - grand) ** 2).sum()) / (n_queries - 1),
        float(((r - rows - columns + grand) ** 2).sum()) / ((n_seeds - 1) * (n_queries - 1)),
    )


class TestPooledRuns:
    """Arms of one recipe: one mean square of runs, with the degrees of freedom of all."""

    SYSTEMS = tuple(
        0.5 + np.random.default_rng(runs).normal(0, 0.02, (runs, 1)) + np.linspace(-1e-9, 1e-9, 50)
        for runs in (3, 4, 2)
    )

    def found(self, pool: tuple[Array, ...], estimand: Estimand = "seeds") -> Estimate:
        blocks = [list(self.SYSTEMS[:2])]
        return estimate(moments(blocks, groups_of((3, 4), paired=False), pool=pool), MINUS, estimand)

    def test_two_arms_have_the_t_test_of_equal_variances(self) -> None:
        found, means = self.found(()), [scores.mean(axis=1) for scores in self.SYSTEMS]
        peer = scipy.stats.ttest_ind(means[0], means[1], equal_var=True)
        assert found.degrees_of_freedom == pytest.approx(5)
        assert found.p == pytest.approx(float(peer.pvalue))
        assert found.interval == pytest.approx(tuple(peer.confidence_interval(0.95)))

    def test_a_third_system_adds_its_runs_to_the_mean_square(self) -> None:
        found, means = self.found((self.SYSTEMS[2].mean(axis=1)[:, None],)), [s.mean(axis=1) for s in self.SYSTEMS]
        frame = pd.DataFrame([(value, str(arm)) for arm, of in enumerate(means) for value in of], columns=["y", "arm"])
        fitted = smf.ols("y ~ 0 + arm", frame).fit()
        peer = fitted.t_test([1.0, -1.0, 0.0])
        assert found.degrees_of_freedom == pytest.approx(6)
        assert found.standard_error == pytest.approx(float(peer.sd.item()), rel=1e-6)
        assert found.p == pytest.approx(float(peer.pvalue), rel=1e-6)

    def test_runs_that_pair_are_not_pooled(self) -> None:
        blocks = [[self.SYSTEMS[0], self.SYSTEMS[1][:3]]]
        groups = groups_of((3, 3), paired=True)
        pooled, own = (estimate(moments(blocks, groups, pool=pool), MINUS) for pool in ((), None))
        assert pooled.interval == own.interval


class TestByHand:
    # first - second = r = [[.1, .2], [.3, .6]]; row means .15, .45; column means .2, .4; residuals +-.05:
    # MS_seed = 2 * .045 = .09, MS_query = 2 * .02 = .04, MS_residual = 4 * .0025 = .01.
    FIRST, SECOND = np.ones((2, 2)), np.array([[0.9, 0.8], [0.7, 0.4]])

    def test_paired_difference(self) -> None:
        found, _ = difference(self.FIRST, self.SECOND, paired=True)
        k = log_unbiased(1.0)
        # in parts of V: queries .01, runs .0225, residual .0025
        freedom = (0.01 + k * 0.0225 - 0.0025) ** 2 / (0.01**2 + (k * 0.0225) ** 2 + 0.0025**2)
        assert found.value == pytest.approx(0.3)
        assert found.standard_error**2 == pytest.approx((0.09 + 0.04 - 0.01) / 4)
        assert found.degrees_of_freedom == pytest.approx(freedom)
        reach = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(0.03)
        assert found.interval == pytest.approx((0.3 - reach, 0.3 + reach))
        assert found.p == pytest.approx(2 * scipy.stats.t.sf(0.3 / math.sqrt(0.03), freedom))
        assert found.terms is not None
        assert found.terms.shares == pytest.approx((0.08 / 0.12, 0.03 / 0.12))

    def test_unpaired_difference(self) -> None:
        # The first arm varies by nothing, so that all three parts are the second's: the same numbers.
        assert difference(self.FIRST, self.SECOND)[0].standard_error ** 2 == pytest.approx(0.03)
        # Three runs of the first arm, means .9, 1, 1.1 and no residual, add .01 / 3 and their own two degrees.
        first = np.array([[0.9], [1.0], [1.1]]).repeat(2, axis=1)
        found, _ = difference(first, self.SECOND)
        one, two = log_unbiased(1.0), log_unbiased(2.0)
        assert found.standard_error**2 == pytest.approx(0.03 + 0.01 / 3)
        total = 0.01 + two * 0.01 / 3 + one * 0.0225 - 0.0025
        parts = 0.01**2 + (two * 0.01 / 3) ** 2 / 2 + (one * 0.0225) ** 2 + 0.0025**2
        assert found.degrees_of_freedom == pytest.approx(total**2 / parts)

    def test_tir_and_its_delta_method(self) -> None:
        # Means .5 and .4: T = .2, and the gradient is (.4 / .25, -1 / .5).
        specialist, joint = np.array([[0.4, 0.6], [0.5, 0.5]]), np.array([[0.3, 0.5], [0.45, 0.35]])
        found = moments([[specialist, joint]], groups_of((2, 2), paired=True))
        assert TIR.value(found.means) == pytest.approx(0.2)
        assert TIR.gradient(found.means) == pytest.approx(np.array([[1.6, -2.0]]))
        ms_seed, ms_query, ms_residual = mean_squares((0.8 * specialist - joint) / 0.5)
        larger = max(ms_seed + ms_query - ms_residual, ms_seed, ms_query)
        assert found.terms(TIR.gradient(found.means)).variance == pytest.approx(larger / 4)

    def test_two_datasets_share_their_runs(self) -> None:
        # Runs move both datasets alike: the mean's variance over runs is that of one dataset, not half of it.
        shift = np.array([[0.0], [0.1], [0.2]])
        a, b = np.full((3, 4), 0.5) + shift, np.full((3, 9), 0.3) + shift
        fixed = [np.full((1, 4), 0.4), np.full((1, 9), 0.2)]
        found = moments([[a, fixed[0]], [b, fixed[1]]], groups_of((3, 1), paired=False))
        mean = Linear(np.array([[0.5, -0.5], [0.5, -0.5]]))
        assert found.terms(mean.weights).variance == pytest.approx(0.01 / 3)
        assert found.terms(mean.weights).freedom == pytest.approx(2.0)


class TestScipy:
    def test_runs_alone_unpaired_are_welchs_test(self) -> None:
        rng = np.random.default_rng(4)
        first, second = rng.uniform(0.3, 0.9, (5, 20)), rng.uniform(0.3, 0.9, (3, 20))
        found = estimate(moments([[first, second]], groups_of((5, 3), paired=False)), MINUS, "seeds")
        peer = scipy.stats.ttest_ind(first.mean(axis=1), second.mean(axis=1), equal_var=False)
        assert found.value / found.standard_error == pytest.approx(peer.statistic, rel=1e-9)
        of_first, of_second = first.mean(axis=1).var(ddof=1) / 5, second.mean(axis=1).var(ddof=1) / 3

        def satterthwaite(a: float, b: float) -> float:
            return (a + b) ** 2 / (a**2 / 4 + b**2 / 2)

        assert satterthwaite(of_first, of_second) == pytest.approx(peer.df)
        adjusted = satterthwaite(log_unbiased(4.0) * of_first, log_unbiased(2.0) * of_second)
        assert found.degrees_of_freedom == pytest.approx(max(2.0, adjusted))

    def test_a_mean_over_queries_is_students(self) -> None:
        scores = np.random.default_rng(5).uniform(size=(1, 30))
        found = estimate(moments([[scores]]), Linear(np.ones((1, 1))), "queries")
        interval = scipy.stats.ttest_1samp(scores[0], 0.0).confidence_interval(0.95)
        assert found.interval == pytest.approx((interval.low, interval.high))


class TestFormulas:
    @pytest.mark.parametrize(("runs", "other"), [(2, 3), (3, 3), (3, 10), (5, 2)])
    def test_unpaired_is_the_formula_of_five_terms(self, runs: int, other: int) -> None:
        rng = np.random.default_rng(10 * runs + other)
        a, b = simulate(runs, 50, 0.05, rng=rng)[0], simulate(other, 50, 0.05, rng=rng)[1]
        found = tir(a, b, paired=False)
        mean = a.mean()
        w, u = (1 - found.value) / mean, 1 / mean
        v_query = float((w * a.mean(axis=0) - u * b.mean(axis=0)).var(ddof=1)) / 50
        (ms_a, _, msr_a), (ms_b, _, msr_b) = mean_squares(w * a), mean_squares(u * b)
        variance = v_query + (ms_a - msr_a) / (50 * runs) + (ms_b - msr_b) / (50 * other)
        floor = max(v_query, ms_a / (50 * runs) + ms_b / (50 * other))
        assert found.standard_error**2 == pytest.approx(max(variance, floor), rel=1e-9)

    def test_the_gradient_is_the_derivative(self) -> None:
        means = np.array([[0.5, 0.45], [0.7, 0.6], [0.2, 0.25]])
        quantity = LossRatios(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
        steps = 1e-6 * np.eye(6).reshape(6, 3, 2)
        numeric = [(quantity.value(means + s) - quantity.value(means - s)) / 2e-6 for s in steps]
        assert quantity.gradient(means).ravel() == pytest.approx(numeric, abs=1e-6)


@pytest.mark.filterwarnings("ignore:The MLE may be on the boundary")
def test_statsmodels_finds_the_same_mean_squares_components_and_standard_error() -> None:
    """Components by restricted maximum likelihood, which on a balanced design solves the same equations."""
    rng, shape = np.random.default_rng(2), (5, 12)
    r = rng.normal(0.05, 0.1, shape) + rng.normal(0.0, 0.1, (5, 1)) + rng.normal(0.0, 0.2, 12)
    seeds, queries = np.indices(shape)
    frame = pd.DataFrame({"y": r.ravel(), "seed": seeds.ravel(), "query": queries.ravel(), "all": 1})
    found = moments([[r]], ((0,),)).terms(np.ones((1, 1)))
    squares = anova_lm(smf.ols("y ~ C(seed) + C(query)", frame).fit())["mean_sq"]
    assert 60 * found.run[0] == pytest.approx(squares["C(seed)"])
    assert 60 * found.query[0] == pytest.approx(squares["C(query)"])
    assert 60 * found.residual[0, 0] == pytest.approx(squares["Residual"])
    parts = {"seed": "0 + C(seed)", "query": "0 + C(query)"}
    peer = smf.mixedlm("y ~ 1", frame, groups="all", vc_formula=parts, re_formula="0").fit(reml=True)
    components = dict(zip(peer.model.exog_vc.names, peer.vcomp, strict=True))
    assert components["seed"] == pytest.approx(5 * (found.run[0] - found.residual[0, 0]), rel=1e-2)
    assert components["query"] == pytest.approx(12 * (found.query[0] - found.residual[0, 0]), rel=1e-2)
    assert peer.scale == pytest.approx(60 * found.residual[0, 0], rel=1e-2)
    assert float(peer.bse["Intercept"]) == pytest.approx(found.error, rel=1e-2)


class TestFieller:
    def test_with_fixed_degrees_of_freedom_it_solves_the_quadratic(self) -> None:
        # All ratios R with (mean(b) - R mean(a))**2 <= t**2 * (vbb - 2 R vab + R**2 vaa).
        rng = np.random.default_rng(8)
        specialist = rng.uniform(0.0, 1.0, (1, 40))
        joint = np.clip(specialist - 0.05 + rng.normal(0.0, 0.3, (1, 40)), 0.0, 1.0)
        (vaa, vab), (_, vbb) = np.cov(specialist[0], joint[0]) / 40
        a, b, t2 = specialist.mean(), joint.mean(), scipy.stats.t.ppf(0.975, 39) ** 2
        ends = np.sort(np.roots([a**2 - t2 * vaa, -2 * (a * b - t2 * vab), b**2 - t2 * vbb]))
        found = tir(specialist, joint, paired=False, estimand="queries")
        assert found.interval == pytest.approx((1 - ends[1], 1 - ends[0]), rel=1e-9)

    def test_with_seeds_too_its_ends_are_where_the_contrast_is_rejected(self) -> None:
        specialist, joint = simulate(3, 40, 0.05, rng=np.random.default_rng(1))
        joint = np.vstack([joint, joint[:1] + 0.02])
        found = tir(specialist, joint, paired=False)
        assert found.interval is not None
        for end, tail in zip(found.interval, (0.025, 0.975), strict=True):
            contrast = np.array([[1.0 - end, -1.0]])
            terms = moments([[specialist, joint]], groups_of((3, 4), paired=False)).terms(contrast)
            value = (1.0 - end) * specialist.mean() - joint.mean()
            assert scipy.stats.t.cdf(-value / terms.error, terms.freedom) == pytest.approx(tail, abs=1e-9)
            assert found.confidence_below(end) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize(("runs", "paired"), [((3, 3), True), ((3, 3), False), ((3, 5), False)])
@pytest.mark.parametrize("seed_sd", [0.003, 0.03])
def test_intervals_cover_the_truth_as_often_as_they_say(runs: tuple[int, int], paired: bool, seed_sd: float) -> None:
    rng = np.random.default_rng(11)
    repetitions, truth, covered = 400, 0.015, 0
    for _ in range(repetitions):
        specialist, joint = simulate(max(runs), 60, truth, rng=rng, seed_sd=seed_sd)
        found = tir(specialist[: runs[0]], joint[: runs[1]], paired=paired)
        covered += 0.025 <= found.confidence_below(truth) <= 0.975
    # three standard errors of 400 repetitions about 95 %, and what the benchmark allows
    assert 0.92 <= covered / repetitions <= 0.985


def test_few_tables_of_equal_systems_have_a_mark() -> None:
    """Satterthwaite's t marked a third of such tables: 84 rows ask for p of .0006, far out in its tail."""
    rng = np.random.default_rng(3)
    tables, marked, rows = 30, 0, 0
    for _ in range(tables):
        p_values = []
        for queries in (50, 300, 1_000):
            base, luck = rng.normal(0.6, 0.3, queries), rng.normal(0.0, 0.04, (8, 3, 1))
            systems = base + rng.normal(0.0, 0.15, (8, 1, queries)) + rng.normal(0.0, 0.15, (8, 3, queries)) + luck
            for first, second in combinations(systems, 2):
                p = difference(first, second, paired=True)[0].p
                assert p is not None
                p_values.append(p)
        marked += min(holm(p_values)) < 0.05
        rows += sum(p < 0.05 for p in p_values)
    assert marked <= 4
    assert 0.03 <= rows / (84 * tables) <= 0.07, "single rows keep their level"


@pytest.mark.parametrize("paired", [True, False])
def test_p_is_five_percent_where_the_interval_ends(paired: bool) -> None:
    system, baseline = simulate(3, 60, 0.0, rng=np.random.default_rng(9), seed_sd=0.02)
    ends = difference(system, baseline, paired=paired)[0].interval
    assert ends is not None
    for shift in (end + step for end in ends for step in (-1e-7, 1e-7)):
        assert difference(system - shift, baseline, paired=paired)[0].p == pytest.approx(0.05, rel=1e-3)
    far = [difference(system + shift, baseline, paired=paired)[0].p or 0.0 for shift in (0.1, 0.2, 0.4)]
    assert 0.05 > far[0] > far[1] > far[2] > 0.0


def refused(found: Estimate) -> str:
    """Why there is no interval; then there is no p and no confidence either."""
    assert (found.interval, found.p) == (None, None)
    with pytest.raises(ValueError, match="without an interval"):
        found.confidence_below(0.0)
    return found.unfit


class TestTooLittle:
    def test_one_seed_says_nothing_of_other_seeds(self) -> None:
        scores = np.random.default_rng(0).uniform(size=(2, 1, 20))
        assert "one run of each arm" in refused(tir(scores[0], scores[1], paired=False, estimand="seeds"))

    def test_a_denominator_near_zero_is_refused_by_its_mean_over_standard_error(self) -> None:
        specialist = np.zeros((3, 300))
        specialist[:, :2] = [[0.5, 0.4], [0.4, 0.5], [0.6, 0.3]]
        found = tir(specialist, specialist[:, ::-1], paired=False)
        assert "mean of 0.0030 is only" in refused(found)
        assert "standard errors above 0" in found.unfit

    def test_equal_arms_near_zero_never_pass(self) -> None:
        """A specialist's mean of .003, a true TIR of 0: an interval of first order says PASS in one of five."""
        rng, settled = np.random.default_rng(1), 0
        for _ in range(200):
            hits = rng.random((2, 3, 300)) < 0.006
            specialist, joint = np.where(hits, 0.5, 0.0)
            found = tir(specialist, joint, paired=False)
            settled += found.interval is not None and found.confidence_below(0.02) <= 0.1
        assert settled <= 200 * 0.05

    def test_a_denominator_of_several_must_be_clear_of_zero_each(self) -> None:
        rng = np.random.default_rng(2)
        good = rng.uniform(0.4, 0.6, (2, 3, 50))
        poor = np.where(rng.random((2, 3, 50)) < 0.01, 0.5, 0.0)
        poor[:, :, 0] = 0.5
        found = moments([list(good), list(poor)], groups_of((3, 3), paired=False))
        assert "standard errors above 0" in refused(estimate(found, LossRatios(np.eye(2))))


def test_p_is_never_zero() -> None:
    scores = np.random.default_rng(0).uniform(0.0, 0.001, (2, 1, 5_000))
    found = estimate(moments([[scores[0] + 0.9, scores[1]]]), MINUS, "queries")
    assert found.p is not None
    assert 0.0 < found.p < 1e-300


SHIFTS = np.array([0.02, -0.01, 0.05, 0.04, 0.0, 0.03])
WAVE = np.array([0.1, -0.1, 0.1, -0.1])


def test_over_collections_it_is_students_t_however_large_they_are() -> None:
    """Scipy: every dataset counts the same, so the interval is that of a t test over their differences."""
    sizes = (1, 1, 2, 50, 3, 1)
    blocks = [[0.5 + s + np.tile(WAVE, (1, n)), np.full((1, 4 * n), 0.5)] for s, n in zip(SHIFTS, sizes, strict=True)]
    found = over_collections(moments(blocks), np.eye(6), "queries")
    peer = scipy.stats.ttest_1samp(SHIFTS, 0.0).confidence_interval(0.95)
    assert found is not None
    assert found.value == pytest.approx(SHIFTS.mean())
    assert found.interval == pytest.approx((peer.low, peer.high))


def test_what_runs_move_on_all_datasets_is_added() -> None:
    """By hand: runs at -.1, 0 and .1 everywhere add their variance of .01 / 3, which no scatter of datasets shows."""
    blocks = [[0.5 + shift + WAVE + np.array([[-0.1], [0.0], [0.1]]), np.full((1, 4), 0.5)] for shift in SHIFTS]
    found = over_collections(moments(blocks, groups_of((3, 1), paired=False)), np.eye(6), "seeds_and_queries")
    assert found is not None
    assert found.standard_error**2 == pytest.approx(SHIFTS.var(ddof=1) / 6 + 0.01 / 3)
