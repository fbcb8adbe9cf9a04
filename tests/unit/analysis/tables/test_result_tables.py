"""Tables of results: scores, comparisons, gates, and before and after."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result
from support.tables import row

from unimoe.analysis.comparisons import compare_arms
from unimoe.analysis.tables.comparisons import comparisons_table, print_before_after
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table
from unimoe.results import EvalResult, write_result
from unimoe.results.folder import Results

QUERIES = 60


def of(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


def test_seeds_that_differ_more_than_the_arms_leave_no_mark() -> None:
    """Over queries alone the difference is certain; over seeds it is not."""
    base, noise = np.linspace(0.2, 0.6, 20), np.random.default_rng(1).normal(0.0, 0.01, (6, 20))
    shifts = [0.08, 0.0, 0.04, -0.06, 0.02, 0.0]
    items = [make_result("xy"[s // 3], s % 3, base + shifts[s] + noise[s]) for s in range(6)]
    found = of(*items)
    (comparison,) = compare_arms(found, iterations=500)
    assert (comparison.check_p or 1.0) < 0.01
    table = generate_comparison_table(found, [comparison])
    assert [r[2].symbols for r in table.groups[0].rows] == ["", ""]
    assert "All tests hold for other seeds and queries." in table.notes


def test_recall_beyond_the_candidates_is_left_out_and_said() -> None:
    result = make_result("joint_r8", 0, [0.5, 0.5], identity={"depth": 10})
    deep = {"aggregate": {"ndcg@10": 0.5, "recall@100": 0.7, "recall@10": 0.7}}
    table = generate_comparison_table(of(result.model_copy(update=deep)))
    assert table.columns == ("System", "ndcg@10", "recall@10", "Seeds")
    assert "No Recall@100 on reranking/apidocs, whose candidates do not reach as deep." in table.notes


def test_a_column_per_dataset_and_an_average_that_takes_cqadupstack_once() -> None:
    scores = {"cqadupstack-android": 0.2, "cqadupstack-english": 0.4, "scifact": 0.9}
    items = [make_result("bm25", None, [score], dataset=dataset) for dataset, score in scores.items()]
    items += [make_result("zero_shot", None, [0.1], dataset=dataset) for dataset in list(scores)[:2]]
    table = overview_table(of(*items))
    assert table.columns == ("System", *scores, "Average")
    assert row(table, "bm25")["Average"].value == pytest.approx(60.0)
    assert row(table, "zero_shot")["Average"].value is None  # it lacks a dataset
    assert "The forums of CQADupStack count together as one dataset in an average." in table.notes


def test_metrics_are_never_averaged_and_columns_without_a_number_are_left_out() -> None:
    places = (("x", "ndcg@10"), ("y", "map"), ("z", "map"))
    mixed = [make_result("bm25", None, [0.5], dataset=dataset, metric=metric) for dataset, metric in places]
    table = overview_table(of(*mixed))
    assert table.columns == ("System", "x", "y", "z", "Average")
    assert [(group.heading, [[cell.text for cell in cells] for cells in group.rows]) for group in table.groups] == [
        ("reranking, nDCG@10", [["bm25", "50.00", "–", "–", "–"]]),
        ("reranking, MAP", [["bm25", "–", "50.00", "50.00", "50.00"]]),
    ]
    assert overview_table(of(*mixed[:2])).groups == ()
    assert generate_comparison_table(of(*mixed[:1])).columns == ("System", "ndcg@10", "mrr@10")


def close_systems(seed: int) -> Results:
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.2, 0.6, QUERIES)
    runs = (make_result("x", s, base + 0.012 + rng.normal(0.0, 0.05, QUERIES)) for s in range(3))
    return of(make_result("bm25", None, base), *runs)


def test_csv_has_every_number_in_full() -> None:
    found = close_systems(0)
    (c,) = compare_arms(found, iterations=200)
    table = comparisons_table(found, [c])
    line = next(csv.DictReader(io.StringIO(table.to_csv())))
    (low, high), checked = c.difference.interval or (0.0, 0.0), c.check_interval or (0.0, 0.0)
    numbers = {
        "Delta": 100 * c.delta, "Low": 100 * low, "High": 100 * high, "p": c.p, "p (Holm)": c.p_corrected,
        "Check: sign-flip p": c.check_p, "Check: bootstrap high": 100 * checked[1],
        "Degrees of freedom": c.difference.degrees_of_freedom, "Standard error": 100 * c.difference.standard_error,
        "System mean": 100 * c.means[0], "Baseline mean": 100 * c.means[1], "Superiority": c.superiority,
        "Relative (%)": pytest.approx(100 * c.delta / c.means[1]),
    }  # fmt: skip
    assert {name: float(line[name]) for name in numbers} == numbers
    assert line["Metric"] == "ndcg@10"
    assert "bootstrap low" not in table.to_markdown()


@pytest.mark.parametrize("seed", range(20))
def test_p_and_interval_are_on_one_side_as_shown(seed: int) -> None:
    found = close_systems(seed)
    cells = row(comparisons_table(found, compare_arms(found, iterations=200)), "x − bm25")
    excludes_0 = cells["Low"].text[0] == cells["High"].text[0] != "0"
    assert (float(cells["p"].text.strip("<")) < 0.05) == excludes_0


class TestBeforeAndAfter:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        rng = np.random.default_rng(0)
        for arm in ("bm25", "minilm", "minilm+bm25"):
            identity = {"checkpoint": "none"}
            write_result(tmp_path, make_result(arm, None, rng.uniform(size=30), dataset="one", identity=identity))
        write_result(tmp_path, make_result("minilm", None, [0.5] * 9, dataset="two", identity=identity))
        return tmp_path

    def test_prints_what_was_measured_and_names_what_was_not(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        print_before_after(folder, "bm25", ["minilm"], ["reranking/one", "reranking/two"])
        printed = capsys.readouterr()
        assert "reranking/one: minilm (after) against bm25 (before), 30 queries" in printed.out
        assert "reranking/two:" not in printed.out
        assert "reranking/two: no result of bm25 to compare with" in printed.err
        print_before_after(folder, "minilm", ["minilm"], ["reranking/one"])
        print_before_after(folder, "bm25", ["minilm"], [])
        assert capsys.readouterr().out == ""

    def test_two_later_arms_and_all_metrics_are_one_family(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        print_before_after(folder, "bm25", ["minilm", "minilm+bm25"], ["reranking/one"])
        printed = " ".join(capsys.readouterr().out.split())
        assert "; corrected by Holm for all 4 tests." in printed
        assert "All tests hold for other queries." in printed
