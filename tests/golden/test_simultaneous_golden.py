"""All systems at once, by Hsu's, Tukey's and Dunnett's tests; queries in clusters, by statsmodels; both by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy import stats

from unimoe.analysis.compare import compare, compare_statistic
from unimoe.analysis.comparisons import ALPHA, difference
from unimoe.analysis.standings import Chosen, best_of, check_chosen, standings_of
from unimoe.analysis.statistics.simultaneous import corrected, joint, level
from unimoe.analysis.statistics.variance import moments
from unimoe.core.errors import DataError, UsageError
from unimoe.results.clusters import Clusters, by_cluster

Array = NDArray[np.float64]


def equal_variances(systems: int) -> Array:
    """Of differences of independent means with one variance each: all of them 2."""
    return 2.0 * (1.0 - np.eye(systems))


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
        of_best = level(joint(equal_variances(3)).smallest_p([(0, [1, 2])], one_sided=True))
        assert of_best == pytest.approx(stats.norm.sf(d), abs=0.0015)

    @pytest.mark.parametrize("systems", [3, 9, 20])
    def test_every_two_of_equal_systems_are_tukeys_range(self, systems: int) -> None:
        range_at = float(stats.studentized_range.ppf(0.95, systems, np.inf))
        alpha = level(joint(equal_variances(systems)).of_all)
        assert alpha == pytest.approx(2.0 * stats.norm.sf(range_at / math.sqrt(2.0)), rel=0.07)

    def test_systems_with_equal_scores_are_one(self) -> None:
        twins = np.array([[0.0, 2.0, 2.0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
        assert level(joint(twins).of_all) == pytest.approx(ALPHA, abs=0.004)

    def test_differences_from_one_system_are_dunnetts(self) -> None:
        rng = np.random.default_rng(0)
        groups = [rng.normal(shift, 1.0, 400) for shift in (0.0, 0.1, 0.15, 0.2)]
        peer = stats.dunnett(*groups[1:], control=groups[0], rng=np.random.default_rng(0))
        errors = np.array([group.var(ddof=1) / 400 for group in groups])
        variances = np.add.outer(errors, errors) * (1.0 - np.eye(4))
        smallest = joint(variances).smallest_p([(0, [1, 2, 3])])
        p_values = [
            2.0 * stats.norm.sf(abs(group.mean() - groups[0].mean()) / math.sqrt(variances[0, place]))
            for place, group in enumerate(groups[1:], start=1)
        ]
        assert [corrected(p, smallest) for p in p_values] == pytest.approx(list(peer.pvalue), abs=0.02)

    def test_the_covariance_follows_from_the_variances_of_differences(self) -> None:
        covariance = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
        own = np.diag(covariance)
        draws = joint(np.add.outer(own, own) - 2.0 * covariance).draws
        contrasts = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]])
        assert np.cov(contrasts @ draws.T) == pytest.approx(contrasts @ covariance @ contrasts.T, rel=0.05)

    def test_a_p_at_the_level_is_corrected_to_five_percent(self) -> None:
        smallest = joint(equal_variances(5)).of_all
        alpha = level(smallest)
        assert corrected(np.nextafter(alpha, 0.0), smallest) < ALPHA <= corrected(alpha, smallest)
        assert corrected(0.0, smallest) > 0.0


def test_an_interval_excludes_0_exactly_where_p_is_below_its_alpha() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(0.5, 0.2, (2, 3, 60)) + rng.normal(0.0, 0.02, (2, 3, 1))
    found, _ = difference(scores[0] + 0.06, scores[1])
    assert found.p is not None
    for alpha, outside in ((found.p * 1.001, True), (found.p * 0.999, False)):
        low, high = replace(found, alpha=alpha).interval or (0.0, 0.0)
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
    found = standings_of(means, tests, joint(equal_variances(4)))
    # 3.633 is below 3.7 (a - c), 4 (b - d) and 5 (a - d), and above 2.7 (b - c); Hsu's constant is 2.92
    assert [(one.system, one.ranks) for one in found] == [("a", (1, 2)), ("b", (1, 3)), ("c", (2, 4)), ("d", (3, 4))]
    assert best_of(found) == ["a", "b"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"a": ["b", "z"]}, "no system 'z'"),
        ({"a": ["a"]}, "a from 1 setting"),
        ({"a": 10**320}, "2 to 1,000,000,000, or dev"),
        ({"a": "test"}, "write dev, a number of settings"),
        (["a"], "give {system: dev"),
    ],
)
def test_what_is_said_of_a_choice_must_make_sense(chosen: Chosen, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_chosen(chosen, ["a", "b"])


CODES = np.array([0, 0, 1, 2, 2, 2])
ONE = np.array([[1.0]])


def test_a_variance_over_clusters_by_hand() -> None:
    """Scores 1, 3 | 2 | 6, 4, 2, mean 3: cluster sums of deviations -2, -1, 3, so 14 * 3/2 / 36 = .5833."""
    found = moments([[by_cluster(np.array([[1.0, 3.0, 2.0, 6.0, 4.0, 2.0]]), CODES)]]).terms(ONE)
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


def test_clusters_of_one_query_change_nothing() -> None:
    scores = np.random.default_rng(1).uniform(size=(3, 9))
    assert by_cluster(scores, np.arange(9)) == pytest.approx(scores)


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
    """Fifteen queries of 120 differ, but they are five of forty clusters, of two sizes: no more than five queries."""
    qrels = {f"q{i}": {"a": 1} for i in range(120)}
    sizes = {q: f"c{number // 3}" if number < 60 else f"d{number // 6}" for number, q in enumerate(qrels)}
    first = {q: {"a": 2.0, "b": 1.0} for q in qrels}
    other = first | {f"q{i}": {"a": 0.5, "b": 1.0} for i in range(15)}
    (row,) = compare({"x": first, "y": other}, qrels, clusters=sizes).tests().to_dict("records")
    assert row["p"] is None or np.isnan(row["p"])
    assert "differ on 5 of 30 clusters" in row["unfit"]


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
