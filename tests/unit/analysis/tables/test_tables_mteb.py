"""Pairs of arms, and MTEB's tables against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import make_result, without_queries
from support.tables import row

from unimoe.analysis.arms import pairs
from unimoe.analysis.tables.mteb import mteb_table, mteb_tasks_table
from unimoe.results import EvalResult
from unimoe.results.folder import Results


def test_each_joint_arm_pairs_with_the_specialist_whose_name_goes_on_alike() -> None:
    arms = ("rank_only_r8", "rank_only_r8_wide", "joint_r8", "joint_r8_pcgrad", "joint_r8_wide_pcgrad", "joint_r80")
    found = list(pairs([*arms, "jointly_r8"]))
    assert {pair.joint: pair.specialist for pair in found if pair.task == "reranking"} == {
        "joint_r8": "rank_only_r8",
        "joint_r8_pcgrad": "rank_only_r8",
        "joint_r8_wide_pcgrad": "rank_only_r8_wide",
        "joint_r80": "rank_only_r80",
    }
    assert ("emb_only_r8", "joint_r8") in [pair.arms for pair in found if pair.task == "embedding"]


def of(*items: EvalResult) -> Results:
    return Results(Path("outputs"), items)


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
    table = mteb_table(of(*suite()))
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
    kept = of(*(r for r in suite() if (r.config_name, r.seed, r.dataset) not in lacking))
    table = mteb_table(kept)
    assert row(table, "emb_only_r8")["STS (1)"].value == pytest.approx(80)
    assert row(table, "emb_only_r8")["Mean (Task)"].value == pytest.approx(100 * (0.8 + 0.9 + 0.5) / 3)
    assert "Left out of the means, not measured for zero_shot, joint_r8 seed 1: STS13." in table.notes
    assert "3 tasks" in table.caption
    of_task = row(mteb_tasks_table(kept), "STS13")
    assert of_task["joint_r8"].value == pytest.approx(60)
    assert of_task["zero_shot"].value is None
