from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.results import make_result
from support.tables import row

from unimoe.analysis.comparisons import compare_arms
from unimoe.analysis.tables.scores import by_dataset_table, generate_comparison_table, overview_table
from unimoe.results import EvalResult
from unimoe.results.folder import Results

N = 20
BASE = np.linspace(0.2, 0.6, N)


def results(*items: EvalResult) -> Results:
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
        found = results(*items)
        (comparison,) = compare_arms(found, iterations=500)
        assert comparison.check_p
        assert comparison.check_p < 0.01
        table = generate_comparison_table(found, [comparison])
        assert [r[2].symbols for r in table.groups[0].rows] == ["", ""]
        assert "All tests hold for other seeds and queries." in table.notes


class TestMetrics:
    def test_recall_beyond_the_candidates_is_left_out_and_said(self) -> None:
        table = generate_comparison_table(results(metrics_of({"recall@100": 0.7, "recall@10": 0.7}, 10)))
        assert table.columns == ("System", "ndcg@10", "recall@10", "Seeds")
        assert "No Recall@100 on reranking/apidocs, whose candidates do not reach as deep." in table.notes


class TestOverview:
    def test_a_row_per_dataset_and_an_average_that_takes_cqadupstack_once(self) -> None:
        scores = {"cqadupstack-android": 0.2, "cqadupstack-english": 0.4, "scifact": 0.9}
        items = [make_result("bm25", None, [score], dataset=dataset) for dataset, score in scores.items()]
        items += [make_result("zero_shot", None, [0.1], dataset=dataset) for dataset in list(scores)[:2]]
        table = overview_table(results(*items))
        assert table.columns == ("Dataset", "Queries", "bm25", "zero_shot")
        assert [r[0].text for r in table.groups[0].rows] == [*scores, "average of 2"]
        assert row(table, "average of 2")["bm25"].value == pytest.approx(60.0)
        assert row(table, "average of 2")["zero_shot"].value is None  # it lacks a dataset
        assert "The forums of CQADupStack count together as one dataset in an average." in table.notes

    def test_columns_without_a_number_are_left_out(self) -> None:
        one = by_dataset_table(results(make_result("bm25", None, [0.5]), make_result("joint_r8", None, [0.6])))
        assert one.columns == ("System", "apidocs")
        mixed = [make_result("bm25", None, [0.5], dataset=d, metric=m) for d, m in (("x", "ndcg@10"), ("y", "map"))]
        table = by_dataset_table(results(*mixed))
        assert table.columns == ("System", "x", "y")
        assert [(group.heading, group.rows[0][1].text) for group in table.groups] == [
            ("reranking, nDCG@10", "50.00"),
            ("reranking, MAP", "–"),
        ]
        assert generate_comparison_table(results(*mixed[:1])).columns == ("System", "ndcg@10", "mrr@10")
