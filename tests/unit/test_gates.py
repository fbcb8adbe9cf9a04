from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import (
    DIFFERENCE,
    INTERFERENCE,
    both,
    constant_gap,
    gate_file,
    measured,
    register,
    results,
)
from support.results import make_result, simulate

from unimoe.analysis.crossed import crossed_interval
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge, judge_all
from unimoe.analysis.gates.output import gate_lines
from unimoe.analysis.gates.scores import GateScores
from unimoe.analysis.gates.values import interval_of
from unimoe.errors import DataError
from unimoe.results import TrainingBudget


class TestInterference:
    @pytest.mark.parametrize(
        ("joint", "label"),
        [(0.588, "PASS"), (0.5881, "MARGINAL"), (0.594, "MARGINAL"), (0.5941, "FAIL"), (0.6, "FAIL"), (0.7, "FAIL")],
    )
    def test_certain_results_get_the_rules_label(self, tmp_path: Path, joint: float, label: str) -> None:
        judgment = judge(both([[0.6] * 4] * 3, [[joint] * 4] * 3), register(tmp_path, **INTERFERENCE), "it")
        assert (judgment.found.rule, judgment.label) == (label, label)

    def test_one_dataset_has_the_crossed_interval(self, tmp_path: Path) -> None:
        specialist, joint = simulate(4, 50, 0.03, rng=np.random.default_rng(1))
        judgment = judge(both(specialist, joint), register(tmp_path, **INTERFERENCE), "it")
        expected = crossed_interval(specialist, joint)
        assert judgment.found.interval is not None
        assert expected is not None
        for field in ("estimate", "standard_error", "degrees_of_freedom", "low", "high"):
            assert getattr(judgment.found.interval, field) == pytest.approx(getattr(expected, field), rel=1e-9)
        assert math.fsum(judgment.found.confidence.values()) == pytest.approx(1.0)

    def test_noise_is_inconclusive(self, tmp_path: Path) -> None:
        specialist, joint = simulate(3, 30, 0.015, rng=np.random.default_rng(2))
        judgment = judge(both(specialist, joint), register(tmp_path, **INTERFERENCE), "it")
        assert judgment.label == "INCONCLUSIVE"
        assert judgment.found.rule != "INCONCLUSIVE"

    def test_one_seed_cannot_decide(self, tmp_path: Path) -> None:
        judgment = judge(constant_gap(-0.1, seeds=1), register(tmp_path, **INTERFERENCE), "it")
        assert (judgment.found.rule, judgment.label, judgment.found.interval) == ("PASS", "INCONCLUSIVE", None)

    def test_a_dataset_of_one_query_cannot_decide(self, tmp_path: Path) -> None:
        groups = [measured("rank_only_r8", [[0.6] * n] * 3, dataset) for dataset, n in (("a", 1), ("b", 9))]
        groups += [measured("joint_r8", [[0.5] * n] * 3, dataset) for dataset, n in (("a", 1), ("b", 9))]
        gate = INTERFERENCE | {"datasets": ["a", "b"]}
        assert judge(results(*groups), register(tmp_path, **gate), "it").label == "INCONCLUSIVE"
        seeds_alone = register(tmp_path, **gate | {"estimand": "seeds"})
        assert judge(results(*groups), seeds_alone, "it").label == "PASS"

    def test_both_ways_across_datasets_are_given(self, tmp_path: Path) -> None:
        found = results(
            measured("rank_only_r8", [[0.2, 0.2]] * 2, "a"),
            measured("joint_r8", [[0.18, 0.18]] * 2, "a"),
            measured("rank_only_r8", [[0.8, 0.8]] * 2, "b"),
            measured("joint_r8", [[0.8, 0.8]] * 2, "b"),
        )
        gate = INTERFERENCE | {"datasets": ["a", "b"]}
        judgment = judge(found, register(tmp_path, **gate), "it")
        assert judgment.found.value == pytest.approx(0.05)  # mean of 10 % and 0 %
        assert judgment.unregistered == pytest.approx(0.02)  # 1 - (.98 / 1.00)
        assert judgment.per_dataset == {"a": pytest.approx(0.1), "b": pytest.approx(0.0)}
        swapped = judge(found, register(tmp_path, **gate | {"across": "tir_of_means"}), "it")
        assert swapped.found.value == pytest.approx(0.02)
        assert swapped.unregistered == pytest.approx(0.05)
        assert swapped.found.interval is not None
        assert swapped.found.interval.estimate == pytest.approx(0.02)

    def test_a_specialist_at_zero_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="rank_only_r8 scores nearly 0 on apidocs"):
            judge(both([[0.0] * 3] * 2, [[0.1] * 3] * 2), register(tmp_path, **INTERFERENCE), "it")

    @pytest.mark.parametrize("across", ["mean_of_tirs", "tir_of_means"])
    def test_intervals_across_datasets_cover_the_truth(self, tmp_path: Path, across: str) -> None:
        """Seeds move both datasets together; datasets of other sizes and other scores."""
        rng = np.random.default_rng(13)
        gate = register(tmp_path, **INTERFERENCE | {"datasets": ["a", "b"], "across": across}).gates["it"]
        truth = {"mean_of_tirs": (0.0 + 0.1) / 2, "tir_of_means": 1.0 - (0.6 + 0.27) / 0.9}[across]
        hits, repetitions = 0, 1000
        for _ in range(repetitions):
            effects = rng.normal(0.0, 0.01, (2, 5, 1))  # of the specialist's seeds and of the joint arm's
            scores = {}
            for dataset, queries, means in (("a", 60, (0.6, 0.6)), ("b", 25, (0.3, 0.27))):
                own = rng.normal(0.0, 0.1, queries) + rng.normal(0.0, 0.05, (2, 1, queries))
                arms = np.reshape(means, (2, 1, 1)) + own + effects + rng.normal(0.0, 0.05, (2, 5, queries))
                scores[dataset] = (arms[0], arms[1])
            interval = interval_of(gate, GateScores(tuple(range(5)), scores))
            assert interval is not None
            hits += interval.low <= truth <= interval.high
        assert 0.93 <= hits / repetitions <= 0.975


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
            ("equivalence", 0.01, "PASS"),
            ("equivalence", -0.01, "PASS"),
            ("equivalence", 0.02, "FAIL"),
            ("equivalence", -0.02, "FAIL"),
        ],
    )
    def test_certain_results(self, tmp_path: Path, kind: str, gap: float, label: str) -> None:
        judgment = judge(constant_gap(gap), register(tmp_path, **DIFFERENCE | {"kind": kind}), "it")
        assert (judgment.found.rule, judgment.label) == (label, label)

    @pytest.mark.parametrize("kind", ["superiority", "non_inferiority", "equivalence"])
    def test_noise_around_the_margin_is_inconclusive(self, tmp_path: Path, kind: str) -> None:
        rng = np.random.default_rng(4)
        base = rng.uniform(0.2, 0.8, (3, 12))
        gap = 0.01 if kind == "superiority" else -0.01
        noisy = base + gap + rng.normal(0.0, 0.2, (3, 12))
        judgment = judge(both(base, noisy), register(tmp_path, **DIFFERENCE | {"kind": kind}), "it")
        assert judgment.label == "INCONCLUSIVE"

    def test_an_arm_without_seeds_is_the_same_against_every_seed(self, tmp_path: Path) -> None:
        found = results(measured("joint_r8", [[0.5, 0.7], [0.6, 0.8]]), [make_result("zero_shot", None, [0.4, 0.4])])
        gate = DIFFERENCE | {"kind": "superiority", "baseline": "zero_shot"}
        judgment = judge(found, register(tmp_path, **gate), "it")
        assert list(judgment.found.per_seed) == pytest.approx([0.2, 0.3])
        assert judgment.seeds == (0, 1)

    def test_another_metric_than_the_main_one(self, tmp_path: Path) -> None:
        gate = DIFFERENCE | {"kind": "equivalence", "metric": "mrr@10"}
        assert judge(constant_gap(0.015), register(tmp_path, **gate), "it").found.value == pytest.approx(0.0075)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["interference", "superiority", "non_inferiority", "equivalence"])
def test_a_plan_calls_settled_what_has_a_label(tmp_path: Path, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = both(*simulate(3, 60, rng.choice([0.0, 0.015, 0.05]), rng=rng, query_sd=0.02))
    gate = INTERFERENCE if kind == "interference" else DIFFERENCE | {"kind": kind}
    judgment = judge(found, register(tmp_path, **gate), "it")
    assert judgment.plan is not None
    assert judgment.plan.settled == (judgment.label != "INCONCLUSIVE")


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"joint": "joint_r9"}, ["'joint_r9'", "did you mean 'joint_r8'?"]),
            ({"datasets": ["apidoc"]}, ["no reranking/apidoc result of rank_only_r8", "'reranking/apidocs'"]),
            ({"task": "embedding"}, ["no embedding/apidocs result"]),
            ({"metric": "ndcg"}, ["no per-query 'ndcg'"]),
            ({"seeds": [0, 7]}, ["seed 7"]),
        ],
    )
    def test_what_has_no_results_is_named(self, tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
        registration = register(tmp_path, **INTERFERENCE | change)
        (outcome,) = judge_all(constant_gap(0.0), registration)
        assert isinstance(outcome, Refusal)
        for word in ["gates.yaml", "'it'", *words]:
            assert word in str(outcome.error)

    def test_registered_seeds_of_arms_without_any(self, tmp_path: Path) -> None:
        found = results([make_result(arm, None, [0.5, 0.6]) for arm in ("bm25", "zero_shot")])
        arms = {"kind": "equivalence", "system": "bm25", "baseline": "zero_shot"}
        assert judge(found, register(tmp_path, **DIFFERENCE | arms), "it").label == "PASS"
        with pytest.raises(DataError, match="neither bm25 nor zero_shot has training seeds"):
            judge(found, register(tmp_path, **DIFFERENCE | arms | {"seeds": [0]}), "it")

    def test_no_seed_in_common(self, tmp_path: Path) -> None:
        found = results([make_result("rank_only_r8", 0, [0.5, 0.6])], [make_result("joint_r8", 1, [0.5, 0.6])])
        with pytest.raises(DataError, match="no seed in common"):
            judge(found, register(tmp_path, **INTERFERENCE), "it")


class TestNotes:
    def test_results_older_than_the_gate(self, tmp_path: Path) -> None:
        late = load_gates(gate_file(tmp_path, registered="2026-02-07T12:00:01Z", it=INTERFERENCE))
        (note,) = judge(constant_gap(0.0), late, "it").notes
        assert note.startswith("6 of 6 results are older than this gate")
        early = load_gates(gate_file(tmp_path, registered="2026-02-07T12:00:00Z", it=INTERFERENCE))
        assert judge(constant_gap(0.0), early, "it").notes == ()

    def test_a_small_dataset_beside_a_large_one(self, tmp_path: Path) -> None:
        found = results(
            *(
                measured(arm, np.full((2, queries), score), dataset)
                for arm, score in (("rank_only_r8", 0.6), ("joint_r8", 0.5))
                for dataset, queries in (("tiny", 3), ("large", 40))
            )
        )
        gate = register(tmp_path, **INTERFERENCE | {"datasets": ["tiny", "large"]})
        assert judge(found, gate, "it").notes == (
            "fewer than 10 queries on tiny: the interval across datasets is too narrow",
        )

    def test_seeds_left_out_unequal_budgets_and_caveats(self, tmp_path: Path) -> None:
        def budget(examples: int) -> TrainingBudget:
            return TrainingBudget(steps=1, ranking_examples=examples, embedding_examples=0, tokens=1)

        found = results(
            measured("rank_only_r8", [[0.5, 0.6]] * 3, training=budget(8)),
            measured("joint_r8", [[0.5, 0.6]] * 2, training=budget(4), caveats=["smoke run"]),
        )
        notes = judge(found, register(tmp_path, **INTERFERENCE), "it").notes
        assert notes[0] == "left out, the other arm or another dataset lacks the seed: rank_only_r8 seed 2"
        assert notes[1].startswith("unequal training: rank_only_r8 seed 0 saw 8 ranking examples")
        assert judge(found, register(tmp_path, **INTERFERENCE), "it").advisory == ("smoke run",)


class TestExitCode:
    @pytest.mark.parametrize(
        ("labels", "code"),
        [
            (["PASS"], 0),
            (["PASS", "MARGINAL"], 11),
            (["MARGINAL", "INCONCLUSIVE", "PASS"], 12),
            (["INCONCLUSIVE", "FAIL", "MARGINAL"], 10),
            (["FAIL", "refused", "PASS"], 3),
            ([], 12),
        ],
    )
    def test_the_worst_counts(self, tmp_path: Path, labels: list[str], code: int) -> None:
        gate = register(tmp_path, **INTERFERENCE).gates["it"]
        refusal = Refusal("it", gate, DataError("gone"))
        assert exit_code([refusal if label == "refused" else judged_as(tmp_path, label) for label in labels]) == code


def judged_as(folder: Path, label: str) -> Judgment:
    joint = {"PASS": 0.5, "MARGINAL": 0.591, "FAIL": 0.6, "INCONCLUSIVE": 0.5}[label]
    seeds = 1 if label == "INCONCLUSIVE" else 2
    judgment = judge(both([[0.6] * 3] * seeds, [[joint] * 3] * seeds), register(folder, **INTERFERENCE), "it")
    assert judgment.label == label
    return judgment


def test_numbers_are_never_rounded_over_a_cutoff(tmp_path: Path) -> None:
    registration = register(tmp_path, **INTERFERENCE | {"pass_at": 0.03})
    text = gate_lines(registration, judge_all(both([[0.6] * 3] * 2, [[0.582001] * 3] * 2), registration))
    assert "+2.9998 %" in text
    assert "MARGINAL (interference of 1 % to 3 %" in text
