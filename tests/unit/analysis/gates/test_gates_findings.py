"""What scores say of a gate: value, interval, region and label, for every kind of gate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from support.gates import DIFFERENCE, INTERFERENCE, both, clear_gap, constant_gap, measured, register, results
from support.results import make_result, simulate

from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding, find, ratio_weights, region_of
from unimoe.analysis.gates.judging import judge
from unimoe.analysis.gates.scores import GateScores, collect
from unimoe.results.folder import Results


def gate(folder: Path, **change: Any) -> Gate:
    return register(folder, **INTERFERENCE | change).gates["it"]


def found(results: Results, gate: Gate) -> Finding:
    return find(gate, collect(results, gate))


def noisy(specialist: float, joint: float, seeds: int = 3, queries: int = 20) -> Results:
    """Means to the letter, and a little noise about them."""
    noise = np.random.default_rng(0).normal(0.0, 0.0001, (2, seeds, queries))
    noise -= noise.mean(axis=(1, 2), keepdims=True)
    return both(specialist + noise[0], joint + noise[1])


class TestInterference:
    def test_value_means_and_runs_by_hand(self, tmp_path: Path) -> None:
        item = found(both([[0.4, 0.6], [0.5, 0.7]], [[0.4, 0.5], [0.5, 0.64]]), gate(tmp_path))
        assert item.value == pytest.approx(1.0 - 0.51 / 0.55)
        assert item.means == pytest.approx((0.55, 0.51))
        assert item.runs[0] == pytest.approx((0.5, 0.6))
        assert item.runs[1] == pytest.approx((0.45, 0.57))
        assert item.delta == pytest.approx(-0.04)
        assert item.by_seed == {0: pytest.approx(0.1), 1: pytest.approx(0.05)}
        assert item.std == pytest.approx(0.05 / math.sqrt(2))

    def test_the_value_is_the_ratio_of_means_that_the_interval_is_about(self, tmp_path: Path) -> None:
        """The mean of per-seed ratios was +10.02 % where the interval lay around +2.00 %."""
        rng = np.random.default_rng(1)
        noise = rng.normal(0.0, 0.001, (2, 3, 40))
        specialist = np.array([[0.9], [0.9], [0.5]]) + noise[0]
        joint = np.array([[0.9], [0.9], [0.454]]) + noise[1]
        item = found(both(specialist, joint), gate(tmp_path))
        assert item.value == pytest.approx(0.02, abs=0.001)
        assert np.mean(list(item.by_seed.values())) == pytest.approx(0.0307, abs=0.002)
        ends = item.estimate.interval
        assert ends is not None
        assert ends[0] < item.value < ends[1]
        assert item.confidence["PASS"] == pytest.approx(0.5, abs=0.05)

    @pytest.mark.parametrize(
        ("joint", "label"), [(0.5, "PASS"), (0.592, "INCONCLUSIVE"), (0.591, "MARGINAL"), (0.6, "FAIL"), (0.7, "FAIL")]
    )
    def test_clear_results_get_the_label_of_their_region(self, tmp_path: Path, joint: float, label: str) -> None:
        cutoffs = {"pass_at": 0.02, "fail_below": 0.01 if joint != 0.592 else 0.0133333}
        item = found(noisy(0.6, joint), gate(tmp_path, **cutoffs))
        assert item.label == label
        assert not item.why

    @pytest.mark.parametrize(
        ("value", "label"),
        [
            *((0.5, "PASS"), (0.02, "PASS"), (0.019999, "MARGINAL"), (0.01, "MARGINAL")),
            *((0.009999, "FAIL"), (-0.3, "FAIL"), (math.nan, "INCONCLUSIVE")),
        ],
    )
    def test_regions(self, tmp_path: Path, value: float, label: str) -> None:
        assert region_of(gate(tmp_path), value) == label


class TestSeeds:
    """Seeds of separately trained arms are no pairs; the experiment may declare that they are."""

    def test_surplus_seeds_and_other_seed_numbers_count(self, tmp_path: Path) -> None:
        specialist, joint = simulate(6, 60, 0.05, rng=np.random.default_rng(8))
        others = [make_result("joint_r8", 3 + seed, row.tolist()) for seed, row in enumerate(joint[:3])]
        item = found(results(measured("rank_only_r8", specialist[:5]), others), gate(tmp_path))
        assert item.seeds == ((0, 1, 2, 3, 4), (3, 4, 5))
        assert not item.paired
        assert item.estimate.interval is not None
        assert sorted(item.by_seed) == [3, 4]

    def test_declared_seeds_without_two_in_common_are_unpaired_and_it_is_said(self, tmp_path: Path) -> None:
        specialist, joint = simulate(3, 60, 0.05, rng=np.random.default_rng(9))
        others = [make_result("joint_r8", 2 + s, row.tolist(), paired_seeds=True) for s, row in enumerate(joint)]
        arms = results(measured("rank_only_r8", specialist, paired_seeds=True), others)
        judgment = judge(arms, register(tmp_path, **INTERFERENCE), "it")
        assert not judgment.found.paired
        assert any("they are judged unpaired" in note for note in judgment.notes)

    def test_two_arms_without_seeds_are_judged_for_other_queries_alone(self, tmp_path: Path) -> None:
        """BM25 against a bundled encoder had an interval "for other training seeds and other queries"."""
        rows = np.random.default_rng(1).uniform(0.4, 0.8, (2, 40))
        arms = results(*([make_result(arm, None, row)] for arm, row in zip(("bm25", "zero_shot"), rows, strict=True)))
        asked = DIFFERENCE | {"kind": "superiority", "system": "bm25", "baseline": "zero_shot", "margin": 0.0}
        item = found(arms, register(tmp_path, **asked).gates["it"])
        assert item.estimate.estimand == "queries"
        assert item.estimate.p == pytest.approx(scipy.stats.ttest_rel(*rows).pvalue)
        assert item.confidence, "it is judged all the same"
        of_seeds = found(arms, register(tmp_path, **asked | {"estimand": "seeds"}).gates["it"])
        assert "other training seeds cannot be judged" in of_seeds.why


class TestTooLittle:
    def test_no_variance_is_inconclusive(self, tmp_path: Path) -> None:
        """Two seeds of constant scores had "t with inf degrees of freedom" and confidence 1.000."""
        difference = register(tmp_path, **DIFFERENCE | {"kind": "non_inferiority"}).gates["it"]
        constant = both([[0.6] * 8, [0.66] * 8], [[0.5] * 8, [0.55] * 8], paired_seeds=True)
        for scores, judged, region in ((constant, gate(tmp_path), "PASS"), (constant_gap(-0.1), difference, "FAIL")):
            item = found(scores, judged)
            assert (item.label, item.confidence) == ("INCONCLUSIVE", {})
            assert region_of(judged, item.value) == region
            assert "nothing varies" in item.why
            assert math.isinf(item.estimate.degrees_of_freedom)
            assert item.estimate.as_json()["degrees_of_freedom"] is None

    def test_two_queries_are_inconclusive(self, tmp_path: Path) -> None:
        item = found(both([[0.5, 0.6]] * 2, [[0.4, 0.5]] * 2), gate(tmp_path))
        assert item.label == "INCONCLUSIVE"
        assert item.why == "the arms differ on 2 of 2 queries, and fewer than 6 cannot decide"


class TestDatasets:
    TWO = (("a", 0.2, 0.18), ("b", 0.8, 0.8))

    def arms(self, *, extra: int = 0) -> Results:
        rng = np.random.default_rng(3)
        return results(
            *(
                measured(arm, mean + rng.normal(0.0, 0.001, (3, 30)), dataset)
                for dataset, *means in self.TWO
                for arm, mean in zip(("rank_only_r8", "joint_r8"), means, strict=True)
            )
        )

    def test_both_ways_across_datasets_are_given(self, tmp_path: Path) -> None:
        shape = INTERFERENCE | {"datasets": ["a", "b"]}
        judgment = judge(self.arms(), register(tmp_path, **shape), "it")
        assert judgment.found.value == pytest.approx(0.05, abs=0.002)  # mean of 10 % and 0 %
        assert judgment.otherwise == pytest.approx(0.02, abs=0.001)  # 1 - (.98 / 1.00)
        assert [row.value for row in judgment.rows] == pytest.approx([0.1, 0.0], abs=0.003)
        swapped = judge(self.arms(), register(tmp_path, **shape | {"across": "tir_of_means"}), "it")
        assert swapped.found.value == pytest.approx(judgment.otherwise)
        assert swapped.otherwise == pytest.approx(judgment.found.value)

    def test_weights_give_each_dataset_the_same_say_and_cqadupstack_one(self) -> None:
        names = ["scifact", "cqadupstack/tex", "cqadupstack/unix"]
        assert ratio_weights(names, "mean_of_tirs").tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
        assert ratio_weights(names, "tir_of_means").tolist() == [[0.5, 0.25, 0.25]]

    @pytest.mark.parametrize("across", ["mean_of_tirs", "tir_of_means"])
    @pytest.mark.parametrize("paired", [True, False])
    def test_intervals_cover_the_truth(self, tmp_path: Path, across: str, paired: bool) -> None:
        """Seeds move both datasets together; datasets of other sizes and other scores."""
        rng = np.random.default_rng(13)
        shape = gate(tmp_path, datasets=["a", "b"], across=across)
        truth = {"mean_of_tirs": (0.0 + 0.1) / 2, "tir_of_means": 1.0 - (0.6 + 0.27) / 0.9}[across]
        hits, repetitions = 0, 300
        for _ in range(repetitions):
            effects = rng.normal(0.0, 0.01, (2, 5, 1))  # of the specialist's seeds and of the joint arm's
            scores = {}
            for dataset, queries, means in (("a", 60, (0.6, 0.6)), ("b", 25, (0.3, 0.27))):
                own = rng.normal(0.0, 0.1, queries) + rng.normal(0.0, 0.05, (2, 1, queries))
                arms = np.reshape(means, (2, 1, 1)) + own + effects + rng.normal(0.0, 0.05, (2, 5, queries))
                scores[dataset] = (arms[0], arms[1])
            seeds = tuple(range(5))
            item = find(shape, GateScores(shape.arms, (seeds, seeds), paired, scores))
            hits += 0.025 <= item.estimate.confidence_below(truth) <= 0.975
        assert 0.92 <= hits / repetitions <= 0.985


class TestDifferences:
    @pytest.mark.parametrize(
        ("kind", "gap", "label"),
        [
            ("superiority", 0.02, "PASS"),
            ("superiority", 0.0, "FAIL"),
            ("superiority", -0.02, "FAIL"),
            ("non_inferiority", 0.02, "PASS"),
            ("non_inferiority", -0.005, "PASS"),
            ("non_inferiority", -0.02, "FAIL"),
            ("equivalence", 0.0, "PASS"),
            ("equivalence", 0.02, "FAIL"),
            ("equivalence", -0.02, "FAIL"),
        ],
    )
    def test_clear_results(self, tmp_path: Path, kind: str, gap: float, label: str) -> None:
        judged = register(tmp_path, **DIFFERENCE | {"kind": kind}).gates["it"]
        item = found(clear_gap(gap), judged)
        assert (region_of(judged, item.value), item.label) == (label, label)


def test_an_equivalence_gate_of_equal_arms_fails_one_time_in_ten_at_most(tmp_path: Path) -> None:
    """At a small margin it said FAIL for 16.9 % of equal arms: either side had the whole chance to be wrong."""
    rng = np.random.default_rng(5)
    asked = register(tmp_path, **DIFFERENCE | {"kind": "equivalence", "margin": 1e-4}).gates["it"]
    labels = [found(both(*simulate(3, 30, 0.0, rng=rng)), asked).label for _ in range(200)]
    assert labels.count("FAIL") <= 20
