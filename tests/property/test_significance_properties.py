from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support.results import make_result

from unimoe.analysis.compare import Results, compute_significance
from unimoe.analysis.corrections import benjamini_hochberg, holm
from unimoe.analysis.resampling import bootstrap_means, sign_flip_p
from unimoe.analysis.significance import Comparison
from unimoe.results import EvalResult

Scores = NDArray[np.float64]

NUMBERS = ("low", "high", "p", "p_t", "p_max_t", "simultaneous_low", "simultaneous_high", "effect")


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[Scores, Scores]:
    """Scores of a system and a baseline; ties are common, as with cut-off metrics."""
    scores = arrays(np.float64, draw(st.integers(1, 30)), elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
    return draw(scores), draw(scores)


def compare(system: Scores, baseline: Scores, *extra: EvalResult, iterations: int = 100) -> Comparison:
    items = [make_result("zero_shot", None, baseline.tolist()), make_result("joint_r8", 0, system.tolist()), *extra]
    found = compute_significance(Results(Path("outputs"), items), iterations=iterations)
    return next(c for c in found if c.key == "reranking/apidocs")


@given(two_sides())
def test_turning_a_comparison_round_turns_its_signs_and_keeps_its_p_values(sides: tuple[Scores, Scores]) -> None:
    system, baseline = sides
    one, other = compare(system, baseline), compare(baseline, system)
    assert [other.delta, other.low, other.high] == pytest.approx([-one.delta, -one.high, -one.low], abs=1e-6)
    turned = [-one.simultaneous_high, -one.simultaneous_low]
    assert [other.simultaneous_low, other.simultaneous_high] == pytest.approx(turned, abs=1e-6)
    assert (other.p, other.p_t, other.p_max_t) == (one.p, one.p_t, one.p_max_t)
    assert (other.wins, other.ties, other.losses) == (one.losses, one.ties, one.wins)
    assert other.superiority == pytest.approx(1.0 - one.superiority)
    assert (other.effect is None) == (one.effect is None)


@given(two_sides())
def test_no_number_is_undefined_and_no_p_is_zero(sides: tuple[Scores, Scores]) -> None:
    found = compare(*sides)
    assert all(not math.isnan(value) for name in NUMBERS if (value := getattr(found, name)) is not None)
    assert all(0.0 < p <= 1.0 for p in (found.p, found.p_t, found.p_max_t, found.p_holm, found.p_bh))
    assert found.low <= found.high
    assert found.simultaneous_low <= found.delta <= found.simultaneous_high


@given(two_sides())
def test_identical_arms_differ_by_nothing(sides: tuple[Scores, Scores]) -> None:
    found = compare(sides[0], sides[0])
    ends = (found.low, found.high, found.simultaneous_low, found.simultaneous_high)
    assert (found.delta, ends, found.effect) == (0.0, (0.0,) * 4, None)
    assert {found.p, found.p_t, found.p_max_t} == {1.0}


@given(two_sides(), st.integers(0, 2**32 - 1))
def test_the_order_of_queries_changes_nothing_beyond_resampling_error(
    sides: tuple[Scores, Scores], order_seed: int
) -> None:
    order = np.random.default_rng(order_seed).permutation(len(sides[0]))
    mixed = sides[0][order], sides[1][order]
    one, other = compare(*sides, iterations=2_000), compare(*mixed, iterations=2_000)
    assert other.delta == pytest.approx(one.delta, abs=1e-12)
    assert other.p_t == pytest.approx(one.p_t, rel=1e-6)
    assert other.p == pytest.approx(one.p, abs=0.08)
    spread = 0.0 if one.effect is None else one.delta / one.effect if one.effect else 1.0
    assert other.low == pytest.approx(one.low, abs=0.4 * spread / math.sqrt(one.queries) + 1e-6)


@given(two_sides())
@settings(max_examples=30)
def test_more_resamples_move_p_within_its_error_only(sides: tuple[Scores, Scores]) -> None:
    few, many = compare(*sides, iterations=1_000), compare(*sides, iterations=8_000)
    error = math.sqrt(many.p * (1.0 - many.p) / 1_000)
    assert few.p == pytest.approx(many.p, abs=5 * error + 2e-3)


@given(two_sides(), two_sides())
def test_another_dataset_changes_no_number_but_the_corrections_over_datasets(
    sides: tuple[Scores, Scores], others: tuple[Scores, Scores]
) -> None:
    more = [
        make_result(name, seed, scores.tolist(), dataset="other")
        for (name, seed), scores in zip((("joint_r8", 0), ("zero_shot", None)), others, strict=True)
    ]
    alone, beside = compare(*sides), compare(*sides, *more)
    assert [getattr(beside, name) for name in NUMBERS] == [getattr(alone, name) for name in NUMBERS]


@given(st.integers(1, 70), st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_equal_seeds_draw_equal_bits_and_columns_share_their_draws(n: int, iterations: int, seed: int) -> None:
    values = np.random.default_rng(n).normal(size=(n, 2))
    for resampling in (bootstrap_means, sign_flip_p):
        first = resampling(values, iterations, seed)
        assert first.tobytes() == resampling(values, iterations, seed).tobytes()
        assert resampling(values[:, :1], iterations, seed) == pytest.approx(first[..., :1], abs=1e-5)


@given(st.lists(st.floats(1e-6, 1.0), max_size=20))
def test_corrections_only_raise_p_keep_its_order_and_bh_is_the_milder(p_values: list[float]) -> None:
    strict, mild = holm(p_values), benjamini_hochberg(p_values)
    for p, by_bh, by_holm in zip(p_values, mild, strict, strict=True):
        assert p <= by_bh * (1 + 1e-12)
        assert by_bh <= by_holm * (1 + 1e-12)
        assert by_holm <= 1.0
    order = np.argsort(p_values, kind="stable")
    for corrected in (strict, mild):
        assert (np.diff(np.array(corrected)[order]) >= -1e-15).all()
