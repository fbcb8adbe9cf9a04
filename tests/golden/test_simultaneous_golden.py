"""All systems at once: Hsu's constants, Tukey's studentized range, Dunnett's test, and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from unimoe.analysis.comparisons import ALPHA, difference
from unimoe.analysis.standings import Chosen, best_of, check_chosen, standings_of
from unimoe.analysis.statistics.simultaneous import corrected, joint, level
from unimoe.core.errors import UsageError

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
        ({"z": 3}, "no system 'z'"),
        ({"a": ["b", "z"]}, "no system 'z'"),
        ({"a": 1}, "a from 1 setting; give the number tried"),
        ({"a": ["a"]}, "a from 1 setting"),
        ({"a": "test"}, "write dev, a number of settings"),
        (["a"], "give {system: dev"),
    ],
)
def test_what_is_said_of_a_choice_must_make_sense(chosen: Chosen, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_chosen(chosen, ["a", "b"])
