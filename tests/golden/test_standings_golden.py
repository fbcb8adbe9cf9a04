"""The best systems and the ranks, against scipy's t tests and by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unimoe.analysis.comparisons import difference
from unimoe.analysis.standings import best_of, standings_of


def test_a_table_that_can_be_read_by_hand() -> None:
    """Four systems, three tests each: a one-sided p counts below .05 / 3, so a two-sided one below .0333."""
    means = {"a": 0.5, "b": 0.48, "c": 0.4, "d": 0.3}
    tests = {
        ("b", "a"): (-0.02, 0.40),
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


def test_single_runs_are_ranked_by_the_t_tests_of_scipy() -> None:
    rng = np.random.default_rng(3)
    hard = rng.normal(0.5, 0.2, 60)
    scores = {name: hard + shift + rng.normal(0.0, 0.1, 60) for name, shift in (("x", 0.0), ("y", 0.03), ("z", 0.1))}
    tests = {}
    for first, second in combinations(scores, 2):
        of_two = difference(scores[first][None], scores[second][None])[0]
        tests[first, second] = of_two.value, of_two.p
        assert of_two.p == pytest.approx(stats.ttest_rel(scores[first], scores[second]).pvalue, rel=1e-6)
    found = standings_of({name: float(own.mean()) for name, own in scores.items()}, tests)
    one_sided = {
        name: min(
            stats.ttest_rel(scores[other], own, alternative="greater").pvalue for other in scores if other != name
        )
        for name, own in scores.items()
    }
    assert set(best_of(found)) == {name for name, p in one_sided.items() if 2 * p >= 0.05}


def test_equal_systems_and_pairs_without_a_test_share_ranks() -> None:
    tests: dict[tuple[str, str], tuple[float, float | None]] = {("a", "b"): (0.0, None), ("a", "c"): (0.1, None)}
    found = standings_of({"a": 0.5, "b": 0.5, "c": 0.4}, tests | {("b", "c"): (0.1, 1e-9)})
    assert [(one.rank, one.ranks, one.is_among_best) for one in found] == [
        (1, (1, 3), True),
        (1, (1, 2), True),
        (3, (2, 3), False),
    ]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=7), st.data())
def test_a_rank_lies_in_its_interval_and_the_highest_mean_may_be_the_best(
    means: list[float], data: st.DataObject
) -> None:
    named = {f"s{place}": mean for place, mean in enumerate(means)}
    tests = {
        (first, second): (named[first] - named[second], data.draw(st.none() | st.floats(0, 1)))
        for first, second in combinations(named, 2)
    }
    found = standings_of(named, tests)
    assert found[0].is_among_best
    assert all(one.ranks[0] <= one.rank <= one.ranks[1] for one in found)
