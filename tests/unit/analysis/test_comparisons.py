"""Arms are compared as asked and corrected by family; tables show comparisons, scores and MTEB's tasks."""

from __future__ import annotations

import csv
import io
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from support.results import make_result, measured, results_of, without_queries

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import compute_interference_metrics, generate_comparison_table
from unimoe.analysis.comparisons import Comparison, Question, compare_arms, questions_of
from unimoe.analysis.gates.definitions import DifferenceGate
from unimoe.analysis.gates.findings import evaluate_gate
from unimoe.analysis.gates.scores import collect
from unimoe.analysis.saved_comparison import Correction, TestFamily, save_comparison
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.analysis.tables.cells import short_names
from unimoe.analysis.tables.comparisons import comparisons_table, print_compared
from unimoe.analysis.tables.mteb import mteb_table, mteb_tasks_table
from unimoe.analysis.tables.scores import overview_table
from unimoe.core.errors import DataError, UsageError
from unimoe.results import EvalResult, write_result
from unimoe.results.clusters import Clusters
from unimoe.results.folder import Results


def two(system: list[float], baseline: list[float]) -> Comparison:
    items = make_result("zero_shot", None, baseline), make_result("joint_r8", None, system)
    return compare_arms(results_of(*items), iterations=200)[0]


def test_many_systems_are_compared_with_the_baseline_alone() -> None:
    names = ["bm25", *(f"system{i}" for i in range(12))]
    asked = questions_of(results_of(*(make_result(name, None, [0.5] * 9) for name in names)))
    assert [(q.system, q.baseline) for q in asked] == [(name, "bm25") for name in sorted(names[1:])]


@pytest.mark.parametrize("drawn", ["queries", "clusters"])
def test_every_pair_of_many_systems_is_what_it_is_alone(drawn: str) -> None:
    """All pairs share a column a system: exact where two differ little, are equal, or have other runs in each pair."""
    rng = np.random.default_rng(7)
    hard, (far, *noise) = rng.random(60), rng.normal(0.0, 0.1, (5, 60))
    near = hard.copy()
    near[:7] += 1e-3
    of_system = {"near": [near], "far": [hard + far], "equal": [hard * 3.0 / 3.0], "hard": [hard]}
    of_system |= {f"other{i}": [hard + n] for i, n in enumerate(rng.normal(0.0, 0.1, (4, 60)))}
    of_system |= {"two": [hard + n for n in noise[:2]], "three": [hard - n for n in noise[1:]]}
    items = [
        make_result(name, seed if len(runs) > 1 else None, scores, paired_seeds=True)
        for name, runs in of_system.items()
        for seed, scores in enumerate(runs)
    ]
    clusters = Clusters("given", {f"q{i:03d}": f"c{i // 3}" for i in range(60)}) if drawn == "clusters" else None
    results = Results(Path("out"), items, clusters=clusters)
    asked = [Question("reranking/apidocs", *pair) for pair in combinations(of_system, 2)]
    together = compare_arms(results, asked, iterations=999, correction="none")
    for one, question in zip(together, asked, strict=True):
        (alone,) = compare_arms(results, [question], iterations=999, correction="none")
        assert one.check_p == alone.check_p
        assert one.check_interval == pytest.approx(alone.check_interval, abs=1e-6)
        for name in ("p", "runs", "means", "wins", "ties", "losses", "unfit"):
            assert getattr(one, name) == getattr(alone, name)
    equal = together[asked.index(Question("reranking/apidocs", "equal", "hard"))]
    assert (equal.check_interval, equal.check_p) == ((0.0, 0.0), 1.0)


class TestRows:
    def test_wins_superiority_and_effect_worked_by_hand(self) -> None:
        found = two([0.3, 0.4, 0.4, 0.4, 0.5, 0.6, 0.2, 0.1], [0.2, 0.4, 0.6, 0.0, 0.4, 0.5, 0.1, 0.0])
        assert (found.queries, found.wins, found.ties, found.losses) == (8, 6, 1, 1)
        assert found.means == pytest.approx((0.3625, 0.275))
        assert found.delta == pytest.approx(0.0875)
        assert found.superiority == pytest.approx(6.5 / 8)
        gaps = np.array([0.1, 0.0, -0.2, 0.4, 0.1, 0.1, 0.1, 0.1])
        assert found.effect == pytest.approx(gaps.mean() / gaps.std(ddof=1))

    def test_a_run_without_a_seed_counts_beside_those_with_one(self) -> None:
        """The test took that run alone, beside a mean of all three in the table."""
        rng = np.random.default_rng(6)
        scores = rng.random((4, 20))
        items = [make_result("joint_r8", seed, scores[i]) for i, seed in enumerate((None, 0, 1))]
        (found,) = compare_arms(results_of(*items, make_result("zero_shot", None, scores[3])), iterations=200)
        assert (found.runs, found.left_out) == ((3, 1), ())
        assert found.means == pytest.approx((scores[:3].mean(), scores[3].mean()))

    def test_declared_pairs_take_the_seeds_of_both_arms_as_a_gate_does(self) -> None:
        """The table tested four seeds against three without pairs, beside a gate on the three pairs."""
        rng = np.random.default_rng(5)
        luck, base = rng.normal(0.0, 0.03, (4, 1)), rng.normal(0.5, 0.1, 100)
        system, baseline = (base + gap + luck + rng.normal(0.0, 0.02, (4, 100)) for gap in (-0.02, 0.0))
        items = measured("joint_r8", system[:3], paired_seeds=True)
        found = results_of(*items, *measured("rank_only_r8", baseline, paired_seeds=True))
        (row,), (judgment,) = compare_arms(found, iterations=50), compute_interference_metrics(found)
        assert (row.runs, row.left_out) == ((3, 3), ("rank_only_r8 seed 3",))
        assert row.p == pytest.approx(judgment.found.estimate.p)
        assert row.delta == pytest.approx(judgment.found.means[1] - judgment.found.means[0])
        said = "joint_r8 − rank_only_r8 on reranking/apidocs, since seeds pair and the other system lacks the seed"
        assert any(said in note for note in comparisons_table(found, [row]).notes)

    def test_what_cannot_be_computed_is_refused(self) -> None:
        found = results_of(make_result("a", None, [0.5] * 9), make_result("b", None, [0.5] * 9))
        with pytest.raises(UsageError, match="iterations 0"):
            compare_arms(found, iterations=0)
        with pytest.raises(DataError, match="no per-query 'recall@5'"):
            compare_arms(found, [Question("reranking/apidocs", "a", "b", "recall@5")])


def three_on_two(folder: Path = Path("outputs")) -> tuple[Results, list[Question]]:
    """Two systems and a baseline on two datasets: six rows of each metric, three of each average."""
    rng = np.random.default_rng(8)
    items = []
    for dataset in ("x", "y"):
        base = rng.uniform(0.2, 0.6, 30)
        for arm, gain in (("a", 0.0), ("b", 0.03), ("c", 0.05)):
            items.append(make_result(arm, 0, base + gain + rng.normal(0.0, 0.1, 30), dataset=dataset))
    pairs = [("b", "a"), ("c", "a"), ("c", "b")]
    return Results(folder, items), [Question(f"reranking/{key}", *pair) for key in ("x", "y") for pair in pairs]


class TestCorrections:
    def found(self, correction: Correction = "holm", family: TestFamily = "table") -> tuple[Comparison, ...]:
        held, asked = three_on_two()
        return Analysis(held, questions=asked, iterations=10, correction=correction, family=family).all_comparisons

    def test_metrics_and_averages_are_families_of_their_own_by_table_dataset_or_baseline(self) -> None:
        found = self.found()
        assert [(c.key, c.metric, c.main) for c in found[::3]] == [
            (f"reranking/{place}", metric, metric == "ndcg@10")
            for metric in ("ndcg@10", "mrr@10")
            for place in ("x", "y", "average of 2")
        ]
        assert [c.tests for c in found] == ([6] * 6 + [3] * 3) * 2
        for rows in (found[:6], found[6:9], found[9:15], found[15:]):
            assert [c.p_corrected for c in rows] == holm([c.p or 0.0 for c in rows])
        assert [c.tests for c in self.found(family="dataset")] == [3] * 18
        assert [c.tests for c in self.found(family="baseline")] == [c.tests for c in found]

    def test_other_corrections_are_those_of_their_definitions(self) -> None:
        def corrected(correction: Correction) -> list[float | None]:
            return [c.p_corrected for c in self.found(correction)[:6]]

        p = np.array([c.p for c in self.found()[:6]])
        assert corrected("bh") == pytest.approx(scipy.stats.false_discovery_control(p))
        assert corrected("bonferroni") == pytest.approx(np.minimum(1.0, 6 * p))
        assert corrected("none") == pytest.approx(p)

    def test_a_metric_that_looks_deeper_than_the_candidates_is_not_tested(self) -> None:
        items = [make_result(arm, 0, [0.1 * n for n in range(9)], identity={"depth": 5}) for arm in ("a", "b")]
        assert [c.metric for c in Analysis(results_of(*items), iterations=10).all_comparisons] == ["ndcg@10"]

    def test_an_analysis_of_the_folder_corrects_as_the_saved_comparison_does(self, tmp_path: Path) -> None:
        held, asked = three_on_two(tmp_path)
        tests = [(q.key, q.system, q.baseline) for q in asked[:2]]
        save_comparison(held, None, tests, overwrite=False, correction="bh", family="dataset")
        analysis = Analysis(held, iterations=10)
        assert analysis.questions == tuple(asked[:2])
        assert {(c.correction, c.family) for c in analysis.all_comparisons} == {("bh", "dataset")}


class TestAverages:
    """Runs are matched across datasets by their names; what is not on all datasets takes no part."""

    def average(self, held: dict[str, dict[str, list[int]]]) -> Comparison:
        """Return ``a - b`` on average, where each system has these seeds on each dataset."""
        rng = np.random.default_rng(1)
        items = [
            make_result(arm, seed, rng.uniform(0.2, 0.6, 20) + 0.05 * (arm == "b"), dataset=d)
            for arm, by_dataset in held.items()
            for d, seeds in by_dataset.items()
            for seed in seeds
        ]
        return next(c for c in Analysis(results_of(*items), iterations=10).comparisons if c.parts)

    def test_runs_are_those_on_every_dataset(self) -> None:
        b: dict[str, list[int]]
        for b, runs, left_out in (
            ({"x": [0, 1, 2], "y": [0, 1, 2]}, 3, ()),
            ({"x": [0, 1, 2], "y": [1, 2, 3]}, 2, ("b seed 0", "b seed 3")),
            ({"x": [0, 1], "y": [2, 3, 4]}, 2, ()),
            ({"x": [0], "y": [1]}, 1, ()),
        ):
            found = self.average({"a": {"x": [0, 1], "y": [0, 1]}, "b": b})
            assert (found.system, found.baseline, found.runs, found.left_out) == ("a", "b", (2, runs), left_out)
            assert found.p is not None
            assert found.holds_for == ("seeds and queries" if runs > 1 else "queries, seeds of one arm")
            assert (found.effect, found.check_interval, found.check_p) == (None, None, None)

    def test_runs_of_which_some_are_on_several_datasets_have_no_test(self) -> None:
        found = self.average({"a": {d: [0] for d in "xyz"}, "b": {"x": [0, 1], "y": [1, 2], "z": [0, 2]}})
        assert (found.p, found.unfit) == (None, "no run of b is on every dataset, and some are on several")

    @pytest.mark.parametrize(
        ("paired", "step", "bare"), [(False, 0, ""), (True, 0, ""), (True, 3, ""), (False, 3, "scifact")]
    )
    def test_it_is_what_a_gate_over_the_datasets_finds(self, paired: bool, step: int, bare: str) -> None:
        """Pairs of runs that differ by dataset were no pairs here; an arm without seeds on one dataset ended a gate."""
        rng = np.random.default_rng(3)
        items = [
            make_result(arm, seed, rng.uniform(0.2, 0.6, 40), dataset=dataset, paired_seeds=paired)
            for arm in ("a", "b")
            for place, dataset in enumerate(("cqadupstack-android", "cqadupstack-english", "scifact"))
            for seed in ((None,) if (arm, dataset) == ("a", bare) else range(place * step, place * step + 3))
        ]
        held = results_of(*items)
        (c,) = [c for c in Analysis(held, iterations=10).comparisons if c.parts]
        gate = DifferenceGate(
            kind="superiority", task="reranking", datasets=[key.partition("/")[2] for key in c.parts],
            metric="ndcg@10", system=c.system, baseline=c.baseline, margin=0.0,
        )  # fmt: skip
        finding = evaluate_gate(gate, collect(held, gate))
        assert c.key == "reranking/average of 2"
        assert c.delta == pytest.approx(finding.value)
        assert c.difference.interval == pytest.approx(finding.estimate.interval)


class TestLatex:
    def test_has_bold_best_underlined_second_and_subscript_std(self) -> None:
        arms = (("bm25", None, 0.5), ("joint_r8", 0, 0.6), ("joint_r8", 1, 0.8), ("rank_only_r8", 0, 0.75))
        rows = [make_result(arm, seed, [score]) for arm, seed, score in arms]
        latex = generate_comparison_table(results_of(*rows)).to_latex()
        assert r"rank\_only\_r8 & \textbf{75.00} &" in latex
        assert r"joint\_r8 & \underline{70.00} & $_{\pm 14.14}$ &" in latex
        assert r"r@{}l" in latex  # what stands behind a number does not move its decimals

    def test_a_group_longer_than_a_page_is_cut_and_latex_holds_few_pages_back(self) -> None:
        rows = tuple((Cell(f"row {i}"), Cell("1.00", value=1.0)) for i in range(1000))
        latex = Table("long", "Long", ("Name", "Value"), (RowGroup("all", rows),)).to_latex()
        assert latex.count(r"\begin{table}") == latex.count(r"\emph{all}") == 25
        assert [latex.count(f"row {i} &") for i in range(1000)] == [1] * 1000
        assert max(part.count(r"\begin{table}") for part in latex.split(r"\clearpage")) == 10


@pytest.mark.parametrize(("value", "text"), [(-0.001, "-0.001"), (0.0, "0.00"), (-0.0, "0.00"), (1e-12, "0.00000000")])
def test_the_end_of_an_interval_stays_on_its_side_of_zero(value: float, text: str) -> None:
    assert Cell.signed(value, keep_side=True).text == text


def test_long_names_lose_what_they_share() -> None:
    cut = short_names(["scifact-with-bm25-test", "nfcorpus-with-bm25-test"], 12)
    assert list(cut.values()) == ["scifa…5-test", "nfcor…5-test"]


def row(table: Table, name: str) -> dict[str, Cell]:
    """The first row of a name."""
    found = next(cells for group in table.groups for cells in group.rows if cells[0].text == name)
    return dict(zip(table.columns, found, strict=True))


def test_seeds_that_differ_more_than_the_arms_leave_no_mark() -> None:
    """Over queries alone the difference is certain; over seeds it is not."""
    base, noise = np.linspace(0.2, 0.6, 20), np.random.default_rng(1).normal(0.0, 0.01, (6, 20))
    shifts = [0.08, 0.0, 0.04, -0.06, 0.02, 0.0]
    items = [make_result("xy"[s // 3], s % 3, base + shifts[s] + noise[s]) for s in range(6)]
    found = results_of(*items)
    (comparison,) = compare_arms(found, iterations=500)
    (low, high), (check_low, check_high) = comparison.difference.interval or (0, 0), comparison.check_interval or (0, 1)
    assert comparison.check_p == pytest.approx(0.0, abs=0.01)
    assert check_high - check_low < (high - low) / 4
    table = generate_comparison_table(found, [comparison])
    assert [r[2].symbols for r in table.groups[0].rows] == ["", ""]
    assert "All tests hold for other seeds and queries." in table.notes


def test_recall_beyond_the_candidates_is_left_out_and_said() -> None:
    result = make_result("joint_r8", 0, [0.5, 0.5], identity={"depth": 10})
    deep = {"aggregate": {"ndcg@10": 0.5, "recall@100": 0.7, "recall@10": 0.7}}
    table = generate_comparison_table(results_of(result.model_copy(update=deep)))
    assert table.columns == ("System", "ndcg@10", "recall@10", "Seeds")
    assert "No Recall@100 on reranking/apidocs, whose candidates do not reach as deep." in table.notes


def test_a_column_per_dataset_and_an_average_that_takes_cqadupstack_once() -> None:
    scores = {"cqadupstack-android": 0.2, "cqadupstack-english": 0.4, "scifact": 0.9}
    items = [make_result("bm25", None, [score], dataset=dataset) for dataset, score in scores.items()]
    items += [make_result("zero_shot", None, [0.1], dataset=dataset) for dataset in list(scores)[:2]]
    table = overview_table(results_of(*items))
    assert table.columns == ("System", *scores, "Average")
    assert row(table, "bm25")["Average"].value == pytest.approx(60.0)
    assert row(table, "zero_shot")["Average"].value is None  # it lacks a dataset
    assert "The forums of CQADupStack count together as one dataset in an average." in table.notes


def test_metrics_are_never_averaged_and_columns_without_a_number_are_left_out() -> None:
    places = (("x", "ndcg@10"), ("y", "map"), ("z", "map"))
    mixed = [make_result("bm25", None, [0.5], dataset=dataset, metric=metric) for dataset, metric in places]
    table = overview_table(results_of(*mixed))
    assert table.columns == ("System", "x", "y", "z", "Average")
    assert "CQADupStack" not in " ".join(table.notes)
    assert [(group.heading, [[cell.text for cell in cells] for cells in group.rows]) for group in table.groups] == [
        ("reranking, nDCG@10", [["bm25", "50.00", "–", "–", "–"]]),
        ("reranking, MAP", [["bm25", "–", "50.00", "50.00", "50.00"]]),
    ]
    assert overview_table(results_of(*mixed[:2])).groups == ()
    assert generate_comparison_table(results_of(*mixed[:1])).columns == ("System", "ndcg@10", "mrr@10")


def test_csv_has_every_number_in_full() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.6, 60)
    runs = (make_result("x", s, base + 0.012 + rng.normal(0.0, 0.05, 60)) for s in range(3))
    found = results_of(make_result("bm25", None, base), *runs)
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


def test_before_and_after_is_one_family_and_names_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for arm in ("bm25", "minilm", "minilm+bm25"):
        identity = {"checkpoint": "none"}
        write_result(tmp_path, make_result(arm, None, rng.uniform(size=30), dataset="one", identity=identity))
    write_result(tmp_path, make_result("minilm", None, [0.5] * 9, dataset="two", identity=identity))
    pairs = [("minilm", "bm25"), ("minilm+bm25", "bm25")]
    print_compared(tmp_path, pairs, ["reranking/one", "reranking/two"])
    printed = capsys.readouterr()
    said = " ".join(printed.out.split())
    assert "reranking/one: minilm (after) against bm25 (before), 30 queries" in said
    assert "; corrected by Holm for all 4 tests." in said
    assert "All tests hold for other queries." in said
    assert "reranking/two:" not in said
    assert "reranking/two: no result of bm25 to compare with" in printed.err
    print_compared(tmp_path, [("minilm", "minilm")], ["reranking/one"])
    assert capsys.readouterr().out == ""


def suite() -> list[EvalResult]:
    """Two STS tasks, a classification and a retrieval task, whose nDCG@10 of .5 is not MTEB's main score."""
    items = []
    for arm, seed, sts12, sts13, banking, scifact in (
        ("zero_shot", None, 0.5, 0.3, 0.6, 0.2),
        ("emb_only_r8", 0, 0.8, 0.6, 0.9, 0.5),
        ("emb_only_r8", 1, 0.8, 0.8, 0.9, 0.5),
        ("joint_r8", 0, 0.6, 0.6, 0.9, 0.5),
        ("joint_r8", 1, 0.8, 0.6, 0.7, 0.5),
    ):
        items += [without_queries(arm, seed, s, dataset=d) for d, s in (("STS12", sts12), ("STS13", sts13))]
        kind = {"task_type": "Classification", "metric": "accuracy"}
        items.append(without_queries(arm, seed, banking, dataset="Banking77", **kind))
        retrieval = make_result(
            arm, seed, [0.4, 0.6], main_score=scifact, task="embedding", dataset="SciFact", task_type="Retrieval"
        )
        items.append(retrieval)
    return items


def test_over_tasks_over_types_and_of_each_type() -> None:
    """zero_shot: (50 + 30 + 60 + 20) / 4 = 40 over tasks; types 60, 20 and 40, whose mean is 40 as well.

    emb_only_r8: seeds (80 + 60 + 90 + 50) / 4 = 70 and 75; types (90 + 50 + 70) / 3 = 70 and (90 + 50 + 80) / 3.
    """
    table = mteb_table(results_of(*suite()))
    types = ("Classification (1)", "Retrieval (1)", "STS (2)")
    assert table.columns == ("System", "Mean (Task)", "Mean (TaskType)", *types)
    assert [r[0].text for r in table.groups[0].rows] == ["zero_shot", "emb_only_r8", "joint_r8"]
    baseline, specialist = row(table, "zero_shot"), row(table, "emb_only_r8")
    assert [cell.text for cell in baseline.values()] == ["zero_shot", "40.00", "40.00", "60.00", "20.00", "40.00"]
    assert baseline["Mean (Task)"].spread == ""
    assert specialist["Mean (Task)"].value == pytest.approx(72.5)
    assert specialist["Mean (Task)"].spread_value == pytest.approx(5 / 2**0.5)
    assert specialist["Mean (TaskType)"].value == pytest.approx((70 + 220 / 3) / 2)
    assert specialist["STS (2)"].value == pytest.approx(75)
    assert specialist["Mean (Task)"].mark == "best"
    assert row(table, "joint_r8")["Mean (Task)"].mark == "second"


def test_a_task_that_one_seed_lacks_counts_for_no_arm_and_is_named() -> None:
    lacking = {("joint_r8", 1, "STS13"), ("zero_shot", None, "STS13")}
    kept = results_of(*(r for r in suite() if (r.config_name, r.seed, r.dataset) not in lacking))
    table = mteb_table(kept)
    assert row(table, "emb_only_r8")["STS (1)"].value == pytest.approx(80)
    assert row(table, "emb_only_r8")["Mean (Task)"].value == pytest.approx(100 * (0.8 + 0.9 + 0.5) / 3)
    assert "Left out of the means, not measured for zero_shot, joint_r8 seed 1: STS13." in table.notes
    assert "3 tasks" in table.caption
    of_task = row(mteb_tasks_table(kept), "STS13")
    assert of_task["joint_r8"].value == pytest.approx(60)
    assert of_task["zero_shot"].value is None
