"""Comparisons of arms: what is asked, what holds for what, one p, one interval, one family."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from support.results import make_result, query_ids, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import compute_interference_metrics
from unimoe.analysis.comparisons import (
    Comparison,
    Question,
    all_pairs,
    before_after,
    compare_arms,
    corrected,
    difference,
    questions_of,
)
from unimoe.analysis.corrections import Correction, Family
from unimoe.analysis.gates.definitions import SuperiorityGate
from unimoe.analysis.gates.findings import find
from unimoe.analysis.gates.scores import collect
from unimoe.analysis.saved_comparison import save_comparison
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.tables.comparisons import comparisons_table, significance_marks
from unimoe.core.errors import DataError, UsageError
from unimoe.results import EvalResult
from unimoe.results.folder import Results


def results(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


def arms(*names: str, seeds: int = 2, queries: int = 30, paired: bool = False) -> list[EvalResult]:
    rng = np.random.default_rng(0)
    baselines = [n for n in names if n in ("zero_shot", "bm25")]
    items = [make_result(arm, None, rng.uniform(size=queries)) for arm in baselines]
    for arm in names:
        runs = range(seeds) if arm not in baselines else ()
        items += [make_result(arm, seed, rng.uniform(size=queries), paired_seeds=paired) for seed in runs]
    return items


def two(system: list[float], baseline: list[float], seed: int | None = None) -> Comparison:
    items = results(make_result("zero_shot", None, baseline), make_result("joint_r8", seed, system))
    (only,) = compare_arms(items, iterations=200)
    return only


class TestQuestions:
    def test_arms_with_roles_are_compared_with_baselines_and_specialists(self) -> None:
        asked = questions_of(results(*arms("bm25", "zero_shot", "rank_only_r8", "joint_r8")))
        assert [(q.system, q.baseline) for q in asked] == [
            ("joint_r8", "zero_shot"),
            ("rank_only_r8", "zero_shot"),
            ("joint_r8", "bm25"),
            ("rank_only_r8", "bm25"),
            ("joint_r8", "rank_only_r8"),
        ]

    def test_other_systems_are_compared_with_each_other(self) -> None:
        """After ``retrieve`` there was no paired table and no mark at all."""
        asked = questions_of(results(*arms("a", "b", "c")))
        assert {frozenset((q.system, q.baseline)) for q in asked} == {
            frozenset(pair) for pair in (("a", "b"), ("a", "c"), ("b", "c"))
        }
        assert len(asked) == 3

    def test_many_systems_are_compared_with_the_baseline_alone(self) -> None:
        names = [f"system{i}" for i in range(12)]
        asked = questions_of(results(*arms("bm25", *names, seeds=1)))
        assert {q.baseline for q in asked} == {"bm25"}
        assert len(asked) == 12

    def test_all_pairs_asks_each_once(self) -> None:
        asked = [(q.system, q.baseline) for q in all_pairs("retrieval/x", ["a", "b", "c"])]
        assert asked == [("b", "a"), ("c", "a"), ("c", "b")]

    def test_nothing_to_compare_is_no_error(self) -> None:
        assert compare_arms(results(make_result("joint_r8", 0, [0.5]))) == ()


class TestRows:
    def test_by_hand(self) -> None:
        found = two([0.3, 0.4, 0.4, 0.4, 0.5, 0.6, 0.2, 0.1], [0.2, 0.4, 0.6, 0.0, 0.4, 0.5, 0.1, 0.0])
        assert (found.queries, found.wins, found.ties, found.losses) == (8, 6, 1, 1)
        assert found.means == pytest.approx((0.3625, 0.275))
        assert found.delta == pytest.approx(0.0875)
        assert found.relative == pytest.approx(0.0875 / 0.275)
        assert found.superiority == pytest.approx(6.5 / 8)
        gaps = np.array([0.1, 0.0, -0.2, 0.4, 0.1, 0.1, 0.1, 0.1])
        assert found.effect == pytest.approx(gaps.mean() / gaps.std(ddof=1))

    def test_single_runs_have_the_paired_t_test_over_queries(self) -> None:
        rng = np.random.default_rng(1)
        system, baseline = rng.uniform(size=(2, 40))
        found = two(system.tolist(), baseline.tolist(), seed=0)
        assert found.p == pytest.approx(scipy.stats.ttest_rel(system, baseline).pvalue, rel=1e-9)
        assert found.holds_for == "queries"

    def test_what_a_row_holds_for(self) -> None:
        found = compare_arms(results(*arms("zero_shot", "rank_only_r8", "joint_r8")), iterations=50)
        assert [c.holds_for for c in found] == ["seeds and queries"] * 3
        mixed = [*arms("rank_only_r8"), make_result("joint_r8", 0, np.linspace(0, 1, 30))]
        (row,) = compare_arms(results(*mixed), iterations=50)
        assert row.holds_for == "queries, seeds of one arm"

    def test_seeds_pair_where_the_experiment_declares_it(self) -> None:
        specialist, joint = simulate(3, 60, 0.02, rng=np.random.default_rng(2), seed_sd=0.0)
        shift = np.array([[0.0], [0.03], [-0.03]])
        rows = {}
        for paired in (False, True):
            items = [
                make_result(arm, seed, row, paired_seeds=paired)
                for arm, matrix in (("rank_only_r8", specialist + shift), ("joint_r8", joint + shift))
                for seed, row in enumerate(matrix)
            ]
            (rows[paired],) = compare_arms(results(*items), iterations=50)
        assert rows[True].difference.standard_error < rows[False].difference.standard_error

    def test_declared_pairs_take_the_seeds_of_both_arms_as_a_gate_does(self) -> None:
        """The table tested four seeds against three without pairs, beside a gate on the three pairs."""
        rng = np.random.default_rng(5)
        luck, base = rng.normal(0.0, 0.03, (4, 1)), rng.normal(0.5, 0.1, 100)
        system, baseline = (base + gap + luck + rng.normal(0.0, 0.02, (4, 100)) for gap in (-0.02, 0.0))
        items = [make_result("joint_r8", seed, system[seed], paired_seeds=True) for seed in range(3)]
        items += [make_result("rank_only_r8", seed, baseline[seed], paired_seeds=True) for seed in range(4)]
        found = results(*items)
        (row,), (judgment,) = compare_arms(found, iterations=50), compute_interference_metrics(found)
        assert row.seeds == judgment.found.seeds == ((0, 1, 2), (0, 1, 2))
        assert row.p == pytest.approx(judgment.found.estimate.p)
        assert row.delta == pytest.approx(judgment.found.delta)
        assert row.left_out == ("rank_only_r8 seed 3",)
        said = "joint_r8 − rank_only_r8 on reranking/apidocs, since seeds pair and the other system lacks the seed"
        assert any(said in note for note in comparisons_table(found, [row]).notes)

    def test_numbers_of_seeds_may_differ_and_their_order_changes_nothing(self) -> None:
        specialist, joint = simulate(5, 40, 0.02, rng=np.random.default_rng(3))
        found, turned = (difference(joint[order], specialist)[0] for order in ([0, 1, 2], [2, 0, 1]))
        assert turned.interval == pytest.approx(found.interval, rel=1e-9)

    def test_pairs_by_query_id_whatever_the_order_of_the_file(self) -> None:
        scores = dict(zip(query_ids(8), np.linspace(0.1, 0.8, 8).tolist(), strict=True))
        turned = dict(reversed(scores.items()))
        (only,) = compare_arms(
            results(make_result("zero_shot", None, scores), make_result("joint_r8", 0, turned)), iterations=50
        )
        assert only.ties == 8
        assert (only.delta, only.effect, only.p, only.p_corrected, only.significant) == (0.0, None, None, None, False)

    def test_too_little_to_test_says_why(self) -> None:
        few = two([0.3, 0.2, 0.1, 0.5, 0.5, 0.5], [0.1, 0.1, 0.1, 0.5, 0.5, 0.5])
        assert (few.p, few.p_corrected, few.significant) == (None, None, False)
        assert few.unfit == "the systems differ on 2 of 6 queries"
        constant = two([0.4] * 10, [0.3] * 10)
        assert constant.p is None
        assert "nothing varies" in constant.unfit
        one = two([0.3], [0.1])
        assert (one.effect, one.p) == (None, None)
        assert one.unfit == "the systems differ on 1 of 1 queries"

    def test_a_baseline_at_zero_leaves_no_relative_effect(self) -> None:
        assert two([0.3, 0.2], [0.0, 0.0]).relative is None

    def test_checks_are_of_the_runs_as_they_are(self) -> None:
        """A sign-flip test over seed averages marks equal arms; the model's p knows that other seeds may differ."""
        system, baseline = simulate(3, 2_000, 0.0, rng=np.random.default_rng(4), seed_sd=0.03, query_sd=0.02)
        items = [make_result("rank_only_r8", s, row) for s, row in enumerate(baseline)]
        items += [make_result("joint_r8", s, row) for s, row in enumerate(system)]
        (row,) = compare_arms(results(*items), iterations=500)
        assert row.check_p
        assert row.check_interval
        assert row.check_p < 0.01
        assert row.p is not None
        assert row.p > 0.05
        width = row.check_interval[1] - row.check_interval[0]
        ends = row.difference.interval
        assert ends is not None
        assert width < (ends[1] - ends[0]) / 4

    def test_equal_seeds_give_equal_numbers_and_another_dataset_changes_none_but_the_correction(self) -> None:
        items = arms("zero_shot", "rank_only_r8", "joint_r8")
        alone = compare_arms(results(*items), iterations=200, seed=4)
        assert [c.check_p for c in alone] == [c.check_p for c in compare_arms(results(*items), iterations=200, seed=4)]
        other = [make_result(arm, 0, np.linspace(0, 1, 9), dataset="a") for arm in ("rank_only_r8", "joint_r8")]
        more = [c for c in compare_arms(results(*items, *other), iterations=200, seed=4) if c.key != "reranking/a"]
        assert [(c.p, c.difference.interval, c.check_p) for c in more] == [
            (c.p, c.difference.interval, c.check_p) for c in alone
        ]

    def test_refuses_no_iterations(self) -> None:
        with pytest.raises(UsageError, match="iterations 0"):
            compare_arms(results(*arms("a", "b")), iterations=0)


class TestFamily:
    def test_the_rows_of_a_call_are_one_family(self) -> None:
        """Single-seed rows and rows of three seeds were corrected apart from what the table showed."""
        found = compare_arms(results(*arms("zero_shot", "rank_only_r8", "joint_r8")), iterations=50)
        p_values = sorted(c.p for c in found if c.p is not None)
        assert len(p_values) == 3
        by_p = sorted(found, key=lambda c: c.p or 0.0)
        assert by_p[0].p_corrected == pytest.approx(min(1.0, 3 * p_values[0]))
        assert all(c.p_corrected >= c.p for c in found if c.p is not None and c.p_corrected is not None)

    def test_rows_without_a_test_do_not_count(self) -> None:
        tested = [two(row, [0.5] * 10) for row in np.random.default_rng(0).uniform(0.5, 0.9, (2, 10)).tolist()]
        family = corrected([*tested, two([0.4] * 10, [0.3] * 10)])
        assert family[2].p_corrected is None
        smallest = min(family[:2], key=lambda c: c.p or 1.0)
        assert smallest.p is not None
        assert smallest.p_corrected == pytest.approx(2 * smallest.p)

    def test_p_below_five_percent_is_an_interval_without_zero(self) -> None:
        rng = np.random.default_rng(6)
        for gap in np.linspace(-0.2, 0.2, 21):
            found = two((0.5 + gap + rng.normal(0.0, 0.3, 12)).tolist(), [0.5] * 12)
            ends = found.difference.interval
            assert found.p is not None
            assert ends is not None
            assert (found.p < 0.05) == (ends[0] > 0.0 or ends[1] < 0.0)


class TestCorrections:
    """Two systems and a baseline on two datasets: six rows of each metric, three of each average."""

    def found(self, correction: Correction = "holm", family: Family = "table") -> tuple[Comparison, ...]:
        rng = np.random.default_rng(8)
        items = []
        for dataset in ("x", "y"):
            base = rng.uniform(0.2, 0.6, 30)
            for arm, gain in (("a", 0.0), ("b", 0.03), ("c", 0.05)):
                items.append(make_result(arm, 0, base + gain + rng.normal(0.0, 0.1, 30), dataset=dataset))
        asked = [q for key in ("reranking/x", "reranking/y") for q in all_pairs(key, ["a", "b", "c"])]
        return Analysis(
            results(*items), questions=asked, iterations=10, correction=correction, family=family
        ).tests  # fmt: skip

    def test_every_metric_and_every_average_is_a_family_of_its_own(self) -> None:
        found = self.found()
        assert [(c.key, c.metric, c.main) for c in found[::3]] == [
            (f"reranking/{place}", metric, metric == "ndcg@10")
            for metric in ("ndcg@10", "mrr@10")
            for place in ("x", "y", "average of 2")
        ]
        assert [c.tests for c in found] == ([6] * 6 + [3] * 3) * 2
        for rows in (found[:6], found[6:9], found[9:15], found[15:]):
            assert [c.p_corrected for c in rows] == holm([c.p or 0.0 for c in rows])

    @pytest.mark.parametrize(
        ("correction", "rule"),
        [
            ("bh", scipy.stats.false_discovery_control),
            ("bonferroni", lambda p: np.minimum(1.0, len(p) * np.array(p))),
            ("none", np.array),
        ],
    )
    def test_the_others_are_those_of_their_definitions(self, correction: Correction, rule: Any) -> None:
        rows = self.found(correction)[:6]
        assert [c.p_corrected for c in rows] == pytest.approx(rule([c.p for c in rows]).tolist())

    def test_a_family_may_be_a_dataset_or_a_baseline(self) -> None:
        assert [c.tests for c in self.found(family="dataset")] == [3] * 18
        by_baseline = self.found(family="baseline")
        assert [(c.baseline, c.tests) for c in by_baseline[:6]] == [("a", 4), ("a", 4), ("b", 2)] * 2
        assert [(c.baseline, c.tests) for c in by_baseline[6:9]] == [("a", 2), ("a", 2), ("b", 1)]

    @pytest.mark.parametrize("option", ["correction", "family"])
    def test_an_unknown_one_is_refused(self, option: str) -> None:
        unknown: dict[str, Any] = {option: "sidak"}
        with pytest.raises(UsageError, match=f"{option} 'sidak': unknown; use "):
            Analysis(results(*arms("a", "b")), **unknown)

    @pytest.mark.parametrize(
        ("correction", "family", "heading", "words"),
        [
            ("holm", "table", "p (Holm)", "p corrected by Holm for the 6 tests of nDCG@10 and for the 3 tests of its"),
            ("bh", "dataset", "p (BH)", "p corrected by BH for the 3 tests of nDCG@10 on each dataset and for the 3"),
            ("none", "baseline", "p", "p not corrected for the 2 to 4 tests of nDCG@10 against each baseline and for"),
        ],
    )
    def test_tables_say_which_and_for_how_many_tests(
        self, correction: Correction, family: Family, heading: str, words: str
    ) -> None:
        rows = [c for c in self.found(correction, family) if c.main]
        table = comparisons_table(results(make_result("a", 0, [0.5])), rows)
        assert words.removeprefix("p ") in table.notes[0]
        assert table.caption.endswith(f"by {heading[3:-1]}" if "(" in heading else "p, and no correction")
        assert [column for column in table.columns if column.startswith("p")][-1] == heading
        (mark,) = [n for n in significance_marks(results(*arms("a", "b", "c")), rows).notes if "two-sided" in n]
        assert words in mark

    def test_an_analysis_of_the_folder_corrects_as_the_saved_comparison_does(self, tmp_path: Path) -> None:
        held = Results(tmp_path, arms("a", "b", "c"))
        tests = [(q.key, q.system, q.baseline) for q in all_pairs("reranking/apidocs", ["a", "b", "c"])]
        save_comparison(held, None, tests, overwrite=False, correction="bh", family="dataset")
        assert {(c.correction, c.family) for c in Analysis(held, iterations=10).tests} == {("bh", "dataset")}


class TestAverages:
    """Runs are matched across datasets by their names; what is not on all datasets takes no part."""

    def average(self, held: dict[str, dict[str, list[int]]]) -> Comparison | None:
        """Return ``a - b`` on average, where each system has these seeds on each dataset."""
        rng = np.random.default_rng(1)
        items = [
            make_result(arm, seed, rng.uniform(0.2, 0.6, 20) + 0.05 * (arm == "b"), dataset=d)
            for arm, by_dataset in held.items()
            for d, seeds in by_dataset.items()
            for seed in seeds
        ]
        found = Analysis(results(*items), iterations=10).comparisons
        return next((c for c in found if c.parts), None)

    @pytest.mark.parametrize(
        ("b", "seeds", "runs", "left_out"),
        [
            ({"x": [0, 1, 2], "y": [0, 1, 2]}, (0, 1, 2), 3, ()),
            ({"x": [0, 1, 2], "y": [1, 2, 3]}, (1, 2), 2, ("b seed 0", "b seed 3")),
            ({"x": [0, 1], "y": [2, 3, 4]}, (0, 1, 2, 3, 4), 2, ()),
            ({"x": [0], "y": [1]}, (0, 1), 1, ()),
        ],
    )
    def test_runs_are_those_on_every_dataset(
        self, b: dict[str, list[int]], seeds: tuple[int, ...], runs: int, left_out: tuple[str, ...]
    ) -> None:
        found = self.average({"a": {"x": [0, 1], "y": [0, 1]}, "b": b})
        assert found is not None
        assert (found.system, found.baseline) == ("a", "b")
        assert (found.seeds, found.runs, found.left_out) == (((0, 1), seeds), (2, runs), left_out)
        assert found.p is not None
        assert found.holds_for == ("seeds and queries" if runs > 1 else "queries, seeds of one arm")
        assert (found.effect, found.check_interval, found.check_p) == (None, None, None)

    def test_it_is_what_a_gate_over_the_datasets_finds(self) -> None:
        for paired in (False, True):
            rng = np.random.default_rng(3)
            items = [
                make_result(arm, seed, rng.uniform(0.2, 0.6, 40), dataset=dataset, paired_seeds=paired)
                for arm in ("a", "b")
                for dataset in ("cqadupstack-android", "cqadupstack-english", "scifact")
                for seed in range(3)
            ]
            held = results(*items)
            (c,) = [c for c in Analysis(held, iterations=10).comparisons if c.parts]
            gate = SuperiorityGate(
                kind="superiority", task="reranking", datasets=[key.partition("/")[2] for key in c.parts],
                metric="ndcg@10", system=c.system, baseline=c.baseline, margin=0.0,
            )  # fmt: skip
            finding = find(gate, collect(held, gate))
            assert c.key == "reranking/average of 2"
            assert c.delta == pytest.approx(finding.value)
            assert c.difference.interval == pytest.approx(finding.estimate.interval)

    def test_runs_of_which_some_are_on_several_datasets_have_no_test(self) -> None:
        b = {"x": [0, 1], "y": [1, 2], "z": [0, 2]}
        found = self.average({"a": {dataset: [0] for dataset in "xyz"}, "b": b})
        assert found is not None
        assert (found.p, found.unfit) == (None, "no run of b is on every dataset, and some are on several")

    def test_a_system_that_lacks_a_dataset_has_none(self) -> None:
        assert self.average({"a": {"x": [0], "y": [0], "z": [0]}, "b": {"x": [0], "y": [0]}}) is None

    def test_no_average_mixes_main_metrics(self) -> None:
        rng = np.random.default_rng(3)
        items = [
            make_result(arm, 0, rng.uniform(size=20), dataset=dataset, metric=metric)
            for arm in ("a", "b")
            for dataset, metric in (("x", "ndcg@10"), ("y", "ndcg@10"), ("z", "map"))
        ]
        found = [c for c in Analysis(results(*items), iterations=10).tests if c.parts]
        assert {c.parts for c in found} == {("reranking/x", "reranking/y")}


class TestOtherMetrics:
    def test_what_some_result_lacks_or_no_candidate_reaches_is_not_tested(self) -> None:
        rng = np.random.default_rng(4)
        items = [make_result(arm, 0, rng.uniform(size=20)) for arm in ("a", "b")]
        deep = [
            r.model_copy(update={"per_query_metrics": r.per_query_metrics | {"recall@100": r.per_query}}) for r in items
        ]
        one = [deep[0].model_copy(update={"per_query_metrics": deep[0].per_query_metrics | {"map": {}}}), deep[1]]
        for held in (items, deep, one):
            assert [c.metric for c in Analysis(results(*held), iterations=10).tests] == ["ndcg@10", "mrr@10"]


class TestBeforeAfter:
    def items(self) -> Results:
        rng = np.random.default_rng(2)
        rows = {(arm, key): rng.uniform(size=30) for arm in ("bm25", "minilm") for key in ("one", "two")}
        rows |= {("minilm", "three"): rng.uniform(size=30), ("alone", "four"): rng.uniform(size=30)}
        return results(
            *(
                make_result(arm, None, row, dataset=key, identity={"checkpoint": "none"})
                for (arm, key), row in rows.items()
            )
        )

    def test_every_dataset_with_both_arms_and_every_metric_of_both_is_one_family(self) -> None:
        held = self.items()
        found = before_after(held, "bm25", ["minilm"], keys=held.dataset_keys, iterations=50)
        assert [(c.key, c.metric) for c in found] == [
            (f"reranking/{key}", metric) for key in ("one", "two") for metric in ("ndcg@10", "mrr@10")
        ]
        smallest = min(found, key=lambda c: c.p or 1.0)
        assert smallest.p is not None
        assert smallest.p_corrected == pytest.approx(min(1.0, 4 * smallest.p))

    def test_a_metric_alone_is_the_same_as_among_others(self) -> None:
        together = before_after(self.items(), "bm25", ["minilm"], keys=["reranking/one"], iterations=50)[1]
        (alone,) = compare_arms(self.items(), [Question("reranking/one", "minilm", "bm25", "mrr@10")], iterations=50)
        assert (alone.metric, alone.p, alone.delta) == (together.metric, together.p, together.delta)
        assert alone.check_interval == pytest.approx(together.check_interval, rel=1e-6)

    def test_a_metric_that_was_not_computed_is_refused(self) -> None:
        with pytest.raises(DataError, match="no per-query 'recall@5'"):
            compare_arms(self.items(), [Question("reranking/one", "minilm", "bm25", "recall@5")])


class TestMarksOfLargeTables:
    def test_few_tables_of_equal_systems_have_a_mark(self) -> None:
        """Satterthwaite's t marked a third of such tables: 84 rows ask for p of .0006, far out in its tail."""
        rng = np.random.default_rng(3)
        tables, marked, rows = 60, 0, 0
        for _ in range(tables):
            p_values = []
            for queries in (50, 300, 1_000):
                base, luck = rng.normal(0.6, 0.3, queries), rng.normal(0.0, 0.04, (8, 3, 1))
                systems = base + rng.normal(0.0, 0.15, (8, 1, queries)) + rng.normal(0.0, 0.15, (8, 3, queries)) + luck
                for first, second in combinations(systems, 2):
                    p = difference(first, second, paired=True)[0].p
                    assert p is not None
                    p_values.append(p)
            marked += min(holm(p_values)) < 0.05
            rows += sum(p < 0.05 for p in p_values)
        assert marked <= 6
        assert 0.03 <= rows / (84 * tables) <= 0.07, "single rows keep their level"

    @pytest.mark.parametrize("paired", [True, False])
    def test_p_is_five_percent_where_the_interval_ends(self, paired: bool) -> None:
        rng = np.random.default_rng(9)
        system, baseline = simulate(3, 60, 0.0, rng=rng, seed_sd=0.02)
        ends = difference(system, baseline, paired=paired)[0].interval
        assert ends is not None
        for end, side in ((ends[0], 1.0), (ends[1], -1.0)):
            just_in, just_out = (
                difference(system - end + side * step, baseline, paired=paired)[0].p for step in (-1e-7, 1e-7)
            )
            assert just_in == pytest.approx(0.05, rel=1e-3)
            assert just_out == pytest.approx(0.05, rel=1e-3)
        far = [difference(system + shift, baseline, paired=paired)[0].p or 0.0 for shift in (0.1, 0.2, 0.4)]
        assert 0.05 > far[0] > far[1] > far[2] > 0.0
