from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result
from support.tables import row, texts

from unimoe.analysis.comparisons import Comparison, before_after, compare_arms
from unimoe.analysis.tables.comparisons import before_after_table, comparisons_table
from unimoe.analysis.tables.scores import generate_comparison_table
from unimoe.results.folder import Results

N = 60


def results(seeds: int = 2) -> Results:
    """Zero-shot far below a specialist, and a joint arm in between, on every query."""
    rng = np.random.default_rng(3)
    base = rng.uniform(0.2, 0.4, N)
    items = [make_result("zero_shot", None, base)]
    for seed in range(seeds):
        for arm, gain in (("rank_only_r8", 0.4), ("joint_r8", 0.2)):
            items.append(make_result(arm, seed, base + gain + rng.uniform(-0.05, 0.05, N)))
    return Results(Path("outputs"), items)


def compared(found: Results) -> tuple[Comparison, ...]:
    return compare_arms(found, iterations=200)


def test_a_row_for_each_comparison_of_the_family() -> None:
    found = results()
    table = comparisons_table(found, compared(found))
    assert [group.heading for group in table.groups] == ["reranking/apidocs, nDCG@10 (60 queries)"]
    assert [r[0] for r in texts(table)] == [
        *("joint_r8 − zero_shot", "rank_only_r8 − zero_shot", "joint_r8 − rank_only_r8"),
    ]
    assert {r[1] for r in texts(table)} == {"seeds and queries"}
    assert table.to_rich().columns == (
        *("Comparison", "Holds for other", "Delta", "Low", "High", "p", "p (Holm)", "d", "W/T/L"),
    )
    assert row(table, "joint_r8 − rank_only_r8")["W/T/L"].text == "0/0/60"
    assert table.caption == (
        "Paired comparisons of systems: difference in points (score × 100) with its 95 % interval, p, and p "
        "corrected by Holm"
    )
    assert table.notes[:2] == (
        "p: two-sided t from the model of seeds and queries, below 0.05 exactly where the interval excludes 0; "
        "corrected by Holm for all 3 tests. The checks in the CSV file (bootstrap and sign flips over queries) take "
        "the runs as they are.",
        "d: mean over standard deviation of the differences by query. W/T/L: queries won, tied and lost.",
    )


def test_csv_has_every_number_in_full() -> None:
    found = results()
    outcomes = compared(found)
    c, table = outcomes[0], comparisons_table(found, outcomes)
    line = next(csv.DictReader(io.StringIO(table.to_csv())))
    interval = c.difference.interval
    assert interval
    assert [float(line[name]) for name in ("Delta", "Low", "High")] == [100 * c.delta, *(100 * end for end in interval)]
    assert [float(line[name]) for name in ("p", "p (Holm)", "Check: sign-flip p")] == [c.p, c.p_corrected, c.check_p]
    assert c.check_interval
    assert float(line["Check: bootstrap high"]) == 100 * c.check_interval[1]
    assert float(line["Degrees of freedom"]) == c.difference.degrees_of_freedom
    assert float(line["Standard error"]) == 100 * c.difference.standard_error
    assert [float(line["System mean"]), float(line["Baseline mean"])] == [100 * mean for mean in c.means]
    assert (line["Metric"], float(line["Superiority"])) == ("ndcg@10", c.superiority)
    assert "bootstrap low" not in table.to_markdown()


@pytest.mark.parametrize("seed", range(20))
def test_p_and_interval_are_on_one_side_as_shown(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.2, 0.6, N)
    items = [make_result("bm25", None, base)]
    items += [make_result("x", s, base + 0.012 + rng.normal(0.0, 0.05, N)) for s in range(3)]
    found = Results(Path("outputs"), items)
    cells = row(comparisons_table(found, compared(found)), "x − bm25")
    excludes_0 = cells["Low"].text[0] == cells["High"].text[0] != "0"
    assert (float(cells["p"].text.strip("<")) < 0.05) == excludes_0


def test_a_row_without_a_test_says_why() -> None:
    base = np.linspace(0.2, 0.6, N)
    moved = base.copy()
    moved[:3] += 0.1
    found = Results(Path("outputs"), [make_result("bm25", None, base), make_result("x", 0, moved)])
    table = comparisons_table(found, compared(found))
    cells = row(table, "x − bm25")
    assert {cells[name].text for name in ("Holds for other", "Low", "High", "p", "p (Holm)")} == {"–"}
    assert cells["Delta"].text == "+0.50"
    assert "No test of x − bm25 on reranking/apidocs: the systems differ on 3 of 60 queries." in table.notes
    assert "; not computed, since nothing can be tested." in table.notes[0]


def test_single_runs_beside_several_are_named() -> None:
    items = [r for r in results().results if (r.config_name, r.seed) != ("joint_r8", 1)]
    found = Results(Path("outputs"), items)
    table = comparisons_table(found, compared(found))
    assert [r[1] for r in texts(table)] == ["queries", "seeds and queries", "queries, seeds of one arm"]
    assert (
        "What tests hold for: other queries (1 test); other seeds and queries (1 test); other queries, seeds of one "
        "arm (1 test)." in table.notes
    )
    assert "One run of joint_r8: its tests take that run as it is." in table.notes


def test_two_seeds_say_that_they_fall_short() -> None:
    found = results()
    for table in (comparisons_table(found, compared(found)), generate_comparison_table(found, compared(found))):
        assert any(note.startswith("Two seeds of joint_r8, rank_only_r8: ") for note in table.notes)
    three = results(seeds=3)
    assert not any("Two seeds" in note for note in comparisons_table(three, compared(three)).notes)


def test_no_difference_is_printed_as_minus_zero() -> None:
    found = results()
    outcomes = [replace(c, effect=-0.001, check_interval=(-1e-9, 1e-9)) for c in compared(found)]
    text = comparisons_table(found, outcomes).to_markdown()
    assert "-0.00 " not in text
    assert "+0.00 " not in text


def test_before_and_after_has_a_row_for_each_metric() -> None:
    found = results()
    outcomes = before_after(found, "zero_shot", ["rank_only_r8"], keys=found.dataset_keys, iterations=100)
    table = before_after_table(found, outcomes)
    assert [g.heading for g in table.groups] == [
        "reranking/apidocs: rank_only_r8 (after) against zero_shot (before), 60 queries"
    ]
    assert [r[0] for r in texts(table)] == ["nDCG@10", "MRR@10"]
    cells = row(table, "nDCG@10")
    assert [cells["After"].value, cells["Before"].value] == [100 * mean for mean in outcomes[0].means]
    assert cells["Delta"].value == 100 * outcomes[0].delta
    assert cells["p (Holm)"].value == outcomes[0].p_corrected
    assert before_after_table(found, ()).groups == ()


def test_a_constant_difference_is_no_certainty() -> None:
    """Its variance is the rounding of the arms' own variances, and no test rests on that."""
    base = np.linspace(0.3, 0.7, N)
    items = [
        make_result(arm, seed, base + gain + 0.01 * seed, paired_seeds=True)
        for arm, gain in (("x", 0.0), ("y", -0.1))
        for seed in range(3)
    ]
    found = Results(Path("outputs"), items)
    table = comparisons_table(found, compared(found))
    assert row(table, "x − y")["p"].text == "–"
    assert any("nothing varies over seeds and queries" in note for note in table.notes)
