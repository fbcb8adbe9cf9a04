from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result
from support.tables import row, texts

from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.analysis.tables.comparisons import comparisons_table
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
