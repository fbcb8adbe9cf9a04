from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.results import make_result, write_experiment

from unimoe.analysis.compare import load_all_results
from unimoe.errors import DataError
from unimoe.io import read_json, write_json
from unimoe.results import DrillDown, QueryDetail, write_result

SCORES = [0.2, 0.4, 0.6]


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_all_results(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 3
    return message


def test_is_a_mapping_from_arm_to_seed_to_dataset_to_metric(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("joint_r8", 1, SCORES))
    write_result(tmp_path, make_result("bm25", None, SCORES))
    results = load_all_results(str(tmp_path))
    assert dict(results) == {
        "bm25": {None: {"reranking/apidocs": {"ndcg@10": pytest.approx(0.4), "mrr@10": pytest.approx(0.2)}}},
        "joint_r8": {1: {"reranking/apidocs": {"ndcg@10": pytest.approx(0.4), "mrr@10": pytest.approx(0.2)}}},
    }


def test_gives_typed_access_to_what_lies_behind(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(4, 2), queries=5)
    results = load_all_results(tmp_path)
    result = results.result("joint_r8", 2, "embedding/apidocs")
    assert result is not None
    assert results.scores("joint_r8", "embedding/apidocs", [2]).tolist() == [list(result.per_query.values())]
    assert results.seeds("joint_r8", "embedding/apidocs") == (2, 4)
    assert results.dataset_keys == ("reranking/apidocs", "embedding/apidocs")
    assert results.result("joint_r8", 9, "embedding/apidocs") is None
    assert [record["step"] for record in results.logs["joint_r8", 4]][:3] == [1, 2, 3]
    with pytest.raises(DataError, match=r"no embedding/apidocs result of joint_r8, seed_9"):
        results.scores("joint_r8", "embedding/apidocs", [9])


def test_skips_sidecars_and_other_files(tmp_path: Path) -> None:
    detail = DrillDown(queries={"q000": QueryDetail(text="t", relevant={"d": 1}, ranks={"d": None})})
    path = write_result(tmp_path, make_result("joint_r8", 0, SCORES), detail)
    (path.parent / "notes.txt").write_text("not a result")
    assert len(load_all_results(tmp_path).results) == 1


def test_refuses_a_folder_without_results(tmp_path: Path) -> None:
    assert "no results here" in refusal(tmp_path)
    assert "no results here" in refusal(tmp_path / "absent")


def test_names_the_one_file_that_is_cut_off(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    path = tmp_path / "joint_r8/seed_1/results/reranking/apidocs.json"
    path.write_text(path.read_text()[:-40])
    assert str(path) in refusal(tmp_path)


def test_refuses_an_older_schema(tmp_path: Path) -> None:
    path = write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    write_json(path, read_json(path) | {"schema_version": 0})
    assert "schema version 0" in refusal(tmp_path)


def test_refuses_two_files_that_claim_the_same_place(tmp_path: Path) -> None:
    path = write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    copy = path.with_name("copy.json")
    copy.write_text(path.read_text())
    message = refusal(tmp_path)
    assert str(path) in message
    assert str(copy) in message


def test_refuses_a_file_in_the_wrong_place(tmp_path: Path) -> None:
    path = write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    moved = tmp_path / "joint_r8/seed_1/results/reranking/apidocs.json"
    moved.parent.mkdir(parents=True)
    path.rename(moved)
    assert f"belongs at {path}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experiment": "other"}, "experiment differs"),
        ({"base_model": "qwen3@1"}, "base model differs"),
        ({"prompt": "qwen3@1"}, "prompt differs"),
        ({"depth": 100}, "depth differs: 10 in joint_r8 seed 0; 100 in rank_only_r8 seed 0"),
        ({"split": "dev"}, "split differs"),
        ({"pool": 600}, "pool differs"),
        ({"max_queries": 3}, "max_queries differs"),
        ({"checkpoint": "best"}, "checkpoint differs"),
    ],
)
def test_refuses_arms_that_were_measured_differently(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    write_result(tmp_path, make_result("rank_only_r8", 0, SCORES, identity=change))
    assert words in refusal(tmp_path)


def test_arms_without_a_model_have_no_prompt_to_disagree_with(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("bm25", None, SCORES))
    write_result(tmp_path, make_result("zero_shot", None, SCORES, identity={"prompt": None}))
    write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    assert set(load_all_results(tmp_path)) == {"bm25", "zero_shot", "joint_r8"}


def test_retrieval_systems_may_differ_in_their_first_stage(tmp_path: Path) -> None:
    dense = {"first_stage": None, "depth": None}
    write_result(tmp_path, make_result("bm25", None, SCORES, task="retrieval"))
    write_result(tmp_path, make_result("joint_r8", 0, SCORES, task="retrieval", identity=dense))
    assert len(load_all_results(tmp_path)) == 2


def test_refuses_other_candidates(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    write_result(tmp_path, make_result("rank_only_r8", 0, SCORES, hashes={"candidates": "other"}))
    assert "candidates hash differs: 'decade' in joint_r8 seed 0" in refusal(tmp_path)


def test_lists_the_queries_an_arm_lacks(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("joint_r8", 0, {"a": 0.1, "b": 0.2, "c": 0.3}))
    write_result(tmp_path, make_result("rank_only_r8", 0, {"b": 0.2}))
    assert "rank_only_r8 seed 0 lacks 2 of the 3 queries of joint_r8 seed 0 ('a', 'c')" in refusal(tmp_path)


def test_a_resumed_run_replaces_repeated_steps_and_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    log = tmp_path / "joint_r8/seed_0/logs/train.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 2, "loss": 1}\n{"step": 3, "lo')
    assert load_all_results(tmp_path).logs["joint_r8", 0] == ({"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.0})


def test_names_the_line_of_a_broken_log(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("joint_r8", 0, SCORES))
    log = tmp_path / "joint_r8/seed_0/logs/train.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 3}\n[]\n')
    assert "train.jsonl:2" in refusal(tmp_path)
