from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result

from unimoe.analysis.compare import (
    Results,
    compute_interference_metrics,
    compute_significance,
    generate_comparison_table,
)
from unimoe.analysis.significance import Comparison
from unimoe.analysis.summaries import overview_table, significance_by_seed_table, significance_table, tir_table
from unimoe.analysis.tables import Cell, Table

QUERIES = 60


def results(datasets: tuple[str, ...] = ("apidocs",), seeds: int = 2) -> Results:
    """Zero-shot far below a specialist, and a joint arm in between, on every query."""
    rng = np.random.default_rng(3)
    items = []
    for dataset in datasets:
        base = rng.uniform(0.2, 0.4, QUERIES)
        items.append(make_result("zero_shot", None, base.tolist(), dataset=dataset))
        items.append(make_result("bm25", None, base.tolist(), dataset=dataset))
        for seed in range(seeds):
            for arm, gain in (("rank_only_r8", 0.4), ("joint_r8", 0.2)):
                scores = base + gain + rng.uniform(-0.05, 0.05, QUERIES)
                items.append(make_result(arm, seed, scores.tolist(), dataset=dataset))
    return Results(Path("outputs"), items)


def compared(of: Results) -> tuple[Comparison, ...]:
    return compute_significance(of, iterations=500)


def row(table: Table, name: str) -> dict[str, Cell]:
    found = next(r for group in table.groups for r in group.rows if r[0].text == name)
    return dict(zip(table.columns, found, strict=True))


@pytest.mark.parametrize("seeds", [1, 2])
def test_symbols_stand_at_the_main_metric_only_and_are_explained(seeds: int) -> None:
    measured = results(seeds=seeds)
    table = generate_comparison_table(measured, compared(measured))
    assert row(table, "rank_only_r8")["ndcg@10"].symbols == "†"
    assert row(table, "joint_r8")["ndcg@10"].symbols == "†§"
    assert {row(table, arm)["mrr@10"].symbols for arm in ("bm25", "zero_shot", "joint_r8")} == {""}
    assert table.notes[0].startswith("Significance: † better than zero_shot, § worse than its specialist;")
    assert "alpha = 0.05" in table.notes[0]


def test_without_comparisons_no_symbol_and_no_note_stand() -> None:
    table = generate_comparison_table(results())
    assert row(table, "joint_r8")["ndcg@10"].symbols == ""
    assert not any("Significance" in note or "significantly" in note for note in table.notes)


def test_symbols_follow_the_corrected_p_and_the_direction() -> None:
    measured = results()
    outcomes = compared(measured)
    unsure = [replace(c, p_holm=0.06) for c in outcomes]
    assert row(generate_comparison_table(measured, unsure), "joint_r8")["ndcg@10"].symbols == ""
    assert generate_comparison_table(measured, unsure).notes[0].startswith("No arm differs significantly")
    turned = [replace(c, delta=-c.delta) for c in outcomes]
    assert row(generate_comparison_table(measured, turned), "joint_r8")["ndcg@10"].symbols == "¶‡"


def test_overview_has_a_row_per_dataset_and_an_average_that_takes_cqadupstack_once() -> None:
    scores = {"cqadupstack-android": 0.2, "cqadupstack-english": 0.4, "scifact": 0.9}
    items = [make_result("bm25", None, [score], dataset=dataset) for dataset, score in scores.items()]
    items += [make_result("zero_shot", None, [0.1], dataset=dataset) for dataset in list(scores)[:2]]
    table = overview_table(Results(Path("outputs"), items))
    assert table.columns == ("Dataset", "Queries", "bm25", "zero_shot")
    assert [r[0].text for r in table.groups[0].rows] == [*scores, "average of 2"]
    assert row(table, "average of 2")["bm25"].value == pytest.approx(60.0)
    assert row(table, "average of 2")["zero_shot"].value is None  # it lacks a dataset
    assert "The forums of CQADupStack enter an average as one dataset." in table.notes


def test_overview_never_averages_over_different_main_metrics() -> None:
    items = [make_result("bm25", None, [0.5], dataset=name) for name in "ab"]
    items += [make_result("bm25", None, [0.9], dataset=name, metric="map") for name in "cd"]
    table = overview_table(Results(Path("outputs"), items))
    averages = {group.heading: group.rows[-1][2].value for group in table.groups}
    assert averages == {"reranking, ndcg@10": pytest.approx(50.0), "reranking, map": pytest.approx(90.0)}


def test_overview_marks_the_best_of_each_row_and_significance() -> None:
    measured = results(("a", "b"))
    table = overview_table(measured, compared(measured))
    assert row(table, "a")["rank_only_r8"].mark == "best"
    assert row(table, "b")["joint_r8"].mark == "second"
    assert row(table, "b")["joint_r8"].symbols == "†§"


def test_one_dataset_needs_no_overview() -> None:
    assert overview_table(results()).groups == ()


def test_tir_has_a_row_per_dataset_with_interval_and_both_labels() -> None:
    measured = results(("a", "b"))
    metrics = compute_interference_metrics(measured)
    table = tir_table(measured, metrics)
    assert table.groups[0].heading == "reranking: joint_r8 against rank_only_r8 (2 seeds)"
    cells, item = row(table, "a"), metrics.measured[0]
    assert cells["Delta"].value == pytest.approx(100 * item.delta)
    assert cells["TIR (%)"].value == pytest.approx(100 * item.mean)
    assert cells["Rule"].text == "PASS"
    assert item.crossed is not None
    assert [cells["Low"].value, cells["High"].value] == [100 * item.crossed.low, 100 * item.crossed.high]
    assert cells["Verdict"].text == item.crossed.label


def test_tir_of_one_seed_has_no_interval_and_no_verdict() -> None:
    measured = results(seeds=1)
    cells = row(tir_table(measured, compute_interference_metrics(measured)), "apidocs")
    assert {cells[name].text for name in ("Low", "High", "Verdict")} == {"–"}


def test_averages_and_single_seeds_stand_in_tables_of_their_own() -> None:
    measured = results()
    outcomes = compared(measured)
    averaged, by_seed = significance_table(measured, outcomes), significance_by_seed_table(measured, outcomes)
    assert sum(len(g.rows) for g in averaged.groups) + sum(len(g.rows) for g in by_seed.groups) == len(outcomes)
    assert {r[1].text for g in by_seed.groups for r in g.rows} == {"0", "1"}
    alone = results(seeds=1)
    assert significance_by_seed_table(alone, compared(alone)).groups == ()


def test_csv_of_comparisons_has_every_interval_and_p_in_full() -> None:
    measured = results()
    outcome = next(c for c in compared(measured) if c.seed is None)
    table = significance_table(measured, compared(measured))
    line = next(csv.DictReader(io.StringIO(table.to_csv())))
    assert line["Comparison"] == f"{outcome.system} − {outcome.baseline}"
    assert float(line["Low"]) == 100 * outcome.simultaneous_low
    assert float(line["Bootstrap high"]) == 100 * outcome.high
    assert [float(line[name]) for name in ("p", "Holm", "p t-test", "p Benjamini-Hochberg", "p max-T")] == [
        *(outcome.p, outcome.p_holm, outcome.p_t, outcome.p_bh, outcome.p_max_t)
    ]
    assert "Bootstrap" not in table.to_markdown()


def test_an_interval_without_an_end_says_so() -> None:
    measured = results()
    endless = replace(compared(measured)[0], simultaneous_low=-np.inf, simultaneous_high=np.inf)
    table = significance_table(measured, [endless])
    assert [cell.text for cell in table.groups[0].rows[0][3:5]] == ["-∞", "+∞"]
    assert r"$-$$\infty$" in table.to_latex()
