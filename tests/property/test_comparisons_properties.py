from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support.results import make_result

from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.results import EvalResult
from unimoe.results.folder import Results

Scores = NDArray[np.float64]


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[Scores, Scores]:
    """Scores of a system and a baseline, runs by queries; ties are common, as with cut-off metrics."""
    queries = draw(st.integers(1, 20))
    values = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
    first, second = (draw(arrays(np.float64, (draw(st.integers(1, 3)), queries), elements=values)) for _ in range(2))
    return first, second


def compare(system: Scores, baseline: Scores, *extra: EvalResult, iterations: int = 100) -> Comparison:
    items = [make_result("a", seed, row) for seed, row in enumerate(baseline)]
    items += [make_result("b", seed, row) for seed, row in enumerate(system)]
    return next(
        c
        for c in compare_arms(Results(Path("outputs"), [*items, *extra]), iterations=iterations)
        if c.key == "reranking/apidocs"
    )


@given(two_sides())
def test_swapping_arms_flips_signs_and_keeps_p(sides: tuple[Scores, Scores]) -> None:
    one, other = compare(*sides), compare(*sides[::-1])
    assert other.delta == pytest.approx(-one.delta, abs=1e-12)
    assert (other.p is None) == (one.p is None)
    if one.p is not None and one.difference.interval and other.difference.interval:
        low, high = one.difference.interval
        assert other.difference.interval == pytest.approx((-high, -low), abs=1e-9)
        assert other.p == pytest.approx(one.p, rel=1e-6)
    assert one.check_interval
    assert other.check_interval == pytest.approx([-end for end in one.check_interval[::-1]], abs=1e-6)
    assert other.check_p == one.check_p
    assert (other.wins, other.ties, other.losses) == (one.losses, one.ties, one.wins)
    assert other.superiority == pytest.approx(1.0 - one.superiority)
    assert (other.effect is None) == (one.effect is None)


@given(two_sides())
def test_no_number_is_undefined_and_no_p_is_zero(sides: tuple[Scores, Scores]) -> None:
    found = compare(*sides)
    for p in (found.p, found.p_corrected, found.check_p):
        assert p is None or 0.0 < p <= 1.0
    assert (found.p is None) == (found.p_corrected is None) == bool(found.unfit)
    assert found.check_interval
    assert found.check_interval[0] <= found.check_interval[1]
    if found.p is not None and found.difference.interval and abs(found.p - 0.05) > 1e-6:
        low, high = found.difference.interval
        assert low < found.delta < high
        assert all(math.isfinite(end) for end in (low, high))
        assert (found.p < 0.05) == (low > 0.0 or high < 0.0)


@given(two_sides())
def test_identical_arms_differ_by_nothing(sides: tuple[Scores, Scores]) -> None:
    found = compare(sides[0], sides[0])
    assert (found.delta, found.check_interval, found.effect, found.p) == (0.0, (0.0, 0.0), None, None)
    assert found.check_p == 1.0


@given(two_sides(), two_sides())
def test_another_dataset_changes_no_number_but_the_correction(
    sides: tuple[Scores, Scores], others: tuple[Scores, Scores]
) -> None:
    more = [make_result(arm, 0, rows[0], dataset="other") for arm, rows in zip("ab", others, strict=True)]
    alone, beside = compare(*sides), compare(*sides, *more)
    assert beside.difference.interval == alone.difference.interval
    for name in ("p", "check_p", "check_interval", "effect", "unfit", "holds_for"):
        assert getattr(beside, name) == getattr(alone, name)
