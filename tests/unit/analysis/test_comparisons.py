"""Comparisons of arms: what is asked, what holds for what, one p, one interval, one family."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from support.results import make_result, results_of, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import compute_interference_metrics
from unimoe.analysis.comparisons import Comparison, Question, compare_arms, difference, questions_of
from unimoe.analysis.corrections import Correction, Family
from unimoe.analysis.gates.definitions import DifferenceGate
from unimoe.analysis.gates.findings import find
from unimoe.analysis.gates.scores import collect
from unimoe.analysis.saved_comparison import save_comparison
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.tables.comparisons import comparisons_table
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results


def two(system: list[float], baseline: list[float]) -> Comparison:
    items = make_result("zero_shot", None, baseline), make_result("joint_r8", None, system)
    return compare_arms(results_of(*items), iterations=200)[0]


def test_many_systems_are_compared_with_the_baseline_alone() -> None:
    names = ["bm25", *(f"system{i}" for i in range(12))]
    asked = questions_of(results_of(*(make_result(name, None, [0.5] * 9) for name in names)))
    assert [(q.system, q.baseline) for q in asked] == [(name, "bm25") for name in sorted(names[1:])]


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
        items = [make_result("joint_r8", seed, system[seed], paired_seeds=True) for seed in range(3)]
        items += [make_result("rank_only_r8", seed, baseline[seed], paired_seeds=True) for seed in range(4)]
        found = results_of(*items)
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
    def found(self, correction: Correction = "holm", family: Family = "table") -> tuple[Comparison, ...]:
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
        by_baseline = self.found(family="baseline")
        assert [(c.baseline, c.tests) for c in by_baseline[:6]] == [("a", 4), ("a", 4), ("b", 2)] * 2
        assert [(c.baseline, c.tests) for c in by_baseline[6:9]] == [("a", 2), ("a", 2), ("b", 1)]

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
        finding = find(gate, collect(held, gate))
        assert c.key == "reranking/average of 2"
        assert c.delta == pytest.approx(finding.value)
        assert c.difference.interval == pytest.approx(finding.estimate.interval)


def test_few_tables_of_equal_systems_have_a_mark() -> None:
    """Satterthwaite's t marked a third of such tables: 84 rows ask for p of .0006, far out in its tail."""
    rng = np.random.default_rng(3)
    tables, marked, rows = 30, 0, 0
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
    assert marked <= 4
    assert 0.03 <= rows / (84 * tables) <= 0.07, "single rows keep their level"


@pytest.mark.parametrize("paired", [True, False])
def test_p_is_five_percent_where_the_interval_ends(paired: bool) -> None:
    system, baseline = simulate(3, 60, 0.0, rng=np.random.default_rng(9), seed_sd=0.02)
    ends = difference(system, baseline, paired=paired)[0].interval
    assert ends is not None
    for shift in (end + step for end in ends for step in (-1e-7, 1e-7)):
        assert difference(system - shift, baseline, paired=paired)[0].p == pytest.approx(0.05, rel=1e-3)
    far = [difference(system + shift, baseline, paired=paired)[0].p or 0.0 for shift in (0.1, 0.2, 0.4)]
    assert 0.05 > far[0] > far[1] > far[2] > 0.0
