from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.variances import known

from unimoe.analysis.gates.wording import settle_sentence
from unimoe.analysis.statistics.power import Aim, at_size, half_width, plan, smallest_distance
from unimoe.analysis.statistics.variance import Terms

MANY_MORE = 10**12

RULE = Aim(cutoffs=(0.01, 0.02), confidence=0.90)

components = st.floats(1e-6, 10.0)
paired = st.builds(known, components, components, components, st.integers(2, 10), st.integers(2, 2_000))
query_counts = st.integers(2, 10**5)
estimates = st.floats(-0.5, 0.5)


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


@given(terms())
def test_the_same_sizes_leave_everything_as_it_is(found: Terms) -> None:
    same = at_size(found, min(found.runs), sum(found.queries))
    assert same.variance == pytest.approx(found.variance)
    assert same.freedom == pytest.approx(found.freedom)


@given(terms(), st.integers(2, 200), query_counts, st.floats(1.0, 100.0))
def test_the_error_and_the_interval_have_the_unit_of_the_estimate(
    found: Terms, seeds: int, queries: int, scale: float
) -> None:
    factor = scale**2
    scaled = Terms(factor * found.query, factor * found.run, factor * found.residual, found.queries, found.runs)
    assert half_width(scaled, seeds, queries) == pytest.approx(scale * half_width(found, seeds, queries))
    near, far = (smallest_distance(each, seeds, queries, RULE) for each in (found, scaled))
    assert far == pytest.approx(scale * near)


@settings(max_examples=20, deadline=None)
@given(terms(), estimates, st.floats(0.5, 0.98), st.floats(0.5, 0.98), st.floats(0.0, 0.01))
def test_asking_for_more_never_needs_less(
    found: Terms, estimate: float, confidence: float, power: float, more: float
) -> None:
    less = plan(found, estimate, replace(RULE, confidence=confidence, power=power))
    for step in ((more, 0.0), (0.0, more)):
        asked = plan(found, estimate, replace(RULE, confidence=confidence + step[0], power=power + step[1]))
        assert (asked.queries or MANY_MORE) >= (less.queries or MANY_MORE)
        assert (asked.seeds or MANY_MORE) >= (less.seeds or MANY_MORE)
        assert asked.decides >= less.decides


def test_two_one_sided_tests_ask_for_less_than_both_sides_at_once() -> None:
    found = known(seed=0.00003, query=0.03, residual=0.02, seeds=3, queries=300)
    cutoffs = (-0.01, 0.01)
    equivalence = plan(found, 0.0, Aim(cutoffs, 0.90, one_sided=True))
    between = plan(found, 0.0, Aim(cutoffs, 0.90))
    assert equivalence.grid is not None
    assert between.grid is not None
    assert equivalence.grid[0] * equivalence.grid[1] < between.grid[0] * between.grid[1]


def test_no_number_of_seeds_settles_what_queries_leave_open() -> None:
    found = plan(known(seed=0.0, query=0.06, residual=0.02, seeds=3, queries=100), 0.03, RULE)
    assert (found.seeds, found.queries is None) == (None, False)
    assert found.decides_with_any_seeds > 0.01


def test_on_a_cutoff_nothing_settles_it_and_without_variance_everything_does() -> None:
    found = plan(known(seed=0.00003, query=0.03, residual=0.02, seeds=3, queries=300), 0.02, RULE)
    assert "too near a cutoff" in settle_sentence(found)
    nothing = plan(Terms(np.array([1e-21]), np.zeros(0), np.zeros((0, 1)), (50,), ()), 0.03, RULE)
    assert (nothing.settled, nothing.decides_with_any_queries) == (True, 0.0)
