from __future__ import annotations

from unimoe.analysis.arms import Pair, pairs


def test_pairs_by_what_follows_the_task_word() -> None:
    found = list(pairs(["rank_only_r8", "joint_r8", "rank_only_r16", "joint_r16", "jointly_r8"]))
    assert found == [
        Pair("reranking", "rank_only_r16", "joint_r16"),
        Pair("reranking", "rank_only_r8", "joint_r8"),
        Pair("embedding", "emb_only_r16", "joint_r16"),
        Pair("embedding", "emb_only_r8", "joint_r8"),
    ]


def test_each_way_of_joint_training_is_set_against_the_specialist_it_continues() -> None:
    arms = ("rank_only_r8", "rank_only_r8_wide", "joint_r8", "joint_r8_pcgrad", "joint_r8_wide_pcgrad", "joint_r80")
    found = {pair.joint: pair.specialist for pair in pairs(arms) if pair.task == "reranking"}
    assert found == {
        "joint_r8": "rank_only_r8",
        "joint_r8_pcgrad": "rank_only_r8",
        "joint_r8_wide_pcgrad": "rank_only_r8_wide",
        "joint_r80": "rank_only_r80",
    }
