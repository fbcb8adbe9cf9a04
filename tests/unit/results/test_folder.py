"""A folder of results: typed access, a data frame, and files that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.results import make_result, without_queries, write_experiment

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import read_json
from unimoe.results import write_result
from unimoe.results.folder import Results, load_all_results


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_all_results(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_gives_typed_access_to_what_lies_behind(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(4, 2), queries=5)
    write_result(tmp_path, without_queries("joint_r8", 2, 0.7))
    results = load_all_results(tmp_path)
    key = "embedding/apidocs"
    result = results.result("joint_r8", 2, key)
    assert result is not None
    assert results.scores("joint_r8", key, [2]).tolist() == [list(result.per_query.values())]
    assert results.scores("joint_r8", key, [2], "mrr@10").tolist() == [list(result.metric("mrr@10").values())]
    assert results.seeds("joint_r8", key) == (2, 4)
    assert (results.dataset_keys, results.keys_without_queries) == (
        ("reranking/apidocs", key),
        ("embedding/STSBenchmark",),
    )
    assert results.result("joint_r8", 9, key) is None
    assert [record["step"] for record in results.logs["joint_r8", 4]][:3] == [1, 2, 3]
    with pytest.raises(DataError, match=r"no embedding/apidocs result of joint_r8, seed_9"):
        results.scores("joint_r8", key, [9])
    with pytest.raises(DataError, match="embedding/STSBenchmark has no queries"):
        results.scores("joint_r8", "embedding/STSBenchmark", [2])


def test_scores_are_in_the_order_of_query_ids_whatever_that_of_the_file(tmp_path: Path) -> None:
    path = write_result(tmp_path, make_result("joint_r8", 0, {"b": 0.2, "a": 0.4, "c": 0.6}))
    assert list(read_json(path, dict[str, Any])["per_query"]) == ["b", "a", "c"]
    results = load_all_results(tmp_path)
    assert results.scores("joint_r8", "reranking/apidocs", [0]).tolist() == [[0.4, 0.2, 0.6]]
    assert results.scores("joint_r8", "reranking/apidocs", [0], "mrr@10").tolist() == [[0.2, 0.1, 0.3]]


def test_a_frame_has_a_row_for_each_arm_seed_dataset_and_query() -> None:
    mteb = without_queries("joint_r8", 0, 0.5)
    made = [make_result("joint_r8", seed, {"b": 0.2, "a": 0.4 + seed / 10}) for seed in (0, 1)]
    results = Results(Path("out"), [*made, make_result("bm25", None, {"a": 0.6, "b": 0.8}), mteb])
    frame = results.frame()
    assert frame.to_csv(index=False).split() == [
        "system,seed,task,dataset,metric,query,score",
        *("bm25,,reranking,apidocs,ndcg@10,a,0.6", "bm25,,reranking,apidocs,ndcg@10,b,0.8"),
        *("joint_r8,0,reranking,apidocs,ndcg@10,a,0.4", "joint_r8,0,reranking,apidocs,ndcg@10,b,0.2"),
        *("joint_r8,1,reranking,apidocs,ndcg@10,a,0.5", "joint_r8,1,reranking,apidocs,ndcg@10,b,0.2"),
    ]
    assert (str(frame["seed"].dtype), str(frame["score"].dtype)) == ("Int64", "float64")
    with pytest.raises(DataError, match="out: no result holds 'map' by query; evaluate again with it"):
        results.frame(["ndcg@10", "map"])
    with pytest.raises(UsageError, match="unknown metric 'ndgc@10'"):
        results.frame("ndgc@10")
    assert Results(Path("out"), [mteb]).frame().empty


def test_an_unreadable_folder_does_not_count_as_an_absent_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path)
    closed, listing = tmp_path / "joint_r8/seed_1/results", Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder == closed:
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert refusal(tmp_path) == f"{closed}: cannot be read (Permission denied)"


def test_of_a_log_repeated_steps_and_a_torn_last_line_do_not_count_and_a_broken_line_is_named(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("joint_r8", 0, [0.5]))
    log = tmp_path / "joint_r8/seed_0/logs/train.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 2, "loss": 1}\n{"step": 3, "lo')
    assert load_all_results(tmp_path).logs["joint_r8", 0] == ({"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.0})
    log.write_text('{"step": 1, "loss": 3}\n[]\n')
    assert "train.jsonl:2" in refusal(tmp_path)
