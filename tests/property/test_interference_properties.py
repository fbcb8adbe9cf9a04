from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support.results import make_result

from unimoe.analysis.across import compute_across, tir_across
from unimoe.analysis.compare import Results, compute_interference_metrics, compute_significance
from unimoe.analysis.crossed import crossed_interval
from unimoe.analysis.interference import Interference

Scores = NDArray[np.float64]


@st.composite
def two_arms(draw: st.DrawFn) -> tuple[Scores, Scores]:
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 8)))
    scores = arrays(np.float64, shape, elements=st.floats(0.01, 1.0))
    return draw(scores), draw(scores)


def measure(specialist: Scores, joint: Scores) -> Interference:
    items = [make_result("rank_only_r8", seed, row.tolist()) for seed, row in enumerate(specialist)]
    items += [make_result("joint_r8", seed, row.tolist()) for seed, row in enumerate(joint)]
    return compute_interference_metrics(Results(Path("outputs"), items)).measured[0]


def suite(specialist: Sequence[Scores], joint: Sequence[Scores]) -> Results:
    """One array per arm and dataset."""
    arms = {"rank_only_r8": specialist, "joint_r8": joint}
    return Results(
        Path("outputs"),
        [
            make_result(arm, seed, row.tolist(), dataset=f"set{i}")
            for arm, datasets in arms.items()
            for i, scores in enumerate(datasets)
            for seed, row in enumerate(scores)
        ],
    )


@given(two_arms(), st.floats(0.1, 1.0))
def test_tir_does_not_depend_on_the_scale(arms: tuple[Scores, Scores], scale: float) -> None:
    specialist, joint = arms
    plain, scaled = measure(specialist, joint), measure(scale * specialist, scale * joint)
    assert scaled.mean == pytest.approx(plain.mean, abs=1e-9)
    if plain.crossed is not None and scaled.crossed is not None:
        assert scaled.crossed.low == pytest.approx(plain.crossed.low, rel=1e-6, abs=1e-6)


@given(two_arms())
def test_arms_that_change_places_turn_the_ratio_round(arms: tuple[Scores, Scores]) -> None:
    turned, plain = crossed_interval(arms[1], arms[0]), crossed_interval(*arms)
    if plain is not None and turned is not None:
        assert turned.estimate == pytest.approx(-plain.estimate / (1.0 - plain.estimate))
    across = [tir_across([pair], np.ones((1, 1))) for pair in (arms, arms[::-1])]
    assert across[1] == pytest.approx(-across[0] / (1.0 - across[0]))


@given(two_arms(), st.integers(0, 2**32 - 1))
def test_the_order_of_queries_and_seeds_changes_nothing(arms: tuple[Scores, Scores], order: int) -> None:
    specialist, joint = arms
    rng = np.random.default_rng(order)
    rows, columns = rng.permutation(specialist.shape[0]), rng.permutation(specialist.shape[1])
    plain = crossed_interval(specialist, joint)
    mixed = crossed_interval(specialist[rows][:, columns], joint[rows][:, columns])
    assert (plain is None) == (mixed is None)
    if plain is not None and mixed is not None:
        assert mixed.estimate == pytest.approx(plain.estimate, abs=1e-9)
        assert mixed.standard_error == pytest.approx(plain.standard_error, abs=1e-6)
    fixed, again = measure(specialist, joint).fixed_queries, measure(specialist[rows], joint[rows]).fixed_queries
    assert (fixed is None) == (specialist.shape[0] == 1)
    if fixed is not None and again is not None:
        assert [again.low, again.high] == pytest.approx([fixed.low, fixed.high], abs=1e-6)


@given(two_arms())
def test_identical_arms_never_pass(arms: tuple[Scores, Scores]) -> None:
    found = measure(arms[0], arms[0])
    assert (found.mean, found.delta, found.rule) == (0.0, 0.0, "FAIL")
    for interval in (found.crossed, found.fixed_queries):
        assert interval is None or interval.label == "FAIL"
    across = compute_across(suite([arms[0], arms[1]], [arms[0], arms[1]]))[0]
    for estimate in (across.mean_of_tirs, across.tir_of_means):
        assert estimate.mean == pytest.approx(0.0, abs=1e-12)
        assert estimate.rule == "FAIL"
        assert estimate.label in (None, "FAIL")


@given(two_arms(), two_arms(), st.floats(0.1, 1.0))
def test_the_mean_of_tirs_does_not_depend_on_the_scale_of_one_dataset(
    first: tuple[Scores, Scores], second: tuple[Scores, Scores], scale: float
) -> None:
    plain, scaled = (
        compute_across(suite([first[0], factor * second[0]], [first[1], factor * second[1]])) for factor in (1.0, scale)
    )
    for one, other in zip(plain, scaled, strict=True):
        assert other.mean_of_tirs.mean == pytest.approx(one.mean_of_tirs.mean, abs=1e-9)


@given(two_arms())
def test_a_dataset_beside_itself_has_its_own_tir(arms: tuple[Scores, Scores]) -> None:
    alone = measure(*arms)
    (across,) = compute_across(suite([arms[0]] * 2, [arms[1]] * 2))
    for estimate in (across.mean_of_tirs, across.tir_of_means):
        assert estimate.per_seed == pytest.approx(alone.per_seed, abs=1e-9)


@given(two_arms())
def test_confidences_are_a_distribution_and_the_interval_holds_the_estimate(arms: tuple[Scores, Scores]) -> None:
    found = crossed_interval(*arms)
    if found is not None:
        assert sum(found.confidence.values()) == pytest.approx(1.0)
        assert all(-1e-12 <= held <= 1.0 for held in found.confidence.values())
        assert found.low <= found.estimate <= found.high
        assert 0.0 <= found.seed_share + found.query_share <= 1.0 + 1e-9


@given(two_arms())
def test_a_comparison_turned_round_has_the_opposite_numbers(arms: tuple[Scores, Scores]) -> None:
    first, second = (scores[0].tolist() for scores in arms)

    def compared(system: list[float], baseline: list[float]) -> Results:
        return Results(Path("outputs"), [make_result("zero_shot", None, baseline), make_result("joint_r8", 0, system)])

    (one,) = compute_significance(compared(first, second), iterations=200)
    (other,) = compute_significance(compared(second, first), iterations=200)
    assert other.delta == pytest.approx(-one.delta, abs=1e-12)
    assert [other.low, other.high] == pytest.approx([-one.high, -one.low], abs=1e-6)
    assert other.p == one.p
    assert (other.wins, other.ties, other.losses) == (one.losses, one.ties, one.wins)
