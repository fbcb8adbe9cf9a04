"""Comparisons and standings of systems, alone, all at once, and over clusters of queries.

By hand, and against ``evaluate-run``, pytrec_eval, statsmodels, and scipy's tests: Hsu's, Tukey's and Dunnett's too.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import pytrec_eval
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from support.runs import one_relevant, random_qrels, random_run, run_with_ranks, write_arms
from support.scripts import call_unimoe, successful

from unimoe.analysis.compare import compare, compare_statistic
from unimoe.analysis.comparisons import ALPHA, difference
from unimoe.analysis.standings import best_of, standings_of
from unimoe.analysis.statistics.simultaneous import Joint, corrected, joint, level
from unimoe.analysis.statistics.variance import Terms, moments
from unimoe.core.errors import DataError
from unimoe.core.trec import Run
from unimoe.results.clusters import Clusters, by_cluster


def call(*arguments: str | Path) -> Any:
    return json.loads(successful(call_unimoe(*arguments)).stdout)


def test_a_verdict_worked_by_hand(tmp_path: Path) -> None:
    """Reciprocal ranks of one relevant document, two seeds, eight queries.

    Specialist: q1 to q6 rank 1, 1; q7 ranks 2, 1; q8 ranks 4, 4: sums of the seeds 6.75 and 7.25, mean 7/8.
    Joint: q1 rank 1; q2 to q7 rank 2; q8 rank 1: sum 5, mean 5/8. TIR = (7 - 5) / 7 = 2/7. Its two files
    score alike: they are one run.
    """

    def run(*ranks: int, tail: float = 0.0) -> Run:
        return run_with_ranks({f"q{i}": rank for i, rank in enumerate(ranks, start=1)}, tail=tail)

    specialist = [run(1, 1, 1, 1, 1, 1, 2, 4), run(1, 1, 1, 1, 1, 1, 1, 4)]
    joint = [run(1, 2, 2, 2, 2, 2, 2, 1, tail=tail) for tail in (0.0, 0.5)]
    a, b, q = write_arms(tmp_path, one_relevant(*(f"q{i}" for i in range(1, 9))), specialist, joint)
    found = call("compare", "--specialist", *a, "--joint", *b, "--qrels", q, "--metric", "recip_rank", "--json")
    (gate,) = found["gates"]["gates"]
    assert found["datasets"]["retrieval/q"]["metric"] == "mrr"
    assert gate["runs"] == {
        "specialist": [pytest.approx(6.75 / 8), pytest.approx(7.25 / 8)],
        "joint": [pytest.approx(5 / 8)],
    }
    assert gate["interval"]["value"] == pytest.approx(2 / 7)
    assert (gate["by_seed"], gate["std"]) == ({}, None)  # numbers of run files are no training seeds
    cases = {case["query_id"]: case for case in found["drilldown"]}
    assert found["drilldown"][0]["query_id"] == "q8"
    shares = {"q8": -0.75 / 7, "q7": 0.25 / 7} | {f"q{i}": 0.5 / 7 for i in range(2, 7)}
    assert {name: case["share"] for name, case in cases.items()} == pytest.approx(shares)
    assert cases["q7"]["first_ranks"] == {"rel": [2, 1]}
    assert cases["q7"]["second_ranks"] == {"rel": [2]}


def test_an_average_worked_by_hand() -> None:
    """Reciprocal ranks of one run of each system on two datasets, of eight and six queries.

    Differences on x: 1/2 six times, 0, -1/2, mean 5/16; on y: 3/4, 3/4, 3/4, 1/2, 1/2, 1/2, mean 5/8. So the average
    is 15/32. The squares about the means sum to 31/32 on x and to 3/32 on y. Over 7 x 8 and 5 x 6 these are the
    variances of the means; the standard error is half of the root of their sum.
    """
    runs: dict[str, dict[str, Run]] = {"good": {}, "poor": {}}
    qrels = {}
    for dataset, poor in (("x", (2, 2, 2, 2, 2, 2, 1, 1)), ("y", (4, 4, 4, 2, 2, 2))):
        queries = [f"{dataset}{number}" for number in range(len(poor))]
        good = [1] * len(poor) if dataset == "y" else [1] * 7 + [2]
        qrels[dataset] = one_relevant(*queries)
        runs["good"][dataset] = run_with_ranks(dict(zip(queries, good, strict=True)))
        runs["poor"][dataset] = run_with_ranks(dict(zip(queries, poor, strict=True)))
    found = compare(runs, qrels, baseline="poor", metrics="recip_rank")
    row = next(row for row in found.test_rows if row["dataset"] == "average of 2")
    variances = (31 / 32) / (7 * 8), (3 / 32) / (5 * 6)
    error = math.sqrt(sum(variances)) / 2
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 7 + variances[1] ** 2 / 5)
    half = stats.t.ppf(0.975, freedom) * error
    assert row["difference"] == pytest.approx(15 / 32)
    assert (row["low"], row["high"]) == pytest.approx((15 / 32 - half, 15 / 32 + half))
    assert row["p"] == row["p_corrected"] == pytest.approx(2 * stats.t.sf(15 / 32 / error, freedom))
    assert (row["system_mean"], row["baseline_mean"]) == pytest.approx(((15 / 16 + 1) / 2, (10 / 16 + 6 / 16) / 2))
    assert (row["queries"], row["wins"], row["ties"], row["losses"]) == (14, 12, 1, 1)


def test_single_runs_have_the_paired_t_test_as_in_pyterrier_and_ranx() -> None:
    qrels, rng = random_qrels(40, np.random.default_rng(5)), np.random.default_rng(6)
    runs = {name: random_run(qrels, noise, rng) for name, noise in (("bm25", 2.0), ("tasb", 1.8), ("mono", 1.1))}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"})
    scores = {name: [one["ndcg_cut_10"] for one in evaluator.evaluate(run).values()] for name, run in runs.items()}
    for row in compare(runs, qrels, baseline="bm25").test_rows:
        expected = stats.ttest_rel(scores[row["system"]], scores[row["baseline"]])
        assert row["p"] == pytest.approx(expected.pvalue, rel=1e-9)
        interval = expected.confidence_interval(0.95)
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high), rel=1e-9)
        gaps = np.subtract(scores[row["system"]], scores[row["baseline"]])
        assert (row["wins"], row["losses"]) == ((gaps > 1e-12).sum(), (gaps < -1e-12).sum())
        assert row["holds_for"] == "queries"


def test_real_runs_score_what_is_known_of_them(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    runs = [pool / "runs" / f"{name}.trec" for name in ("splade_p_p_ensemble_distil", "d_bert_kd_tasb")]
    qrels = pool / "qrels" / "full.tsv"
    found = call("compare", "--specialist", *runs, "--joint", pool / "runs" / "bm25.trec", "--qrels", qrels, "--json")
    scores = {(run["system"], run["seed"]): run["scores"]["ndcg@10"] for run in found["runs"]}
    assert scores["joint", 0] == pytest.approx(0.5058, abs=5e-5)
    assert scores["specialist", 1] == call("evaluate-run", runs[0], qrels, "--json")["aggregate"]["ndcg@10"]
    (gate,) = found["gates"]["gates"]
    mean = (scores["specialist", 0] + scores["specialist", 1]) / 2
    assert gate["interval"]["value"] == pytest.approx(1 - scores["joint", 0] / mean, abs=1e-12)
    assert gate["label"] == "INCONCLUSIVE"
    assert "one seed of joint" in gate["why"]
    assert found["comparisons"][0]["queries"] == 43
    # Below .001 by Student's t; the runs' variance is known from two runs alone, which the tail allows for.
    assert found["comparisons"][0]["p"] == pytest.approx(0.00798, abs=5e-5)


def test_standings_that_can_be_read_by_hand() -> None:
    """Four systems, three tests each: a one-sided p counts below .05 / 3, so a two-sided one below .0333."""
    means = {"a": 0.5, "b": 0.48, "c": 0.4, "d": 0.3}
    tests = {
        ("b", "a"): (-0.02, 0.08),  # one-sided .04: b may be the best
        ("c", "a"): (-0.1, 0.03),  # one-sided .015: c is not the best; two-sided, Holm: 2 x .03 = .06, so rank 1 may be
        ("c", "b"): (-0.08, 0.20),
        ("d", "a"): (-0.2, 0.001),
        ("d", "b"): (-0.18, 0.002),
        ("d", "c"): (-0.1, 0.06),
    }
    found = standings_of(means, tests)
    assert [(one.system, one.rank, one.ranks, one.is_among_best) for one in found] == [
        ("a", 1, (1, 3), True),
        ("b", 2, (1, 3), True),
        ("c", 3, (1, 4), False),
        ("d", 4, (3, 4), False),
    ]


def test_equal_systems_and_pairs_without_a_test_share_ranks() -> None:
    tests: dict[tuple[str, str], tuple[float, float | None]] = {("a", "b"): (0.0, None), ("a", "c"): (0.1, None)}
    found = standings_of({"a": 0.5, "b": 0.5, "c": 0.4}, tests | {("b", "c"): (0.1, 1e-9)})
    assert [(one.rank, one.ranks, one.is_among_best) for one in found] == [
        (1, (1, 3), True),
        (1, (1, 2), True),
        (3, (2, 3), False),
    ]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=7), st.data())
def test_a_rank_lies_in_its_interval_and_the_highest_mean_may_be_best(means: list[float], data: st.DataObject) -> None:
    named = {f"s{place}": mean for place, mean in enumerate(means)}
    tests = {
        (first, second): (named[first] - named[second], data.draw(st.none() | st.floats(0, 1)))
        for first, second in combinations(named, 2)
    }
    found = standings_of(named, tests)
    assert found[0].is_among_best
    assert all(one.ranks[0] <= one.rank <= one.ranks[1] for one in found)


def equal_variances(systems: int) -> NDArray[np.float64]:
    """Of differences of independent means with one variance each: all of them 2."""
    return 2.0 * (1.0 - np.eye(systems))


def of_single_runs(variances: NDArray[np.float64]) -> Joint:
    """Systems without seeds, by the variances of their differences."""
    nothing = np.zeros(0), np.zeros((0, 1))
    terms = {
        (i, j): Terms(variances[[i], j], *nothing, queries=(1_000_000,), runs=())
        for i, j in combinations(range(len(variances)), 2)
    }
    return joint(terms, [1] * len(variances))


class TestConstants:
    def test_three_systems_by_hand(self) -> None:
        """Hsu's constant for three: both differences from one system have correlation 1/2.

        P(max of two standard normals with correlation 1/2 <= d) is .95 at d = 1.916 (Dunnett 1955, infinite degrees of
        freedom), where the integral over the shared part x is the mean of Phi(sqrt(2) d - x) squared.
        """
        x = np.linspace(-8.0, 8.0, 20_001)
        d = 1.916
        inside = float(np.trapezoid(stats.norm.cdf(math.sqrt(2.0) * d - x) ** 2 * stats.norm.pdf(x), x))
        assert inside == pytest.approx(0.95, abs=2e-4)
        of_best = level(of_single_runs(equal_variances(3)).smallest_p([(0, [1, 2])], one_sided=True))
        assert of_best == pytest.approx(stats.norm.sf(d), abs=0.0015)

    @pytest.mark.parametrize("systems", [3, 9, 20])
    def test_every_two_of_equal_systems_are_tukeys_range(self, systems: int) -> None:
        range_at = float(stats.studentized_range.ppf(0.95, systems, np.inf))
        alpha = level(of_single_runs(equal_variances(systems)).of_all)
        assert alpha == pytest.approx(2.0 * stats.norm.sf(range_at / math.sqrt(2.0)), rel=0.07)

    def test_draws_of_equal_systems_are_normal_variables_about_their_mean_on_any_processor(self) -> None:
        """Their covariance has one eigenvalue, of which every basis is right: processors find different ones."""
        normal = np.random.default_rng(0).standard_normal((20_000, 7))
        found = of_single_runs(equal_variances(7)).draws
        np.testing.assert_allclose(found, normal - normal.mean(axis=1, keepdims=True), atol=1e-6)

    def test_systems_with_equal_scores_are_one(self) -> None:
        twins = np.array([[0.0, 2.0, 2.0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
        assert level(of_single_runs(twins).of_all) == pytest.approx(ALPHA, abs=0.004)

    def test_differences_from_one_system_are_dunnetts(self) -> None:
        rng = np.random.default_rng(0)
        groups = [rng.normal(shift, 1.0, 400) for shift in (0.0, 0.1, 0.15, 0.2)]
        peer = stats.dunnett(*groups[1:], control=groups[0], rng=np.random.default_rng(0))
        errors = np.array([group.var(ddof=1) / 400 for group in groups])
        variances = np.add.outer(errors, errors) * (1.0 - np.eye(4))
        smallest = of_single_runs(variances).smallest_p([(0, [1, 2, 3])])
        p_values = [
            2.0 * stats.norm.sf(abs(group.mean() - groups[0].mean()) / math.sqrt(variances[0, place]))
            for place, group in enumerate(groups[1:], start=1)
        ]
        assert [corrected(p, smallest) for p in p_values] == pytest.approx(list(peer.pvalue), abs=0.02)

    def test_the_covariance_follows_from_the_variances_of_differences(self) -> None:
        covariance = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
        own = np.diag(covariance)
        draws = of_single_runs(np.add.outer(own, own) - 2.0 * covariance).draws
        contrasts = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]])
        assert np.cov(contrasts @ draws.T) == pytest.approx(contrasts @ covariance @ contrasts.T, rel=0.05)

    def test_a_p_at_the_level_is_corrected_to_five_percent(self) -> None:
        smallest = of_single_runs(equal_variances(5)).of_all
        alpha = level(smallest)
        assert corrected(np.nextafter(alpha, 0.0), smallest) < ALPHA <= corrected(alpha, smallest)
        assert corrected(0.0, smallest) > 0.0


@pytest.mark.parametrize("paired", [False, True])
def test_of_five_equal_systems_with_few_runs_one_table_in_twenty_has_a_smaller_p(*, paired: bool) -> None:
    """Variances of system by query .01, of a run's shift .0009, and noise of .0025; three runs, 200 queries."""
    rng, runs, queries, systems = np.random.default_rng(3), 3, 200, 5
    noise = 0.0025 / runs / queries
    run = np.array([0.0009 / runs + noise] * 2)
    groups = run[:1] * 2.0 if paired else run
    residual = np.full((len(groups), 1), 2.0 * noise / len(groups))
    of_pair = Terms(np.array([2.0 * (0.01 / queries + noise)]), groups, residual, (queries,), (runs,) * len(groups))
    smallest = joint(dict.fromkeys(combinations(range(systems), 2), of_pair), [runs] * systems).of_all
    lowest = []
    for _ in range(300):
        scores = 0.1 * rng.standard_normal((systems, 1, queries)) + 0.03 * rng.standard_normal((systems, runs, 1))
        scores += 0.05 * rng.standard_normal((systems, runs, queries))
        tests = (difference(a, b, paired=paired)[0] for a, b in combinations(scores, 2))
        lowest.append(min(replace(test, by_t=True).p or 0.0 for test in tests))
    assert np.mean(np.array(lowest) < level(smallest)) == pytest.approx(ALPHA, abs=0.025)  # two standard errors
    if paired:  # two degrees of freedom: by normal variables, more than one in ten
        normal = 2.0 * stats.norm.sf(float(stats.studentized_range.ppf(0.95, systems, np.inf)) / math.sqrt(2.0))
        assert np.mean(np.array(lowest) < normal) > 2.0 * ALPHA


def test_an_interval_excludes_0_exactly_where_p_is_below_its_alpha() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(0.5, 0.2, (2, 3, 60)) + rng.normal(0.0, 0.02, (2, 3, 1))
    found, _ = difference(scores[0] + 0.06, scores[1])
    assert found.p is not None
    by_t = replace(found, by_t=True)
    assert by_t.p is not None
    assert by_t.p < found.p < ALPHA, "the tail of the generalised p is heavier"
    for test, p in ((found, found.p), (by_t, by_t.p)):
        for alpha, outside in ((p * 1.001, True), (p * 0.999, False)):
            low, high = replace(test, alpha=alpha).interval or (0.0, 0.0)
            assert (low > 0.0 or high < 0.0) is outside
            assert low + high == pytest.approx(2.0 * found.value)
    assert replace(found, alpha=ALPHA).interval == pytest.approx(found.interval, rel=1e-6)


def test_ranks_of_all_systems_together_by_hand() -> None:
    """Independent means with variance 1 and 4 systems: Tukey's range 3.633, so differences above 2.569 * sqrt(2)."""
    means = {"a": 5.0, "b": 4.0, "c": 1.3, "d": 0.0}
    tests = {
        (first, second): (
            means[first] - means[second],
            2.0 * stats.norm.sf((means[first] - means[second]) / math.sqrt(2.0)),
        )
        for first, second in combinations(means, 2)
    }
    found = standings_of(means, tests, of_single_runs(equal_variances(4)))
    # 3.633 is below 3.7 (a - c), 4 (b - d) and 5 (a - d), and above 2.7 (b - c); Hsu's constant is 2.92
    assert [(one.system, one.ranks) for one in found] == [("a", (1, 2)), ("b", (1, 3)), ("c", (2, 4)), ("d", (3, 4))]
    assert best_of(found) == ["a", "b"]


ONE = np.array([[1.0]])


def test_a_variance_over_clusters_by_hand() -> None:
    """Scores 1, 3 | 2 | 6, 4, 2, mean 3: cluster sums of deviations -2, -1, 3, so 14 * 3/2 / 36 = .5833."""
    scores, codes = np.array([[1.0, 3.0, 2.0, 6.0, 4.0, 2.0]]), np.array([0, 0, 1, 2, 2, 2])
    found = moments([[by_cluster(scores, codes)]]).terms(ONE)
    assert found.variance == pytest.approx(14 * 1.5 / 36)
    assert found.freedom == pytest.approx(2.0)


def test_a_variance_over_clusters_is_the_sandwich_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 12, 80)
    codes = np.unique(codes, return_inverse=True)[1]
    scores = rng.normal(0.5, 0.1, 80) + rng.normal(0.0, 0.2, 12)[codes]
    peer = sm.OLS(scores, np.ones(80)).fit(
        cov_type="cluster", cov_kwds={"groups": codes, "use_correction": False}, use_t=True
    )
    number = codes.max() + 1
    found = moments([[by_cluster(scores[None], codes)]])
    assert found.means[0, 0] == pytest.approx(scores.mean())
    assert found.terms(ONE).variance == pytest.approx(float(peer.cov_params()[0, 0]) * number / (number - 1))


def test_repeating_every_query_changes_no_test_once_it_is_in_a_cluster(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    qrels = {f"q{i}": {"a": 1} for i in range(40)}
    systems = {
        name: {q: {"a": 2.0 if rng.random() < share else 0.5, "b": 1.0} for q in qrels}
        for name, share in (("x", 0.3), ("y", 0.7), ("z", 0.5))
    }
    alone = compare(systems, qrels)
    twice = {q + end: grades for q, grades in qrels.items() for end in ("", "-again")}
    again = {name: {q + end: documents for q, documents in run.items() for end in ("", "-again")}
             for name, run in systems.items()}  # fmt: skip
    file = tmp_path / "clusters.tsv"
    file.write_text("".join(f"{query_id}\t{query_id.removesuffix('-again')}\n" for query_id in twice))
    found = compare(again, twice, clusters=file)
    columns = ["difference", "low", "high", "p", "check_p"]
    assert found.tests()[columns].to_numpy() == pytest.approx(alone.tests()[columns].to_numpy())
    assert compare(again, twice).tests()["p"].iloc[0] < alone.tests()["p"].iloc[0]
    whole = compare_statistic(found, np.mean, "y", "x", iterations=200)
    single = compare_statistic(alone, np.mean, "y", "x", iterations=200)
    assert (whole.low, whole.high) == pytest.approx((single.low, single.high))


def test_systems_that_differ_in_five_clusters_have_no_test() -> None:
    """Fifteen queries of 120 differ, but they are five of forty clusters, of two sizes: a test asks for six."""
    qrels = {f"q{i}": {"a": 1} for i in range(120)}
    sizes = {q: f"c{number // 3}" if number < 60 else f"d{number // 6}" for number, q in enumerate(qrels)}
    first = {q: {"a": 2.0, "b": 1.0} for q in qrels}
    five, six = (first | {f"q{i}": {"a": 0.5, "b": 1.0} for i in range(number)} for number in (15, 18))
    (row,) = compare({"x": first, "y": five}, qrels, clusters=sizes).test_rows
    assert row["p"] is None
    assert "differ on 5 of 30 clusters" in row["unfit"]
    (row,) = compare({"x": first, "y": six}, qrels, clusters=sizes).test_rows
    assert row["p"] is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("q0 c\n", "clusters.tsv:1: not a line of query id, tab, cluster id"),
        ("q0\tc\nq0\td\n", "clusters.tsv:2: query 'q0' is in two clusters"),
        ("q0\tc\nq1\td\nq9\td\n", r"queries that are on no dataset here: 1 \(q9\); remove their lines"),
        *(({"q0": "a", "q1": id_}, r"clusters: 1 \(q1\) have no cluster id") for id_ in (None, math.nan, pd.NA, " ")),
    ],
)
def test_clusters_that_do_not_fit_are_refused(tmp_path: Path, given: Any, message: str) -> None:
    """An id is absent where pandas has an empty cell."""
    if isinstance(given, str):
        path = tmp_path / "clusters.tsv"
        path.write_text(given)
        given = path
    with pytest.raises(DataError, match=message):
        Clusters.read(given).refuse_others({"one": ["q0", "q1"]})
