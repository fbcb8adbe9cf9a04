"""What scores say of a gate: value, interval, region and label of every kind, and whether the label is stable."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from support.results import (
    DIFFERENCE,
    INTERFERENCE,
    both,
    clear_gap,
    gate_file,
    judged,
    make_result,
    measured,
    register,
    results_of,
    scores_of,
    simulate,
)

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import DifferenceGate, InterferenceGate, load_gates
from unimoe.analysis.gates.findings import evaluate_gate, ratio_weights, region_of, stability_of
from unimoe.analysis.gates.registration import REGISTERED, default_gates, registered_in, unmet
from unimoe.analysis.gates.registration import register as register_in
from unimoe.analysis.gates.wording import headline
from unimoe.core.errors import DataError
from unimoe.results import write_result
from unimoe.results.folder import Results

GATE = InterferenceGate.model_validate(INTERFERENCE)


def test_regions_begin_at_their_cutoff() -> None:
    regions = {0.02: "PASS", 0.019999: "MARGINAL", 0.01: "MARGINAL", 0.009999: "FAIL", -0.3: "FAIL"}
    assert {value: region_of(GATE, value) for value in regions} == regions
    assert region_of(GATE, math.nan) == "INCONCLUSIVE"


def test_surplus_seeds_and_other_seed_numbers_count() -> None:
    specialist, joint = simulate(6, 60, 0.05, rng=np.random.default_rng(8))
    others = [make_result("joint_r8", 3 + seed, row) for seed, row in enumerate(joint[:3])]
    item = judged(results_of(*measured("rank_only_r8", specialist[:5]), *others), **INTERFERENCE).found
    assert item.seeds == ((0, 1, 2, 3, 4), (3, 4, 5))
    assert not item.paired
    assert item.estimate.interval is not None
    assert sorted(item.by_seed) == [3, 4]


def test_declared_seeds_without_two_in_common_are_unpaired_and_it_is_said() -> None:
    specialist, joint = simulate(3, 60, 0.05, rng=np.random.default_rng(9))
    others = [make_result("joint_r8", 2 + s, row, paired_seeds=True) for s, row in enumerate(joint)]
    judgment = judged(results_of(*measured("rank_only_r8", specialist, paired_seeds=True), *others), **INTERFERENCE)
    assert not judgment.found.paired
    assert any("they are judged unpaired" in note for note in judgment.notes)


def test_a_gate_that_pools_runs_is_narrower_and_says_so() -> None:
    """Three seeds of each arm, alike by their recipe: four degrees of freedom in place of two or so."""
    specialist, joint = simulate(3, 400, 0.05, rng=np.random.default_rng(1), seed_sd=0.02, query_sd=0.02)
    results = results_of(*measured("rank_only_r8", specialist), *measured("joint_r8", joint))
    own, pooled = (judged(results, **INTERFERENCE, pool_runs=pool) for pool in (False, True))
    assert pooled.found.value == own.found.value
    assert pooled.found.estimate.degrees_of_freedom == pytest.approx(4.0, abs=0.5)
    assert own.found.estimate.degrees_of_freedom < pooled.found.estimate.degrees_of_freedom
    said = "runs pooled over 2 systems: the gate takes both to vary alike from run to run"
    assert (said in pooled.notes, said in own.notes) == (True, False)


def test_results_that_declare_pooled_runs_have_pooled_tests_and_default_gates() -> None:
    specialist, joint = simulate(3, 400, 0.05, rng=np.random.default_rng(1), seed_sd=0.02)
    made = [*measured("rank_only_r8", specialist), *measured("joint_r8", joint)]
    declared = [r.model_copy(update={"config": r.config | {"pool_runs": True}}) for r in made]
    for results, number in ((declared, 2), (made, 0), ([made[0], *declared[1:]], 0)):
        found = Analysis(results_of(*results))
        assert [test.pooled for test in found.comparisons] == [number]
        assert [item.gate.pool_runs for item in found.judgments] == [number > 0]


def test_two_arms_without_seeds_are_judged_for_other_queries_alone() -> None:
    """BM25 against a bundled encoder had an interval "for other training seeds and other queries"."""
    rows = np.random.default_rng(1).uniform(0.4, 0.8, (2, 40))
    arms = results_of(make_result("bm25", None, rows[0]), make_result("zero_shot", None, rows[1]))
    asked = DIFFERENCE | {"kind": "superiority", "system": "bm25", "baseline": "zero_shot", "margin": 0.0}
    judgment = judged(arms, **asked)
    item = judgment.found
    assert item.estimate.estimand == "queries"
    assert item.estimate.p == pytest.approx(scipy.stats.ttest_rel(*rows).pvalue)
    assert item.confidence, "it is judged all the same"
    assert "there are none" in judgment.stability.sentence
    assert "other training seeds cannot be judged" in judged(arms, **asked, estimand="seeds").found.why


def test_runs_that_no_two_datasets_share_are_separate_trainings() -> None:
    specialist, joint = simulate(6, 30, 0.1, rng=np.random.default_rng(2))
    items = [
        make_result(arm, seed, rows[seed], dataset="a" if seed < 3 else "b")
        for arm, rows in (("rank_only_r8", specialist), ("joint_r8", joint))
        for seed in range(6)
    ]
    judgment = judged(results_of(*items), **INTERFERENCE | {"datasets": ["a", "b"]})
    assert judgment.found.seeds == (tuple(range(6)), tuple(range(6)))
    assert (judgment.found.by_seed, judgment.found.runs) == ({}, ((), ()))
    assert len(judgment.scores.moments.groups) == 4
    assert any("no run of rank_only_r8 and joint_r8 has the same name on two datasets" in n for n in judgment.notes)
    assert {row.left_out for row in judgment.stability.rows if row.kind == "seed"} >= {"joint_r8 seed 5"}


def test_scores_that_do_not_vary_are_inconclusive() -> None:
    """Two seeds of constant scores had "t with inf degrees of freedom" and confidence 1.000."""
    constant = judged(both([[0.6] * 8, [0.66] * 8], [[0.5] * 8, [0.55] * 8], paired_seeds=True), **INTERFERENCE)
    base = np.linspace(0.3, 0.7, 20) + 0.01 * np.arange(3)[:, None]
    lower = judged(both(base, base - 0.1, paired_seeds=True), **DIFFERENCE, kind="non_inferiority")
    for judgment in (constant, lower):
        assert (judgment.label, judgment.found.confidence) == ("INCONCLUSIVE", {})
        assert "nothing varies" in judgment.found.why
        assert judgment.found.estimate.as_json()["degrees_of_freedom"] is None


def on_datasets(noise: int = 3, **means: tuple[float, float]) -> Results:
    """The specialist and the joint arm with these means on each dataset."""
    rng, arms = np.random.default_rng(noise), ("rank_only_r8", "joint_r8")
    placed = [(arm, mean, dataset) for dataset in means for arm, mean in zip(arms, means[dataset], strict=True)]
    scores = [measured(arm, mean + rng.normal(0.0, 0.001, (3, 30)), dataset) for arm, mean, dataset in placed]
    return results_of(*(result for of_arm in scores for result in of_arm))


def test_both_ways_across_datasets_are_given() -> None:
    arms, gate = on_datasets(a=(0.2, 0.18), b=(0.8, 0.8)), INTERFERENCE | {"datasets": ["a", "b"]}
    judgment = judged(arms, **gate)
    assert judgment.found.value == pytest.approx(0.05, abs=0.002)  # mean of 10 % and 0 %
    assert judgment.otherwise == pytest.approx(0.02, abs=0.001)  # 1 - (.98 / 1.00)
    assert [row.value for row in judgment.rows] == pytest.approx([0.1, 0.0], abs=0.003)
    swapped = judged(arms, **gate, across="tir_of_means")
    assert swapped.found.value == pytest.approx(judgment.otherwise)
    assert swapped.otherwise == pytest.approx(judgment.found.value)


def test_weights_give_each_dataset_the_same_say_and_cqadupstack_one() -> None:
    names = ["scifact", "cqadupstack/tex", "cqadupstack/unix"]
    assert ratio_weights(names, "mean_of_tirs").tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    assert ratio_weights(names, "tir_of_means").tolist() == [[0.5, 0.25, 0.25]]


def test_an_equivalence_gate_of_equal_arms_fails_one_time_in_ten_at_most() -> None:
    """At a small margin it said FAIL for 16.9 % of equal arms: either side had the whole chance to be wrong."""
    rng = np.random.default_rng(5)
    gate = DifferenceGate.model_validate(DIFFERENCE | {"kind": "equivalence", "margin": 1e-4})
    equal = (scores_of(gate, {"apidocs": simulate(3, 30, 0.0, rng=rng)}) for _ in range(200))
    labels = [evaluate_gate(gate, scores).label for scores in equal]
    assert labels.count("FAIL") <= 20


def test_a_dataset_that_carries_the_label_is_named() -> None:
    arms = on_datasets(noise=0, a=(0.6, 0.4), b=(0.6, 0.6), c=(0.6, 0.6))
    judgment = judged(arms, **INTERFERENCE | {"datasets": ["a", "b", "c"]})
    said = judgment.stability
    datasets = {row.left_out: row.label for row in said.rows if row.kind == "dataset"}
    assert datasets == {"a": "FAIL", "b": "PASS", "c": "PASS"}
    assert said.holds is False
    assert "PASS becomes FAIL without a" in said.sentence
    assert headline(judgment).endswith(": interference, 2 % or more; without a it is no interference.")


def test_fewer_seeds_alone_are_no_instability() -> None:
    """At TIR 3 % 64 % of PASS labels "became INCONCLUSIVE" where leaving a seed out only cost degrees of freedom."""
    rng = np.random.default_rng(21)
    passed = unstable = reversed_ = 0
    for _ in range(150):
        scores = scores_of(GATE, {"apidocs": simulate(3, 2_000, 0.03, rng=rng, seed_sd=0.001, query_sd=0.05)})
        whole = evaluate_gate(GATE, scores)
        if whole.label == "PASS":
            item = stability_of(GATE, scores, whole)
            passed += 1
            unstable += item.holds is False
            reversed_ += any(row.label == "FAIL" for row in item.rows)
    assert passed > 50
    assert unstable / passed < 0.25
    assert reversed_ == 0


def test_a_label_that_hangs_on_one_seed_is_unstable() -> None:
    specialist = 0.6 + np.random.default_rng(3).normal(0.0, 0.001, (12, 40))
    joint = np.vstack([specialist[:11] * 0.99, specialist[11:] * 0.80])
    said = judged(both(specialist, joint), **INTERFERENCE, fail_below=0.02, confidence=0.6).stability
    assert said.holds is False
    assert "PASS becomes" in said.sentence
    assert "without joint_r8 seed 11" in said.sentence
    alone = judged(clear_gap(-0.1, seeds=1), **INTERFERENCE).stability
    assert (alone.rows, alone.holds) == ((), None)
    assert alone.sentence.startswith("not tried: no seed can be left out, there is one")


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (INTERFERENCE | {"pass_att": 0.02}, "gates.it.pass_att: unknown key (did you mean 'pass_at'?)"),
        (INTERFERENCE | {"pass_at": 0.0}, "gates.it.pass_at: must be above 0"),
        (INTERFERENCE | {"seeds": [0, 1, 1]}, "gates.it.seeds: 1 is listed twice"),
        (INTERFERENCE | {"pass_at": 2.0}, "gates.it.pass_at: 2 means 200 %; 2 % is written 0.02"),
        (DIFFERENCE | {"kind": "equivalence", "margin": 0.0}, "gates.it: margin must be above 0"),
        (INTERFERENCE | {"looks": [5, 3]}, "gates.it.looks: [5, 3] does not ascend"),
        (INTERFERENCE | {"looks": [1, 3]}, "gates.it.looks[0]: must be at least 2"),
        (INTERFERENCE | {"looks": [3, 5], "seeds": [0, 1, 2]}, "last look is at 5 seeds, but only 3 are registered"),
        (INTERFERENCE | {"looks": [3, 5], "estimand": "queries"}, "looks count seeds"),
        ({}, "gates.it.kind: this key is required"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, gate: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as refused:
        register(tmp_path, **gate)
    assert str(refused.value).startswith(f"{tmp_path / 'gates.yaml'}: ")
    assert words in str(refused.value)


TWO_SEEDS = [[0.6, 0.5, 0.7]] * 2


def test_a_folder_takes_a_file_to_the_byte_before_its_first_result_and_keeps_it(tmp_path: Path) -> None:
    path, folder = gate_file(tmp_path, it=INTERFERENCE), tmp_path / "out"
    path.write_bytes(b"# caf\xc3\xa9\r\n" + path.read_bytes())
    registration = load_gates(path)
    assert register_in(registration, folder)
    copy = registered_in(folder)
    assert copy is not None
    assert (copy.path, copy.content_hash) == (folder / REGISTERED, registration.content_hash)
    write_result(folder, make_result("joint_r8", 0, [0.5, 0.6]))
    assert register_in(registration, folder), "it stays when the run goes on"
    before = (folder / REGISTERED).read_bytes()
    other = register(tmp_path, **INTERFERENCE | {"pass_at": 0.5})
    with pytest.raises(DataError, match=r"gates\.yaml registers other gates .* choose another --output-dir"):
        register_in(other, folder)
    assert (folder / REGISTERED).read_bytes() == before
    (folder / REGISTERED).unlink()
    assert not register_in(registration, folder), "after the first result it is too late"
    assert registered_in(folder) is None


def test_what_an_experiment_will_not_have_is_said_beforehand(tmp_path: Path) -> None:
    registration = register(
        tmp_path, **INTERFERENCE | {"joint": "joint_r9", "seeds": [0, 1, 2], "specialist_must_beat": "zero_shot"}
    )
    file = tmp_path / "gates.yaml"
    assert list(unmet(registration, ["rank_only_r8", "joint_r8"], [0], {"reranking": ["apidoc"]})) == [
        f"{file}: gate 'it' names arm 'joint_r9', which this experiment does not have (did you mean 'joint_r8'?)",
        f"{file}: gate 'it' names arm 'zero_shot', which this experiment does not have",
        f"{file}: gate 'it' registers seed 1, 2, which this experiment does not train",
        f"{file}: gate 'it' names reranking/apidocs, on which this experiment is not evaluated (did you mean 'apidoc'?)"
        "; write its own dataset, or leave 'gates' out of the config for default gates",
    ]
    arms = ["rank_only_r8", "joint_r9", "zero_shot"]
    assert not list(unmet(registration, arms, [0, 1, 2], {"reranking": ["apidocs"]}))


def test_default_gates_never_mix_main_metrics() -> None:
    places = (("scifact", "ndcg@10"), ("msmarco", "map"), ("fiqa", "ndcg@10"))
    arms = [both(TWO_SEEDS, TWO_SEEDS, dataset=dataset, metric=metric).results for dataset, metric in places]
    gates = default_gates(results_of(*(result for on_dataset in arms for result in on_dataset))).gates
    assert {name: (gate.datasets, gate.metric) for name, gate in gates.items()} == {
        "reranking.joint_r8-ndcg@10": (["fiqa", "scifact"], "ndcg@10"),
        "reranking.joint_r8-map": (["msmarco"], "map"),
    }


def test_what_a_file_requires_keeps_no_other_dataset_from_being_judged(tmp_path: Path) -> None:
    """A dataset without zero-shot beside the gate's own was NOT JUDGED."""
    arms = [*both(TWO_SEEDS, TWO_SEEDS).results, *both(TWO_SEEDS, TWO_SEEDS, dataset="b").results]
    found = results_of(*arms, make_result("zero_shot", None, [0.1] * len(TWO_SEEDS[0])))
    registration = register(tmp_path, **INTERFERENCE | {"specialist_must_beat": "zero_shot"})
    (other,) = default_gates(found, registration).gates.values()
    assert isinstance(other, InterferenceGate)
    assert (other.datasets, other.specialist_must_beat) == (["b"], None)
    assert len(Analysis(found, registration).judgments) == 2
