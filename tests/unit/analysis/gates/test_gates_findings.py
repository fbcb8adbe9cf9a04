"""What scores say of a gate: value, interval, region and label of every kind, and whether the label is stable."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from support.gates import (
    DIFFERENCE,
    INTERFERENCE,
    both,
    clear_gap,
    constant_gap,
    measured,
    register,
    results,
    scores_of,
)
from support.results import make_result, simulate

from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding, Stability, find, ratio_weights, region_of, stability_of
from unimoe.analysis.gates.judging import judge
from unimoe.analysis.gates.scores import collect
from unimoe.results.folder import Results


def gate(folder: Path, **change: Any) -> Gate:
    return register(folder, **INTERFERENCE | change).gates["it"]


def found(results: Results, gate: Gate) -> Finding:
    return find(gate, collect(results, gate))


def test_value_means_and_runs_by_hand(tmp_path: Path) -> None:
    item = found(both([[0.4, 0.6], [0.5, 0.7]], [[0.4, 0.5], [0.5, 0.64]]), gate(tmp_path))
    assert item.value == pytest.approx(1.0 - 0.51 / 0.55)
    assert item.means == pytest.approx((0.55, 0.51))
    assert item.runs[0] == pytest.approx((0.5, 0.6))
    assert item.runs[1] == pytest.approx((0.45, 0.57))
    assert item.by_seed == {0: pytest.approx(0.1), 1: pytest.approx(0.05)}
    assert item.std == pytest.approx(0.05 / math.sqrt(2))


@pytest.mark.parametrize(
    ("kind", "gap", "label"),
    [
        *(("interference", -0.1, "PASS"), ("interference", -0.0075, "MARGINAL"), ("interference", 0.0, "FAIL")),
        *(("superiority", 0.02, "PASS"), ("superiority", 0.0, "FAIL"), ("superiority", -0.02, "FAIL")),
        *(("non_inferiority", 0.02, "PASS"), ("non_inferiority", -0.005, "PASS"), ("non_inferiority", -0.02, "FAIL")),
        *(("equivalence", 0.0, "PASS"), ("equivalence", 0.02, "FAIL"), ("equivalence", -0.02, "FAIL")),
    ],
)
def test_clear_results_get_the_label_of_their_region(tmp_path: Path, kind: str, gap: float, label: str) -> None:
    asked = INTERFERENCE if kind == "interference" else DIFFERENCE | {"kind": kind}
    judged = register(tmp_path, **asked).gates["it"]
    item = found(clear_gap(gap), judged)
    assert (region_of(judged, item.value), item.label, item.why) == (label, label, "")


@pytest.mark.parametrize(
    ("value", "label"),
    [
        *((0.5, "PASS"), (0.02, "PASS"), (0.019999, "MARGINAL"), (0.01, "MARGINAL")),
        *((0.009999, "FAIL"), (-0.3, "FAIL"), (math.nan, "INCONCLUSIVE")),
    ],
)
def test_regions_begin_at_their_cutoff(tmp_path: Path, value: float, label: str) -> None:
    assert region_of(gate(tmp_path), value) == label


def test_surplus_seeds_and_other_seed_numbers_count(tmp_path: Path) -> None:
    specialist, joint = simulate(6, 60, 0.05, rng=np.random.default_rng(8))
    others = [make_result("joint_r8", 3 + seed, row.tolist()) for seed, row in enumerate(joint[:3])]
    item = found(results(measured("rank_only_r8", specialist[:5]), others), gate(tmp_path))
    assert item.seeds == ((0, 1, 2, 3, 4), (3, 4, 5))
    assert not item.paired
    assert item.estimate.interval is not None
    assert sorted(item.by_seed) == [3, 4]


def test_declared_seeds_without_two_in_common_are_unpaired_and_it_is_said(tmp_path: Path) -> None:
    specialist, joint = simulate(3, 60, 0.05, rng=np.random.default_rng(9))
    others = [make_result("joint_r8", 2 + s, row.tolist(), paired_seeds=True) for s, row in enumerate(joint)]
    arms = results(measured("rank_only_r8", specialist, paired_seeds=True), others)
    judgment = judge(arms, register(tmp_path, **INTERFERENCE), "it")
    assert not judgment.found.paired
    assert any("they are judged unpaired" in note for note in judgment.notes)


def test_two_arms_without_seeds_are_judged_for_other_queries_alone(tmp_path: Path) -> None:
    """BM25 against a bundled encoder had an interval "for other training seeds and other queries"."""
    rows = np.random.default_rng(1).uniform(0.4, 0.8, (2, 40))
    arms = results([make_result(arm, None, row) for arm, row in zip(("bm25", "zero_shot"), rows, strict=True)])
    asked = DIFFERENCE | {"kind": "superiority", "system": "bm25", "baseline": "zero_shot", "margin": 0.0}
    judgment = judge(arms, register(tmp_path, **asked), "it")
    item = judgment.found
    assert item.estimate.estimand == "queries"
    assert item.estimate.p == pytest.approx(scipy.stats.ttest_rel(*rows).pvalue)
    assert item.confidence, "it is judged all the same"
    assert "there are none" in judgment.stability.sentence
    of_seeds = found(arms, register(tmp_path, **asked | {"estimand": "seeds"}).gates["it"])
    assert "other training seeds cannot be judged" in of_seeds.why


def test_runs_that_no_two_datasets_share_are_separate_trainings(tmp_path: Path) -> None:
    specialist, joint = simulate(6, 30, 0.1, rng=np.random.default_rng(2))
    items = [
        make_result(arm, seed, rows[seed], dataset="a" if seed < 3 else "b")
        for arm, rows in (("rank_only_r8", specialist), ("joint_r8", joint))
        for seed in range(6)
    ]
    judgment = judge(results(items), register(tmp_path, **INTERFERENCE | {"datasets": ["a", "b"]}), "it")
    assert judgment.found.seeds == (tuple(range(6)), tuple(range(6)))
    assert (judgment.found.by_seed, judgment.found.runs) == ({}, ((), ()))
    apart = judgment.scores.moments
    assert len(apart.groups) == 4
    assert any("no run of rank_only_r8 and joint_r8 has the same name on two datasets" in n for n in judgment.notes)
    assert {row.left_out for row in judgment.stability.rows if row.kind == "seed"} >= {"joint_r8 seed 5"}


def test_scores_that_do_not_vary_are_inconclusive(tmp_path: Path) -> None:
    """Two seeds of constant scores had "t with inf degrees of freedom" and confidence 1.000."""
    difference = register(tmp_path, **DIFFERENCE | {"kind": "non_inferiority"}).gates["it"]
    constant = both([[0.6] * 8, [0.66] * 8], [[0.5] * 8, [0.55] * 8], paired_seeds=True)
    for scores, judged, region in ((constant, gate(tmp_path), "PASS"), (constant_gap(-0.1), difference, "FAIL")):
        item = found(scores, judged)
        assert (item.label, item.confidence) == ("INCONCLUSIVE", {})
        assert region_of(judged, item.value) == region
        assert "nothing varies" in item.why
        assert item.estimate.as_json()["degrees_of_freedom"] is None
    few = found(both([[0.5, 0.6]] * 2, [[0.4, 0.5]] * 2), gate(tmp_path))
    assert few.why == "the arms differ on 2 of 2 queries, and fewer than 6 cannot decide"


def two_datasets(*means: tuple[str, float, float], noise: int = 3) -> Results:
    rng = np.random.default_rng(noise)
    return results(
        *(
            measured(arm, mean + rng.normal(0.0, 0.001, (3, 30)), dataset)
            for dataset, *of_arms in means
            for arm, mean in zip(("rank_only_r8", "joint_r8"), of_arms, strict=True)
        )
    )


def test_both_ways_across_datasets_are_given(tmp_path: Path) -> None:
    arms, shape = two_datasets(("a", 0.2, 0.18), ("b", 0.8, 0.8)), INTERFERENCE | {"datasets": ["a", "b"]}
    judgment = judge(arms, register(tmp_path, **shape), "it")
    assert judgment.found.value == pytest.approx(0.05, abs=0.002)  # mean of 10 % and 0 %
    assert judgment.otherwise == pytest.approx(0.02, abs=0.001)  # 1 - (.98 / 1.00)
    assert [row.value for row in judgment.rows] == pytest.approx([0.1, 0.0], abs=0.003)
    swapped = judge(arms, register(tmp_path, **shape | {"across": "tir_of_means"}), "it")
    assert swapped.found.value == pytest.approx(judgment.otherwise)
    assert swapped.otherwise == pytest.approx(judgment.found.value)


def test_weights_give_each_dataset_the_same_say_and_cqadupstack_one() -> None:
    names = ["scifact", "cqadupstack/tex", "cqadupstack/unix"]
    assert ratio_weights(names, "mean_of_tirs").tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    assert ratio_weights(names, "tir_of_means").tolist() == [[0.5, 0.25, 0.25]]


@pytest.mark.parametrize("across", ["mean_of_tirs", "tir_of_means"])
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_cover_the_truth(tmp_path: Path, across: str, paired: bool) -> None:
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
        item = find(shape, scores_of(shape, scores, paired=paired))
        hits += 0.025 <= item.estimate.confidence_below(truth) <= 0.975
    assert 0.92 <= hits / repetitions <= 0.985


def test_an_equivalence_gate_of_equal_arms_fails_one_time_in_ten_at_most(tmp_path: Path) -> None:
    """At a small margin it said FAIL for 16.9 % of equal arms: either side had the whole chance to be wrong."""
    rng = np.random.default_rng(5)
    asked = register(tmp_path, **DIFFERENCE | {"kind": "equivalence", "margin": 1e-4}).gates["it"]
    labels = [found(both(*simulate(3, 30, 0.0, rng=rng)), asked).label for _ in range(200)]
    assert labels.count("FAIL") <= 20


def stability(found: Results, folder: Path, **change: Any) -> Stability:
    return judge(found, register(folder, **INTERFERENCE | change), "it").stability


def test_without_a_seed_the_value_is_that_of_what_remains(tmp_path: Path) -> None:
    specialist, joint = np.random.default_rng(5).uniform(0.2, 0.9, (2, 4, 30))
    judgment = judge(both(specialist, joint), register(tmp_path, **DIFFERENCE | {"kind": "superiority"}), "it")
    kept = [0, 1, 3]
    rows = {row.left_out: row.value for row in judgment.stability.rows}
    assert rows["rank_only_r8 seed 2"] == pytest.approx(joint.mean() - specialist[kept].mean())
    assert rows["joint_r8 seed 2"] == pytest.approx(joint[kept].mean() - specialist.mean())


def test_a_dataset_that_carries_the_label_is_named(tmp_path: Path) -> None:
    arms = two_datasets(("a", 0.6, 0.4), ("b", 0.6, 0.6), ("c", 0.6, 0.6), noise=0)
    said = stability(arms, tmp_path, datasets=["a", "b", "c"])
    datasets = {row.left_out: row.label for row in said.rows if row.kind == "dataset"}
    assert datasets == {"a": "FAIL", "b": "PASS", "c": "PASS"}
    assert said.holds is False
    assert "PASS becomes FAIL without a" in said.sentence


def test_fewer_seeds_alone_are_no_instability(tmp_path: Path) -> None:
    """At TIR 3 % 64 % of PASS labels "became INCONCLUSIVE" where leaving a seed out only cost degrees of freedom."""
    asked, rng = gate(tmp_path), np.random.default_rng(21)
    passed = unstable = reversed_ = 0
    for _ in range(150):
        arms = simulate(3, 2_000, 0.03, rng=rng, seed_sd=0.001, query_sd=0.05)
        scores = scores_of(asked, {"apidocs": arms})
        whole = find(asked, scores)
        if whole.label == "PASS":
            item = stability_of(asked, scores, whole)
            passed += 1
            unstable += item.holds is False
            reversed_ += any(row.label == "FAIL" for row in item.rows)
    assert passed > 50
    assert unstable / passed < 0.25
    assert reversed_ == 0


def test_a_label_that_hangs_on_one_seed_is_unstable(tmp_path: Path) -> None:
    specialist = 0.6 + np.random.default_rng(3).normal(0.0, 0.001, (12, 40))
    joint = np.vstack([specialist[:11] * 0.99, specialist[11:] * 0.80])
    said = stability(both(specialist, joint), tmp_path, fail_below=0.02, confidence=0.6)
    assert said.holds is False
    assert "PASS becomes" in said.sentence
    assert "without joint_r8 seed 11" in said.sentence
    alone = stability(clear_gap(-0.1, seeds=1), tmp_path)
    assert (alone.rows, alone.holds) == ((), None)
    assert alone.sentence.startswith("not tried: no seed can be left out, there is one")
