from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support.gates import INTERFERENCE, scores_of
from support.results import make_result

from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.findings import Finding, find, region_of
from unimoe.analysis.gates.judging import judge_all
from unimoe.analysis.gates.registration import default_gates
from unimoe.results.folder import Results

Scores = NDArray[np.float64]
Arms = tuple[Scores, Scores]


numbers_of_runs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@st.composite
def two_arms(draw: st.DrawFn, rows: tuple[int, int] | None = None) -> Arms:
    """Scores of both arms, on the same queries, with numbers of runs of their own."""
    queries = draw(st.integers(1, 12))
    rows = rows or draw(numbers_of_runs)
    first, second = (
        draw(arrays(np.float64, (number, queries), elements=st.floats(0.01, 1.0).map(lambda x: round(x, 3))))
        for number in rows
    )
    return first, second


def gate_on(datasets: int = 1, **change: object) -> InterferenceGate:
    asked = INTERFERENCE | {"datasets": [f"set{i}" for i in range(datasets)]} | change
    return InterferenceGate.model_validate(asked)


def found(*datasets: Arms, paired: bool = False, **change: object) -> Finding:
    gate = gate_on(len(datasets), **change)
    runs = [len(rows) for rows in datasets[0]]
    both = paired and runs[0] == runs[1] > 1
    return find(gate, scores_of(gate, dict(zip(gate.datasets, datasets, strict=True)), paired=both))


def same(one: Finding, other: Finding) -> None:
    """Equal but for rounding; where nothing but rounding varies, whether there is an interval is a matter of it."""
    assert other.value == pytest.approx(one.value, abs=1e-9)
    if one.estimate.interval and other.estimate.interval and one.estimate.standard_error > 1e-6:
        assert other.estimate.interval == pytest.approx(one.estimate.interval, rel=1e-6, abs=1e-6)
        assert other.estimate.p == pytest.approx(one.estimate.p, rel=1e-6, abs=1e-9)


@given(two_arms(), st.integers(0, 2**32 - 1), st.booleans())
def test_the_order_of_queries_and_seeds_changes_nothing(arms: Arms, order: int, paired: bool) -> None:
    rng = np.random.default_rng(order)
    first, second = arms
    columns = rng.permutation(first.shape[1])
    rows = rng.permutation(len(first))
    others = rows if paired and len(first) == len(second) else rng.permutation(len(second))
    same(found(arms, paired=paired), found((first[rows][:, columns], second[others][:, columns]), paired=paired))


@given(two_arms(), st.floats(0.1, 1.0), st.booleans())
def test_tir_does_not_depend_on_the_scale(arms: Arms, scale: float, paired: bool) -> None:
    same(found(arms, paired=paired), found((scale * arms[0], scale * arms[1]), paired=paired))


@given(numbers_of_runs.flatmap(lambda rows: st.tuples(two_arms(rows), two_arms(rows))), st.floats(0.1, 1.0))
def test_the_mean_of_tirs_does_not_depend_on_the_scale_of_one_dataset(sets: tuple[Arms, Arms], scale: float) -> None:
    one, other = sets
    plain, scaled = found(one, other), found(one, (scale * other[0], scale * other[1]))
    assert scaled.value == pytest.approx(plain.value, abs=1e-9)


@given(two_arms())
def test_arms_that_change_places_turn_the_ratio_round(arms: Arms) -> None:
    plain, turned = found(arms), found(arms[::-1])
    assert turned.value == pytest.approx(-plain.value / (1.0 - plain.value))


@given(two_arms())
def test_a_dataset_beside_itself_has_its_own_tir(arms: Arms) -> None:
    for across in ("mean_of_tirs", "tir_of_means"):
        assert found(arms, arms, across=across).value == pytest.approx(found(arms).value, abs=1e-9)


@given(two_arms())
def test_identical_arms_never_pass(arms: Arms) -> None:
    for paired in (True, False):
        item = found((arms[0], arms[0]), paired=paired)
        assert (item.value, region_of(gate_on(), item.value)) == (0.0, "FAIL")
        assert item.label == "INCONCLUSIVE"  # no query differs


@given(two_arms(), st.booleans())
def test_confidences_are_a_distribution_and_the_interval_holds_the_estimate(arms: Arms, paired: bool) -> None:
    item = found(arms, paired=paired)
    assert set(item.confidence) in ({"PASS", "FAIL", "MARGINAL"}, set())
    if item.confidence:
        assert math.fsum(item.confidence.values()) == pytest.approx(1.0)
        assert all(-1e-12 <= held <= 1.0 for held in item.confidence.values())
        assert item.estimate.interval is not None
        low, high = item.estimate.interval
        assert low <= item.value + 1e-12
        assert item.value <= high + 1e-12
        assert 0.0 <= sum(item.estimate.terms.shares if item.estimate.terms else ()) <= 1.0 + 1e-9
    else:
        assert item.why
        assert item.label == "INCONCLUSIVE"


@given(two_arms(), st.booleans())
def test_p_below_five_percent_is_an_interval_without_zero(arms: Arms, paired: bool) -> None:
    estimate = found(arms, paired=paired).estimate
    if estimate.interval is not None and estimate.p is not None and abs(estimate.p - 0.05) > 1e-6:
        assert (estimate.p < 0.05) == (estimate.interval[0] > 0.0 or estimate.interval[1] < 0.0)


@given(two_arms(), st.integers(1, 9))
def test_another_dataset_with_one_seed_changes_no_row(arms: Arms, queries: int) -> None:
    items = [
        make_result(arm, seed, row, dataset="here")
        for arm, rows in zip(("rank_only_r8", "joint_r8"), arms, strict=True)
        for seed, row in enumerate(rows)
    ]
    more = [make_result(arm, 0, [0.5] * queries, dataset="there") for arm in ("rank_only_r8", "joint_r8")]
    alone, beside = (
        judge_all(results, default_gates(results))[0].rows  # type: ignore[union-attr]
        for results in (Results(Path("out"), items), Results(Path("out"), [*items, *more]))
    )
    assert beside[0].datasets == ("here",)
    for name in ("seeds", "value", "label", "confidence", "means", "by_seed", "why"):
        assert getattr(beside[0], name) == getattr(alone[0], name)
    assert beside[0].estimate.interval == alone[0].estimate.interval
