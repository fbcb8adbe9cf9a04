from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ttest_rel
from support.results import make_result
from support.tables import row, shown, texts

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import Question, compare_arms
from unimoe.analysis.tables.scores import by_dataset_table, generate_comparison_table, overview_table
from unimoe.results import EvalResult
from unimoe.results.folder import Results

N = 20
BASE = np.linspace(0.2, 0.6, N)


def results(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


def ahead(t: float, mean: float = 0.05) -> NDArray[np.float64]:
    """Scores that are ahead of ``BASE`` by ``mean``, with a paired t of ``t`` over 20 queries."""
    return np.asarray(BASE + mean + mean * np.sqrt(N - 1) / t * np.tile([1.0, -1.0], N // 2))


def metrics_of(aggregate: dict[str, float], depth: int | None, dataset: str = "apidocs") -> EvalResult:
    result = make_result("joint_r8", 0, [0.5, 0.5], dataset=dataset, identity={"depth": depth})
    return result.model_copy(update={"aggregate": {"ndcg@10": 0.5, **aggregate}})


class TestMarks:
    """``t`` of 2.2 with 19 degrees of freedom is p .0403: significant alone, not as one of two."""

    def systems(self, *ts: float, dataset: str = "apidocs") -> list[EvalResult]:
        items = [make_result("bm25", None, BASE, dataset=dataset)]
        return items + [make_result(f"s{i}", None, ahead(t), dataset=dataset) for i, t in enumerate(ts)]

    def against_bm25(self, found: Results) -> Sequence[Question]:
        return [
            Question(key, arm, "bm25")
            for key in found.dataset_keys
            for arm in found
            if arm != "bm25" and found.measured(key, arm)
        ]

    def test_the_letters_behind_a_score_name_the_arms_it_beats(self) -> None:
        found = results(*self.systems(2.2))
        (comparison,) = compare_arms(found, iterations=50)
        assert comparison.p == pytest.approx(ttest_rel(ahead(2.2), BASE).pvalue)
        table = generate_comparison_table(found, [comparison])
        assert table.columns[:3] == ("System", "#", "ndcg@10")
        assert [(r[0].text, r[1].text, r[2].symbols) for r in table.groups[0].rows] == [
            ("bm25", "a", ""),
            ("s0", "b", "a"),
        ]
        assert row(table, "s0")["mrr@10"].symbols == ""  # the main metric alone was compared
        assert table.notes[0] == (
            "Superscripts mark the systems that each row significantly outperforms (two-sided t from the model of "
            "seeds and queries, p corrected by Holm for the 1 test, level 0.05)."
        )
        assert table.notes[1] == "All tests hold for other queries."

    def test_a_second_row_takes_the_first_over_the_line(self) -> None:
        found = results(*self.systems(2.2, 2.19))
        table = generate_comparison_table(found, compare_arms(found, self.against_bm25(found), iterations=50))
        assert {r[2].symbols for r in table.groups[0].rows} == {""}
        assert table.notes[0].startswith("No system beats another significantly (")
        assert "for all 2 tests" in table.notes[0]

    def test_what_is_beaten_by_its_baseline_is_marked_there(self) -> None:
        found = results(make_result("bm25", None, ahead(9.0)), make_result("joint_r8", 0, BASE))
        table = generate_comparison_table(found, compare_arms(found, iterations=50))
        assert [r[2].symbols for r in table.groups[0].rows] == ["(b)", ""]
        assert table.notes[0].startswith("Superscripts mark")
        assert table.notes[1].startswith("A superscript in brackets holds for other queries alone")
        assert "One run of joint_r8: its tests take that run as it is." in table.notes

    def test_one_lettering_for_all_datasets_and_for_the_overview(self) -> None:
        found = results(
            *self.systems(9.0, dataset="one"),
            make_result("bm25", None, BASE, dataset="two"),
            make_result("s1", None, ahead(9.0), dataset="two"),
        )
        compared = compare_arms(found, self.against_bm25(found), iterations=50)
        table, overview = generate_comparison_table(found, compared), overview_table(found, compared)
        assert {(r[0].text, r[1].text) for g in table.groups for r in g.rows} == {
            ("bm25", "a"),
            ("s0", "b"),
            ("s1", "c"),
        }
        assert overview.columns == ("Dataset", "Queries", "bm25 (a)", "s0 (b)", "s1 (c)")
        assert row(overview, "one")["s0 (b)"].symbols == "a"
        assert row(overview, "two")["s1 (c)"].symbols == "a"
        assert overview.notes[0] == table.notes[0]

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

    def test_the_letter_after_z_is_aa(self) -> None:
        found = results(*self.systems(*[9.0] * 27))
        compared = compare_arms(found, [Question("reranking/apidocs", "s0", b) for b in ("bm25", "s9")], iterations=50)
        beaten = [replace(c, p_corrected=0.01, difference=replace(c.difference, value=0.1)) for c in compared]
        table = generate_comparison_table(found, beaten)
        letters = [r[1].text for r in table.groups[0].rows]
        assert (letters[0], letters[25:]) == ("a", ["z", "aa", "ab"])
        assert row(table, "s0")["ndcg@10"].symbols == "a,ab"

    def test_rows_without_a_test_are_named_and_count_in_no_family(self) -> None:
        same = make_result("s1", None, BASE)
        found = results(*self.systems(2.2), same)
        table = generate_comparison_table(found, compare_arms(found, self.against_bm25(found), iterations=50))
        assert row(table, "s0")["ndcg@10"].symbols == "a"
        assert "for the 1 test," in table.notes[0]
        assert "No test of s1 − bm25 on reranking/apidocs: the systems differ on 0 of 20 queries." in table.notes

    def test_each_metric_has_marks_of_its_own(self) -> None:
        """Halves of the scores have the same t; the marks of a metric say nothing of another."""
        found = results(*self.systems(9.0))
        table = generate_comparison_table(found, Analysis(found, iterations=10).tests)
        assert [(r[2].symbols, r[3].symbols) for r in table.groups[0].rows] == [("", ""), ("a", "a")]
        assert "p corrected by Holm for the 1 test of each metric" in table.notes[0]
        other = compare_arms(found, [Question("reranking/apidocs", "s0", "bm25", "mrr@10")], iterations=10)
        table = generate_comparison_table(found, other)
        assert [(r[2].symbols, r[3].symbols) for r in table.groups[0].rows] == [("", ""), ("", "a")]

    def test_without_comparisons_there_are_no_letters(self) -> None:
        table = generate_comparison_table(results(*self.systems(9.0)))
        assert "#" not in table.columns
        assert not any("significant" in note for note in table.notes)

    def test_every_form_raises_the_letters(self) -> None:
        found = results(*self.systems(9.0))
        table = generate_comparison_table(found, compare_arms(found, iterations=50))
        score = row(table, "s0")["ndcg@10"].text
        assert f"{score}ᵃ" in shown(table)
        assert f"**{score}**<sup>a</sup>" in table.to_markdown()
        assert '<sup class="symbols">a</sup>' in table.to_html()
        assert f"\\textbf{{{score}}} & ${{}}^{{a}}$" in table.to_latex()
        assert "ndcg@10 symbols" in table.to_csv().splitlines()[0]


class TestMetrics:
    def test_cutoffs_come_in_the_order_of_numbers(self) -> None:
        caps = {f"recall_cap@{k}": 0.5 for k in (1, 10, 5, 50)} | {"P(rel=2)@10": 0.5, "P(rel=2)@5": 0.5, "map": 0.5}
        table = generate_comparison_table(results(metrics_of(caps, None)))
        assert table.columns == (
            *("System", "ndcg@10", "map", "P(rel=2)@5", "P(rel=2)@10"),
            *("recall_cap@1", "recall_cap@5", "recall_cap@10", "recall_cap@50", "Seeds"),
        )

    def test_recall_beyond_the_candidates_is_left_out_and_said(self) -> None:
        table = generate_comparison_table(results(metrics_of({"recall@100": 0.7, "recall@10": 0.7}, 10)))
        assert table.columns == ("System", "ndcg@10", "recall@10", "Seeds")
        assert "No Recall@100 on reranking/apidocs, whose candidates do not reach as deep." in table.notes

    def test_where_one_dataset_is_deeper_the_others_have_a_dash(self) -> None:
        table = generate_comparison_table(
            results(metrics_of({"recall@100": 0.7}, 100, "deep"), metrics_of({"recall@100": 0.7}, 10, "shallow"))
        )
        assert [(r[0], r[2]) for r in texts(table)] == [("joint_r8", "70.00"), ("joint_r8", "–")]
        assert "No Recall@100 on reranking/shallow, whose candidates do not reach as deep." in table.notes

    def test_the_main_metric_stays_however_deep_it_looks(self) -> None:
        table = generate_comparison_table(results(make_result("bm25", None, [0.5], metric="recall@100")))
        assert row(table, "bm25")["recall@100"].text == "50.00"

    def test_a_relevance_level_above_one_is_named(self) -> None:
        items = [
            make_result("bm25", None, [0.5], dataset=name).model_copy(update={"relevance_level": level})
            for name, level in (("dl20", 2), ("scifact", 1))
        ]
        table, overview = generate_comparison_table(results(*items)), overview_table(results(*items))
        assert any(note.startswith("reranking/dl20: ") and "relevance level 2" in note for note in table.notes)
        assert not any("relevance level 1" in note for note in table.notes)
        assert "Relevance level 2: reranking/dl20." in overview.notes


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

    def test_no_average_mixes_main_metrics(self) -> None:
        items = [make_result("bm25", None, [0.5], dataset=name) for name in "ab"]
        items += [make_result("bm25", None, [0.9], dataset=name, metric="map") for name in "cd"]
        table = overview_table(results(*items))
        averages = {group.heading: group.rows[-1][2].value for group in table.groups}
        assert averages == {"reranking, nDCG@10": pytest.approx(50.0), "reranking, MAP": pytest.approx(90.0)}

    def test_the_best_of_each_row_is_marked(self) -> None:
        items = [
            make_result(arm, None, [score], dataset=name)
            for name in "ab"
            for arm, score in (("bm25", 0.5), ("zero_shot", 0.4))
        ]
        table = overview_table(results(*items))
        assert (row(table, "a")["bm25"].mark, row(table, "b")["zero_shot"].mark) == ("best", "second")

    def test_long_names_are_cut_and_explained(self) -> None:
        names = [f"/data/collections/of/this/machine/{name}" for name in ("one", "two")]
        table = overview_table(results(*(make_result("bm25", None, [0.5], dataset=name) for name in names)))
        short = [r[0].text for r in table.groups[0].rows[:2]]
        assert short == ["…collections/of/this/machine/one", "…collections/of/this/machine/two"]
        assert f"{short[0]}: {names[0]}" in table.notes
        assert names[0] in table.to_csv().splitlines()[1]
        assert f'title="{names[0]}"' in table.to_html()

    def test_datasets_may_be_columns(self) -> None:
        """The same numbers and marks as in the overview, systems in rows and the average last."""
        rng = np.random.default_rng(5)
        noise = {arm: rng.normal(gain, 0.02, (2, N)) for arm, gain in (("bm25", 0.0), ("s0", 0.1), ("s1", 0.12))}
        items = [
            make_result(arm, None, BASE + noise[arm][place], dataset=dataset)
            for place, dataset in enumerate(("one", "two"))
            for arm in noise
        ]
        found = results(*items, make_result("s2", None, BASE, dataset="one"))
        tests = Analysis(found, iterations=10).tests
        table, overview = by_dataset_table(found, tests), overview_table(found, tests)
        assert table.columns == ("System", "#", "one", "two", "Average")
        assert [r[:2] for r in texts(table)] == [["bm25", "a"], ["s0", "b"], ["s1", "c"], ["s2", "d"]]
        for place, system in enumerate(("bm25 (a)", "s0 (b)", "s1 (c)", "s2 (d)")):
            for column, dataset in (("one", "one"), ("two", "two"), ("Average", "average of 2")):
                assert table.groups[0].rows[place][table.columns.index(column)] == row(overview, dataset)[system]
        assert row(table, "s0")["Average"].symbols == "a"
        assert row(table, "s2")["Average"].value is None
        assert table.caption.startswith("nDCG@10 × 100 by dataset, mean over seeds: best of each column")

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

    def test_one_dataset_needs_no_overview(self) -> None:
        assert overview_table(results(make_result("bm25", None, [0.5]))).groups == ()
