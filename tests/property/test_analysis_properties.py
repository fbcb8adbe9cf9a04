"""What holds for every judgment of two arms, by their TIR or by their difference, and for tables of any names."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support.results import INTERFERENCE, both, make_result, measured, results_of, scores_of

from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.analysis.formats import p_text, signed
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.findings import Finding, evaluate_gate, region_of
from unimoe.analysis.gates.judging import judge_all
from unimoe.analysis.gates.registration import default_gates
from unimoe.analysis.tables import Cell, RowGroup, Table, escape_latex
from unimoe.analysis.tables.cells import short_names
from unimoe.results import EvalResult

Scores = NDArray[np.float64]
Arms = tuple[Scores, Scores]

# Ties are common, as with cut-off metrics.
values = st.sampled_from([0.1, 0.25, 0.5, 1.0]) | st.floats(0.01, 1.0).map(lambda x: round(x, 3))
numbers_of_runs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@st.composite
def two_arms(draw: st.DrawFn, rows: tuple[int, int] | None = None) -> Arms:
    """Scores of both arms, on the same queries, with numbers of runs of their own."""
    queries = draw(st.integers(1, 12))
    first, second = (draw(arrays(np.float64, (n, queries), elements=values)) for n in rows or draw(numbers_of_runs))
    return first, second


def gate_on(datasets: int = 1, **change: object) -> InterferenceGate:
    asked = INTERFERENCE | {"datasets": [f"set{i}" for i in range(datasets)]} | change
    return InterferenceGate.model_validate(asked)


def found(*datasets: Arms, paired: bool = False, **change: object) -> Finding:
    gate = gate_on(len(datasets), **change)
    runs = [len(rows) for rows in datasets[0]]
    both = paired and runs[0] == runs[1] > 1
    return evaluate_gate(gate, scores_of(gate, dict(zip(gate.datasets, datasets, strict=True)), paired=both))


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
def test_tir_ignores_scale_and_copies_and_turns_round_with_its_arms(arms: Arms, scale: float, paired: bool) -> None:
    plain = found(arms, paired=paired)
    same(plain, found((scale * arms[0], scale * arms[1]), paired=paired))
    assert found(arms[::-1]).value == pytest.approx(-plain.value / (1.0 - plain.value))
    for across in ("mean_of_tirs", "tir_of_means"):
        assert found(arms, arms, across=across).value == pytest.approx(plain.value, abs=1e-9)


@given(numbers_of_runs.flatmap(lambda rows: st.tuples(two_arms(rows), two_arms(rows))), st.floats(0.1, 1.0))
def test_the_mean_of_tirs_does_not_depend_on_the_scale_of_one_dataset(sets: tuple[Arms, Arms], scale: float) -> None:
    one, other = sets
    plain, scaled = found(one, other), found(one, (scale * other[0], scale * other[1]))
    assert scaled.value == pytest.approx(plain.value, abs=1e-9)


@given(two_arms())
def test_identical_arms_differ_by_nothing_and_never_pass(arms: Arms) -> None:
    for paired in (True, False):
        item = found((arms[0], arms[0]), paired=paired)
        assert (item.value, region_of(gate_on(), item.value)) == (0.0, "FAIL")
        assert item.label == "INCONCLUSIVE"  # no query differs
    of_both = compare(arms[0], arms[0])
    assert (of_both.delta, of_both.check_interval, of_both.effect, of_both.p) == (0.0, (0.0, 0.0), None, None)
    assert of_both.check_p == 1.0


@given(two_arms(), st.booleans())
def test_confidences_are_at_most_certainty_and_the_interval_holds_the_estimate_and_agrees_with_p(
    arms: Arms, paired: bool
) -> None:
    item = found(arms, paired=paired)
    p, interval = item.estimate.p, item.estimate.interval
    if interval is not None and p is not None and abs(p - 0.05) > 1e-6:
        assert (p < 0.05) == (interval[0] > 0.0 or interval[1] < 0.0)
    assert set(item.confidence) in ({"PASS", "FAIL", "MARGINAL"}, set())
    if item.confidence:
        assert math.fsum(item.confidence.values()) <= 1.0 + 1e-12
        assert all(-1e-12 <= held <= 1.0 for held in item.confidence.values())
        assert interval is not None
        assert interval[0] - 1e-12 <= item.value <= interval[1] + 1e-12
        assert 0.0 <= sum(item.estimate.terms.shares if item.estimate.terms else ()) <= 1.0 + 1e-9
    else:
        assert item.why
        assert item.label == "INCONCLUSIVE"


@given(two_arms(), st.integers(1, 9))
def test_another_dataset_with_one_seed_changes_no_row(arms: Arms, queries: int) -> None:
    here = both(*arms, dataset="here").results
    there = both([[0.5] * queries], [[0.5] * queries], dataset="there").results
    alone, beside = (
        judge_all(results, default_gates(results))[0].rows  # type: ignore[union-attr]
        for results in (results_of(*here), results_of(*here, *there))
    )
    assert beside[0].datasets == ("here",)
    for name in ("seeds", "value", "label", "confidence", "means", "by_seed", "why"):
        assert getattr(beside[0], name) == getattr(alone[0], name)
    assert beside[0].estimate.interval == alone[0].estimate.interval


def compare(system: Scores, baseline: Scores, *extra: EvalResult) -> Comparison:
    items = *measured("a", baseline), *measured("b", system), *extra
    compared = compare_arms(results_of(*items), iterations=100)
    return next(one for one in compared if one.key == "reranking/apidocs")


@given(two_arms())
def test_swapping_arms_flips_signs_and_keeps_p(sides: Arms) -> None:
    one, other = compare(*sides), compare(*sides[::-1])
    assert other.delta == pytest.approx(-one.delta, abs=1e-12)
    assert (other.p is None, other.effect is None) == (one.p is None, one.effect is None)
    if one.p is not None and one.difference.interval and other.difference.interval:
        low, high = one.difference.interval
        assert other.difference.interval == pytest.approx((-high, -low), abs=1e-9)
        assert other.p == pytest.approx(one.p, rel=1e-6)
    assert one.check_interval
    assert other.check_interval == pytest.approx([-end for end in one.check_interval[::-1]], abs=1e-6)
    assert other.check_p == one.check_p
    assert (other.wins, other.ties, other.losses) == (one.losses, one.ties, one.wins)
    assert other.superiority == pytest.approx(1.0 - one.superiority)


@given(two_arms())
def test_no_number_is_undefined_and_no_p_is_zero(sides: Arms) -> None:
    one = compare(*sides)
    for p in (one.p, one.p_corrected, one.check_p):
        assert p is None or 0.0 < p <= 1.0
    assert (one.p is None) == (one.p_corrected is None) == bool(one.unfit)
    assert one.check_interval
    assert one.check_interval[0] <= one.check_interval[1]
    if one.p is not None and one.difference.interval and abs(one.p - 0.05) > 1e-6:
        low, high = one.difference.interval
        assert -math.inf < low < one.delta < high < math.inf
        assert (one.p < 0.05) == (low > 0.0 or high < 0.0)


@given(two_arms(), two_arms())
def test_another_dataset_changes_no_number_but_the_correction(sides: Arms, others: Arms) -> None:
    more = [make_result(arm, 0, rows[0], dataset="other") for arm, rows in zip("ab", others, strict=True)]
    alone, beside = compare(*sides), compare(*sides, *more)
    assert beside.difference.interval == alone.difference.interval
    for name in ("p", "check_p", "check_interval", "effect", "unfit", "holds_for"):
        assert getattr(beside, name) == getattr(alone, name)


# Whatever a dataset, an arm or a caveat is called, tables keep their shape and names stay names.
names = st.one_of(
    st.text(min_size=1, max_size=30),
    st.text(alphabet="\\{}$&%#_^~<>|\"'`[]*-+ a\x00\n\ud800中😀", min_size=1, max_size=30),
)


def table(names: list[str]) -> Table:
    rows = tuple((Cell(name), Cell("-1.00", value=-1.0), Cell(name)) for name in names)
    return Table("names", names[0], ("Name", names[-1], "Last"), (RowGroup(names[0], rows),), tuple(names))


@given(st.lists(names, min_size=2, max_size=4))
def test_names_add_no_element_to_html_and_no_cell_to_markdown_or_csv(drawn: list[str]) -> None:
    made, plain = table(drawn), table(["a"] * len(drawn))
    for mark in '<>"':
        assert made.to_html().count(mark) == plain.to_html().count(mark)
    lines = [line for line in made.to_markdown().split("\n") if line.startswith("|")]
    assert {line.count("|") for line in lines} == {4}
    rows = list(csv.reader(io.StringIO(made.to_csv())))
    assert [len(row) for row in rows] == [4] * (1 + len(drawn)) + [1] * len(drawn)


@given(names)
def test_latex_of_a_name_has_no_command_of_its_own(name: str) -> None:
    latex = escape_latex(name)
    latex.encode()
    rest = re.sub(r"\\(?:text[a-z]+|allowbreak|[SP])(?:\{\}|(?=\{))|\\[{}$&%#_]|\$-\$|\$\\[a-z]+\$", "", latex)
    assert not set(rest) & set('\\$&%#_^~<>|"`')
    assert rest.count("{") == rest.count("}")


@given(st.lists(st.text(alphabet="ab/", min_size=1, max_size=60), max_size=8), st.integers(8, 40))
def test_short_names_are_as_many_as_the_names(drawn: list[str], width: int) -> None:
    short = short_names(drawn, width)
    assert len(set(short.values())) == len(set(drawn))
    assert all(short[name] == name for name in drawn if len(name) <= width)


@given(st.floats(-100, 100), st.integers(0, 4))
def test_a_sign_is_true_and_zero_has_none(number: float, digits: int) -> None:
    text = signed(number, digits)
    assert float(text) == round(number, digits)
    assert (text[0] in "+-") == (float(text) != 0.0)


@given(st.one_of(st.floats(1e-4, 1), st.floats(0.0499, 0.0501)))
def test_a_p_value_as_text_is_significant_where_the_number_is(p: float) -> None:
    assert (float(p_text(p)) < 0.05) == (p < 0.05)
