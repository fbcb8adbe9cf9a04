"""Tables of results: scores, comparisons, gates, and before and after."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest
from support.gates import both
from support.results import make_result, simulate
from support.tables import row

from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.analysis.tables.comparisons import comparisons_table, print_before_after
from unimoe.analysis.tables.scores import by_dataset_table, generate_comparison_table, overview_table
from unimoe.results import EvalResult, by_query_id, write_result
from unimoe.results.folder import Results

N = 20
BASE = np.linspace(0.2, 0.6, N)


def of(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


def metrics_of(aggregate: dict[str, float], depth: int | None, dataset: str = "apidocs") -> EvalResult:
    result = make_result("joint_r8", 0, [0.5, 0.5], dataset=dataset, identity={"depth": depth})
    return result.model_copy(update={"aggregate": {"ndcg@10": 0.5, **aggregate}})


class TestMarks:
    """``t`` of 2.2 with 19 degrees of freedom is p .0403: significant alone, not as one of two."""

    def test_seeds_that_differ_more_than_the_arms_leave_no_mark(self) -> None:
        """Over queries alone the difference is certain; over seeds it is not."""
        noise = np.random.default_rng(1).normal(0.0, 0.01, (6, N))
        shifts = [0.06, -0.02, 0.02, -0.06, 0.02, 0.0]
        items = [make_result("x", s, BASE + 0.02 + shifts[s] + noise[s]) for s in range(3)]
        items += [make_result("y", s, BASE + shifts[3 + s] + noise[3 + s]) for s in range(3)]
        found = of(*items)
        (comparison,) = compare_arms(found, iterations=500)
        assert comparison.check_p
        assert comparison.check_p < 0.01
        table = generate_comparison_table(found, [comparison])
        assert [r[2].symbols for r in table.groups[0].rows] == ["", ""]
        assert "All tests hold for other seeds and queries." in table.notes


class TestMetrics:
    def test_recall_beyond_the_candidates_is_left_out_and_said(self) -> None:
        table = generate_comparison_table(of(metrics_of({"recall@100": 0.7, "recall@10": 0.7}, 10)))
        assert table.columns == ("System", "ndcg@10", "recall@10", "Seeds")
        assert "No Recall@100 on reranking/apidocs, whose candidates do not reach as deep." in table.notes


class TestOverview:
    def test_a_row_per_dataset_and_an_average_that_takes_cqadupstack_once(self) -> None:
        scores = {"cqadupstack-android": 0.2, "cqadupstack-english": 0.4, "scifact": 0.9}
        items = [make_result("bm25", None, [score], dataset=dataset) for dataset, score in scores.items()]
        items += [make_result("zero_shot", None, [0.1], dataset=dataset) for dataset in list(scores)[:2]]
        table = overview_table(of(*items))
        assert table.columns == ("Dataset", "Queries", "bm25", "zero_shot")
        assert [r[0].text for r in table.groups[0].rows] == [*scores, "average of 2"]
        assert row(table, "average of 2")["bm25"].value == pytest.approx(60.0)
        assert row(table, "average of 2")["zero_shot"].value is None  # it lacks a dataset
        assert "The forums of CQADupStack count together as one dataset in an average." in table.notes

    def test_columns_without_a_number_are_left_out(self) -> None:
        one = by_dataset_table(of(make_result("bm25", None, [0.5]), make_result("joint_r8", None, [0.6])))
        assert one.columns == ("System", "apidocs")
        mixed = [make_result("bm25", None, [0.5], dataset=d, metric=m) for d, m in (("x", "ndcg@10"), ("y", "map"))]
        table = by_dataset_table(of(*mixed))
        assert table.columns == ("System", "x", "y")
        assert [(group.heading, group.rows[0][1].text) for group in table.groups] == [
            ("reranking, nDCG@10", "50.00"),
            ("reranking, MAP", "–"),
        ]
        assert generate_comparison_table(of(*mixed[:1])).columns == ("System", "ndcg@10", "mrr@10")


QUERIES = 60


def three_arms(seeds: int = 2) -> Results:
    """Zero-shot far below a specialist, and a joint arm in between, on every query."""
    rng = np.random.default_rng(3)
    base = rng.uniform(0.2, 0.4, QUERIES)
    items = [make_result("zero_shot", None, base)]
    for seed in range(seeds):
        for arm, gain in (("rank_only_r8", 0.4), ("joint_r8", 0.2)):
            items.append(make_result(arm, seed, base + gain + rng.uniform(-0.05, 0.05, QUERIES)))
    return Results(Path("outputs"), items)


def compared(found: Results) -> tuple[Comparison, ...]:
    return compare_arms(found, iterations=200)


def test_csv_has_every_number_in_full() -> None:
    found = three_arms()
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
    base = rng.uniform(0.2, 0.6, QUERIES)
    items = [make_result("bm25", None, base)]
    items += [make_result("x", s, base + 0.012 + rng.normal(0.0, 0.05, QUERIES)) for s in range(3)]
    found = Results(Path("outputs"), items)
    cells = row(comparisons_table(found, compared(found)), "x − bm25")
    excludes_0 = cells["Low"].text[0] == cells["High"].text[0] != "0"
    assert (float(cells["p"].text.strip("<")) < 0.05) == excludes_0


def lossy(tir: float = 0.044, seeds: int = 3, queries: int = 60) -> Results:
    return both(*simulate(seeds, queries, tir, rng=np.random.default_rng(1)))


def with_recall(arm: str, scores: list[float], seed: int | None = None, dataset: str = "toy") -> EvalResult:
    identity = {"checkpoint": "none" if seed is None else "last"}
    result = make_result(arm, seed, scores, task="retrieval", dataset=dataset, identity=identity)
    recall = {query_id: min(1.0, 2 * score) for query_id, score in result.per_query.items()}
    mean = math.fsum(recall.values()) / len(recall)
    metrics = {
        "per_query_metrics": result.per_query_metrics | {"recall_of_retrieved@10": by_query_id(recall)},
        "aggregate": result.aggregate | {"recall_of_retrieved@10": mean},
    }
    return EvalResult.model_validate(result.model_dump() | metrics)


def test_prints_what_was_measured_and_names_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(tmp_path, with_recall("bm25", [0.2, 0.4], dataset="one"))
    for dataset in ("one", "two"):
        write_result(tmp_path, with_recall("minilm", [0.3, 0.4], dataset=dataset))
    print_before_after(tmp_path, "bm25", ["minilm"], ["retrieval/one", "retrieval/two"])
    printed = capsys.readouterr()
    assert "retrieval/one: minilm (after) against bm25 (before), 2 queries" in printed.out
    assert "retrieval/two:" not in printed.out
    assert "retrieval/two: no result of bm25 to compare with" in printed.err
    print_before_after(tmp_path, "minilm", ["minilm"], ["retrieval/one"])
    print_before_after(tmp_path, "bm25", ["minilm"], [])
    assert capsys.readouterr().out == ""


def test_two_later_arms_are_one_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for arm in ("bm25", "minilm", "minilm+bm25"):
        write_result(tmp_path, with_recall(arm, rng.uniform(size=30).tolist()))
    print_before_after(tmp_path, "bm25", ["minilm", "minilm+bm25"], ["retrieval/toy"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "; corrected by Holm for all 6 tests." in printed
    assert "All tests hold for other queries." in printed
