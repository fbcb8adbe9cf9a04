from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result, simulate

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, compute_interference_metrics
from unimoe.analysis.crossed import crossed_interval, rule_label
from unimoe.analysis.interference import ESTIMANDS, Interference
from unimoe.analysis.verdict import percent, verdict_block
from unimoe.results import EvalResult, Task, TrainingBudget


def results(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


def pair(specialist: list[list[float]], joint: list[list[float]], task: Task = "reranking") -> Interference:
    word = {"reranking": "rank_only", "embedding": "emb_only"}[task]
    arms = {f"{word}_r8": specialist, "joint_r8": joint}
    items = [make_result(arm, seed, row, task=task) for arm, rows in arms.items() for seed, row in enumerate(rows)]
    return next(m for m in compute_interference_metrics(results(*items)).measured if m.pair.task == task)


@pytest.mark.parametrize("task", ["reranking", "embedding"])
def test_tir_by_seed_mean_std_and_deltas(task: Task) -> None:
    found = pair([[0.4, 0.6], [0.5, 0.7]], [[0.4, 0.5], [0.5, 0.64]], task)
    assert found.per_seed == pytest.approx((0.1, 0.05))
    assert found.mean == pytest.approx(0.075)
    assert found.std == pytest.approx(0.05 / math.sqrt(2))
    assert found.deltas == pytest.approx((-0.05, -0.03))
    assert found.delta == pytest.approx(-0.04)
    assert found.rule == "PASS"


@pytest.mark.parametrize(
    ("tir", "label"),
    [(0.5, "PASS"), (0.02, "PASS"), (0.019999, "MARGINAL"), (0.01, "MARGINAL"), (0.009999, "FAIL"), (-0.3, "FAIL")],
)
def test_the_rule(tir: float, label: str) -> None:
    assert rule_label(tir) == label


@pytest.mark.parametrize("specialist", [0.1, 0.3, 0.6, 0.7, 0.9])
def test_the_rule_is_not_moved_by_the_representation_of_decimals(specialist: float) -> None:
    assert rule_label((specialist - specialist * 0.98) / specialist) == "PASS"
    assert rule_label((specialist - specialist * 0.99) / specialist) == "MARGINAL"


def test_pairs_by_what_follows_the_task_word() -> None:
    arms = ("rank_only_r8", "joint_r8", "rank_only_r16", "joint_r16", "joint_r4", "jointly_r8")
    found = compute_interference_metrics(results(*(make_result(arm, 0, [0.5, 0.5]) for arm in arms)))
    assert [(m.pair.specialist, m.pair.joint) for m in found.measured] == [
        ("rank_only_r16", "joint_r16"),
        ("rank_only_r8", "joint_r8"),
    ]
    assert ("joint_r4", "rank_only_r4 missing") in [(m.pair.joint, m.reason) for m in found.missing]


def test_each_way_of_joint_training_is_set_against_the_specialist() -> None:
    arms = ("rank_only_r8", "rank_only_r8_wide", "joint_r8", "joint_r8_pcgrad", "joint_r8_wide_pcgrad", "joint_r80")
    found = compute_interference_metrics(results(*(make_result(arm, 0, [0.5, 0.5]) for arm in arms)))
    assert [(m.pair.joint, m.pair.specialist) for m in found.measured] == [
        ("joint_r8", "rank_only_r8"),
        ("joint_r8_pcgrad", "rank_only_r8"),
        ("joint_r8_wide_pcgrad", "rank_only_r8_wide"),
    ]
    reasons = [m.reason for m in found.missing]
    assert "rank_only_r80 missing" in reasons
    assert "emb_only_r8 and joint_r8_pcgrad missing" in reasons
    assert not any("joint_r8_wide missing" in reason for reason in reasons)


def test_uses_the_seeds_both_arms_have_and_names_the_others() -> None:
    items = [make_result("rank_only_r8", seed, [0.5, 0.7]) for seed in (0, 1, 2)]
    items += [make_result("joint_r8", seed, [0.5, 0.6]) for seed in (1, 2, 3)]
    found = compute_interference_metrics(results(*items)).measured[0]
    assert found.seeds == (1, 2)
    assert found.left_out == ("rank_only_r8 seed 0", "joint_r8 seed 3")


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([make_result("rank_only_r8", 0, [0.5])], "joint_r8 missing"),
        ([make_result("joint_r8", 0, [0.5])], "rank_only_r8 missing"),
        ([make_result("rank_only_r8", 0, [0.0]), make_result("joint_r8", 0, [0.5])], "scores nearly 0"),
        ([make_result("rank_only_r8", 0, [0.5]), make_result("joint_r8", 1, [0.5])], "no seed in common"),
        (
            [
                make_result("rank_only_r8", 0, [0.5]),
                make_result("joint_r8", 0, [0.5], dataset="scifact"),
                make_result("rank_only_r8", 0, [0.5], dataset="scifact"),
            ],
            "joint_r8 missing on apidocs",
        ),
    ],
)
def test_says_why_there_is_no_tir(items: list[EvalResult], reason: str) -> None:
    missing = compute_interference_metrics(results(*items)).missing
    assert any(reason in item.reason for item in missing if item.pair.task == "reranking")


def test_warns_of_unequal_budgets() -> None:
    def budget(examples: int) -> TrainingBudget:
        return TrainingBudget(steps=1, ranking_examples=examples, embedding_examples=0, tokens=1)

    items = [
        make_result("rank_only_r8", 0, [0.5, 0.5], training=budget(1000)),
        make_result("joint_r8", 0, [0.5, 0.5], training=budget(500)),
    ]
    (found,) = compute_interference_metrics(results(*items)).measured
    assert found.warnings[0].startswith(
        "unequal training: rank_only_r8 seed 0 saw 1,000 ranking examples, joint_r8 500"
    )


def test_one_seed_or_one_query_has_no_interval() -> None:
    assert pair([[0.5, 0.6]], [[0.5, 0.5]]).crossed is None
    assert pair([[0.5], [0.6]], [[0.5], [0.5]]).crossed is None
    assert pair([[0.5, 0.6]], [[0.5, 0.5]]).std is None


def test_two_intervals_say_what_they_speak_of() -> None:
    rng = np.random.default_rng(4)
    specialist, joint = simulate(4, 50, 0.05, rng=rng, seed_sd=0.002)
    found = pair(np.clip(specialist, 0.0, 1.0).tolist(), np.clip(joint, 0.0, 1.0).tolist())
    assert found.intervals == {"seeds_and_queries": found.crossed, "seeds": found.fixed_queries}
    assert ESTIMANDS.keys() == found.intervals.keys()
    assert found.crossed is not None
    assert found.fixed_queries is not None
    # Fifty queries are few: with them fixed, far less is uncertain.
    assert found.fixed_queries.high - found.fixed_queries.low < (found.crossed.high - found.crossed.low) / 2
    assert found.label == found.crossed.label


def test_with_fixed_queries_two_seeds_and_one_query_suffice() -> None:
    found = pair([[0.5], [0.6]], [[0.5], [0.5]])
    assert found.label is None
    assert found.fixed_queries is not None
    assert found.fixed_queries.estimate == pytest.approx(found.mean)
    assert pair([[0.5, 0.6]], [[0.5, 0.5]]).fixed_queries is None


def test_confidences_add_up_and_decide_the_label() -> None:
    rng = np.random.default_rng(3)
    clear = crossed_interval(*simulate(5, 2000, 0.10, rng=rng, seed_sd=0.002))
    vague = crossed_interval(*simulate(3, 60, 0.015, rng=rng))
    none = crossed_interval(*simulate(5, 2000, -0.10, rng=rng, seed_sd=0.002))
    assert clear is not None
    assert vague is not None
    assert none is not None
    assert (clear.label, vague.label, none.label) == ("PASS", "INCONCLUSIVE", "FAIL")
    for interval in (clear, vague, none):
        assert sum(interval.confidence.values()) == pytest.approx(1.0)
        assert interval.low < interval.estimate < interval.high


@pytest.mark.parametrize(("seed_sd", "query_sd", "larger"), [(0.05, 0.01, "seed_share"), (0.0005, 0.3, "query_share")])
def test_tells_which_variance_dominates(seed_sd: float, query_sd: float, larger: str) -> None:
    rng = np.random.default_rng(5)
    found = crossed_interval(*simulate(5, 200, 0.02, rng=rng, seed_sd=seed_sd, query_sd=query_sd))
    assert getattr(found, larger) > 0.5


@pytest.mark.parametrize(("seeds", "queries"), [(3, 60), (5, 200)])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds: int, queries: int) -> None:
    rng = np.random.default_rng(11)
    repetitions, truth = 400, 0.015
    covered = passed = 0
    for _ in range(repetitions):
        found = crossed_interval(*simulate(seeds, queries, truth, rng=rng))
        assert found is not None
        covered += found.low <= truth <= found.high
        passed += found.label == "PASS"
    # .95 within four standard errors of 400 repetitions, and a wrong PASS no more often than .10 promises
    assert abs(covered / repetitions - 0.95) < 4 * math.sqrt(0.95 * 0.05 / repetitions)
    assert passed / repetitions < 0.10 + 4 * math.sqrt(0.1 * 0.9 / repetitions)


def test_verdict_says_what_a_label_means() -> None:
    strong = [make_result("rank_only_r8", s, [0.6, 0.8, 0.7]) for s in (0, 1)]
    strong += [make_result("joint_r8", s, [0.3, 0.4, 0.35]) for s in (0, 1)]
    block = verdict_block(Analysis(results(*strong)))
    assert "PASS (interference confirmed: the specialist is ahead by 2 % or more" in block
    synergy = [
        make_result("rank_only_r8", 0, [0.5, 0.5], caveats=["smoke run"]),
        make_result("joint_r8", 0, [0.6, 0.6]),
    ]
    block = verdict_block(Analysis(results(*synergy)))
    assert "synergy" in block
    assert "Caveat: smoke run" in block
    assert "not computable, it needs two seeds" in block


def test_verdict_fits_a_terminal_and_keeps_numbers_whole() -> None:
    rng = np.random.default_rng(2)
    arms = zip(("rank_only_r8", "joint_r8"), simulate(3, 60, 0.03, rng=rng), strict=True)
    items = [make_result(arm, s, np.clip(row, 0, 1).tolist()) for arm, rows in arms for s, row in enumerate(rows)]
    block = verdict_block(Analysis(results(*items)))
    assert max(map(len, block.splitlines())) <= 96
    assert not any(line.strip().startswith("%") for line in block.splitlines())
    assert "INCONCLUSIVE" in block


def test_percent_never_rounds_over_a_cutoff() -> None:
    assert percent(0.0199996) == "+1.99996 %"
    assert percent(0.02) == "+2.00 %"
    assert percent(-0.031) == "-3.10 %"
