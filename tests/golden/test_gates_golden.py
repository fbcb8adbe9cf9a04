"""Gates, resampling and plans against scipy's tests and simulations; what looks ask for, against other code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from support.results import DIFFERENCE, INTERFERENCE, both, clear_gap, judged, make_result, results_of, simulate

from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.output import gate_lines, gates_as_json
from unimoe.analysis.gates.registration import default_looks
from unimoe.analysis.gates.wording import settle_sentence
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.power import Aim, at_size, half_width, plan, smallest_distance
from unimoe.analysis.statistics.resampling import bootstrap_means, sign_flip_p
from unimoe.analysis.statistics.sequential import confidence_at_looks
from unimoe.analysis.statistics.variance import Terms

TOST = DIFFERENCE | {"kind": "equivalence", "margin": 0.02}


def test_over_queries_it_is_the_paired_t_test_and_tost() -> None:
    rng = np.random.default_rng(3)
    system, baseline = rng.uniform(0.3, 0.9, (2, 40))
    system = baseline + 0.1 * (system - 0.6)
    arms = results_of(make_result("a", None, system), make_result("b", None, baseline))
    judgment = judged(arms, **TOST | {"system": "a", "baseline": "b"})
    interval = stats.ttest_rel(system, baseline).confidence_interval(0.95)
    assert judgment.found.estimate.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    lower = stats.ttest_1samp(system - baseline, -0.02, alternative="greater").pvalue
    upper = stats.ttest_1samp(system - baseline, 0.02, alternative="less").pvalue
    assert 1.0 - judgment.found.confidence["PASS"] == pytest.approx(max(lower, upper), rel=1e-6)
    both_ways = stats.ttest_rel(system, baseline).confidence_interval(0.80)  # two tests at .1
    bounds = gates_as_json(None, [judgment], [judgment])["gates"][0]["bounds"]
    assert bounds[0] == pytest.approx(both_ways.low)
    gaps, n = system - baseline, len(system)
    skew = stats.skew(gaps, bias=False) / np.sqrt(n)  # on the side of the longer tail Hall's (1992) bound is the weaker

    def by_hall(bound: float) -> float:
        t = (gaps.mean() - bound) / (gaps.std(ddof=1) / np.sqrt(n))
        return float(t + skew / 3.0 * t**2 + skew**2 / 27.0 * t**3 + skew / 6.0 + stats.t.ppf(0.9, n - 1))

    assert both_ways.high < bounds[1] == pytest.approx(optimize.brentq(by_hall, both_ways.high - 0.01, 0.02))


def test_over_paired_seeds_they_are_t_tests_of_differences_and_of_contrasts_at_the_cutoffs() -> None:
    specialist, joint = simulate(5, 30, 0.03, rng=np.random.default_rng(6))
    arms = both(specialist, joint, paired_seeds=True)
    difference = judged(arms, **TOST, estimand="seeds").found
    interval = stats.ttest_1samp((joint - specialist).mean(axis=1), 0.0).confidence_interval(0.95)
    assert difference.paired
    assert difference.estimate.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    tir = judged(arms, **INTERFERENCE, estimand="seeds").found
    for cutoff, confidence in ((0.02, tir.confidence["PASS"]), (0.01, 1.0 - tir.confidence["FAIL"])):
        excess = ((1.0 - cutoff) * specialist - joint).mean(axis=1)
        assert confidence == pytest.approx(1.0 - stats.ttest_1samp(excess, 0.0, alternative="greater").pvalue)


@pytest.mark.parametrize(
    ("looks", "at_90", "at_95"),
    [  # calibrated twice with 400,000 paths each, by other code
        ([3], 0.9, 0.95),
        ([3, 6], 0.940, 0.972),
        ([4, 8], 0.939, 0.971),
        ([3, 5, 8], 0.954, 0.979),
        ([3, 5, 10], 0.956, 0.980),
        (range(3, 11), 0.969, 0.987),
        (range(2, 11), 0.974, 0.989),
    ],
)
def test_each_look_asks_for_the_confidence_that_simulations_found(looks: Any, at_90: float, at_95: float) -> None:
    found = [confidence_at_looks(tuple(looks), level) for level in (0.90, 0.95)]
    assert found == pytest.approx([at_90, at_95], abs=0.0011)


def test_later_seeds_do_not_change_a_label() -> None:
    """Seeds 3 and 4 lose all that the first three had won: they came after the label."""
    arms = clear_gap(-0.1, seeds=5)
    specialist, joint = (arms.scores(arm, "reranking/apidocs", range(5)) for arm in ("rank_only_r8", "joint_r8"))
    joint[3:] += 0.3
    gate = INTERFERENCE | {"looks": [3, 5, 8]}
    found = judged(both(specialist, joint), **gate)
    assert (found.look, found.label, found.found.seeds[1]) == (3, "PASS", (0, 1, 2))
    alone = judged(both(specialist[:3], joint[:3]), **gate).found
    assert (found.found.value, found.found.confidence) == (alone.value, alone.confidence)
    assert "decided at the look at 3 seeds: the gate is closed, and later seeds change nothing" in _text(found)
    plain, queries = (judged(both(specialist, joint), **INTERFERENCE | own) for own in ({}, {"estimand": "queries"}))
    assert plain.label != "PASS"
    assert ["nobody has registered the number of seeds" in _text(one) for one in (plain, queries)] == [True, False]


@pytest.mark.parametrize(
    ("looks", "seeds", "look", "words"),
    [
        ([3, 5, 8], 2, 2, "the first look is at 3 seeds, and here are 2"),
        ([3, 5, 8], 3, 3, "the next look is at 5"),
        ([3, 5, 8], 4, 3, "the next look is at 5"),
        ([3, 5, 8], 5, 5, "the next look is at 8"),
        ([3, 5], 12, 5, "the last look, at 5 seeds, is over"),
    ],
)
def test_without_a_label_the_last_look_so_far_counts(looks: list[int], seeds: int, look: int, words: str) -> None:
    # TIR of 1.5 % lies between the cutoffs, with seeds that scatter far more
    arms = both(*simulate(seeds, 40, 0.015, rng=np.random.default_rng(4), seed_sd=0.02))
    found = judged(arms, **INTERFERENCE, looks=looks)
    assert (found.label, found.look, len(found.found.seeds[0])) == ("INCONCLUSIVE", look, look)
    assert words in _text(found)
    (facts,) = gates_as_json(None, [found], [found])["gates"]
    assert (facts["look"], facts["label_confidence"]) == (look, confidence_at_looks(tuple(looks), 0.90))
    if look in (2, looks[-1]):  # too early, or over
        assert (found.outlook, facts["outlook"]) == (None, None)
    else:
        assert found.outlook is not None
        assert sum(found.outlook.chances.values()) == pytest.approx(1.0)
        assert facts["outlook"]["looks"] == [later for later in looks if later > look]


def test_a_look_skips_no_registered_seed() -> None:
    """Seed 1 is missing: seeds 2 to 5 cannot stand in for it."""
    whole = clear_gap(-0.1, seeds=6)
    results = results_of(*(result for result in whole.results if result.seed != 1))
    found = judged(results, **INTERFERENCE, looks=[3, 5], seeds=[0, 1, 2, 3, 4])
    assert (found.label, found.found.seeds) == ("INCONCLUSIVE", ((0,), (0,)))


def test_experiments_of_five_seeds_or_more_look_before_their_end() -> None:
    looks = {4: None, 5: [3, 5], 6: [3, 6], 7: [3, 5, 7], 8: [3, 5, 8], 10: [3, 5, 10]}
    assert {seeds: default_looks(seeds) for seeds in looks} == looks


def _text(found: Judgment) -> str:
    return " ".join(gate_lines(None, [found]).split())


def test_bootstrap_interval_agrees_with_scipy() -> None:
    differences = np.random.default_rng(50).normal(0.02, 0.2, (50, 3))
    found = np.quantile(bootstrap_means(differences, 10_000, seed=0), [0.025, 0.975], axis=0)
    for column, ends in zip(differences.T, found.T, strict=True):
        peer = stats.bootstrap(
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
    assert observed == pytest.approx(stats.binom.pmf(np.arange(8), n, 1 / n), abs=2e-3)


def test_sign_flip_p_agrees_with_every_permutation_and_is_never_zero() -> None:
    differences = np.random.default_rng(3).normal(0.1, 0.2, (10, 2))
    exact = [
        stats.permutation_test((column,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
        for column in differences.T
    ]
    assert sign_flip_p(differences, 20_000, seed=0) == pytest.approx(exact, abs=0.01)
    without_variance = np.column_stack([np.ones(60), np.zeros(60)])
    assert sign_flip_p(without_variance, 999, seed=0).tolist() == [1 / 1000, 1.0]


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


RULE = Aim(cutoffs=(0.01, 0.02), confidence=0.90)


def known(seed: float, query: float, residual: float, seeds: int | tuple[int, int], queries: int) -> Terms:
    """Of the mean of one dataset, from the variances of a single run and query; runs vary as one group or as two."""
    runs = np.atleast_1d(seeds)
    left = residual / (runs * queries)
    return Terms(
        query=np.array([query / queries + left.sum()]),
        run=seed / runs + left,
        residual=left[:, None],
        queries=(queries,),
        runs=tuple(runs.tolist()),
    )


def test_a_variance_at_another_size_worked_by_hand() -> None:
    # Components .04, .015, .01 seen on 2 x 2; on 4 x 10: V = .04 / 4 + .015 / 10 + .01 / 40.
    expected = at_size(known(0.04, 0.015, 0.01, 2, 2), 4, 10)
    assert [*expected.query, *expected.run] == pytest.approx([0.0015 + 0.00025, 0.01 + 0.00025])
    assert expected.variance == pytest.approx(0.01 + 0.0015 + 0.00025)
    assert [*expected.queries, *expected.runs] == [10, 4]
    reach = stats.t.ppf(0.975, expected.freedom) * math.sqrt(0.01175)
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
    limit = stats.t.ppf(0.975, 2) * math.sqrt(seed_variance / 3)
    assert half_width(terms, 3, 1e15) == pytest.approx(limit, rel=1e-4)
    found = plan(terms, 0.03, RULE)
    assert found.decides_with_any_queries == pytest.approx(
        (stats.t.ppf(0.9, 2) + stats.t.ppf(0.8, 2)) * math.sqrt(seed_variance / 3), rel=1e-4
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

    def settles(seeds: int, queries: int) -> bool:
        """Whether data of a size and all larger data settle a region with one cutoff."""
        sizes: tuple[tuple[float, float], ...] = ((seeds, queries), (seeds, 1e15), (1e15, queries))
        return all(abs(value - aim.cutoffs[-1]) >= smallest_distance(terms, s, n, aim) for s, n in sizes)

    assert found.seeds is not None
    assert found.queries is not None
    assert found.grid is not None
    assert not found.settled
    assert settles(found.seeds, 600)
    assert not settles(found.seeds - 1, 600)
    assert settles(3, found.queries)
    assert not settles(3, found.queries - 1)
    seeds, queries = found.grid
    assert seeds * queries <= min(found.seeds * 600, 3 * found.queries)
    assert settles(seeds, queries)
    assert not settles(seeds, queries - 1)


components, number_of_runs, query_counts = st.floats(1e-6, 10.0), st.integers(2, 10), st.integers(2, 10**5)
groups = number_of_runs | st.tuples(number_of_runs, number_of_runs)
terms = st.builds(known, components, components, components, groups, st.integers(2, 2_000))


@given(terms, st.integers(2, 200), query_counts, st.integers(0, 100), st.integers(0, 10**6))
def test_more_seeds_or_queries_never_raise_the_standard_error(
    found: Terms, seeds: int, queries: int, more_seeds: int, more_queries: int
) -> None:
    fewer, larger = at_size(found, seeds, queries), at_size(found, seeds + more_seeds, queries + more_queries)
    assert larger.error <= fewer.error * (1 + 1e-9)
    assert larger.freedom >= min(*larger.runs, *larger.queries) - 1 - 1e-9


@given(terms, st.integers(2, 200), query_counts, st.floats(1.0, 100.0))
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
