"""Result files are read strictly, and none takes the place of another evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.json_files import read_plain, write_plain
from support.results import make_result

from unimoe.core.errors import DataError
from unimoe.results import (
    DrillDown,
    EvalResult,
    QueryDetail,
    TrainingBudget,
    drilldown_path,
    read_drilldown,
    read_query_details,
    read_result,
    safe_name,
    write_result,
)

RESULT: dict[str, Any] = make_result(
    "joint_r8",
    3,
    {"q1": 0.25, "q2": 0.75},
    dataset="scifact",
    training=TrainingBudget(steps=10, ranking_examples=80, embedding_examples=320, tokens=40_000),
    caveats=["smoke run"],
).model_dump() | {
    "aggregate": {"ndcg@10": 0.5, "mrr@10": 0.75},
    "per_query_metrics": {"mrr@10": [0.5, 1.0]},
    "unjudged_queries": ["q9"],
    "first_stage": {"aggregate": {"ndcg@10": 0.25}, "delta": {"ndcg@10": 0.25}, "queries_without_candidates": ["q1"]},
}
IDENTITY: dict[str, Any] = RESULT["identity"]
WITHOUT_QUERIES: dict[str, Any] = {
    "task": "embedding", "dataset": "STSBenchmark", "task_type": "STS", "main_metric": "cosine_spearman",
    "aggregate": {"cosine_spearman": 0.5}, "per_query": {}, "per_query_metrics": {}, "first_stage": None,
}  # fmt: skip


def result_with(**changes: Any) -> EvalResult:
    return EvalResult.model_validate({**RESULT, **changes})


class TestRoundTrip:
    @pytest.mark.parametrize("changes", [{}, {"seed": None, "training": None}, WITHOUT_QUERIES])
    def test_a_result_comes_back_as_it_was(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        result = result_with(**changes)
        assert read_result(write_result(tmp_path, result)) == result

    @pytest.mark.parametrize("layout", ["as written", "as other programs write it"])
    def test_single_queries_are_read_whatever_their_ids(self, tmp_path: Path, layout: str) -> None:
        ids = ("q1", 'a": {b', "{\\", "ü\u2028", "")
        queries = {name: QueryDetail(text=f"text of {name}\n", relevant={}, ranks={}) for name in ids}
        path = write_result(tmp_path, result_with(), DrillDown(queries=queries))
        sidecar = drilldown_path(path)
        if layout != "as written":
            write_plain(sidecar, read_plain(sidecar))
        assert read_query_details(path, queries) == queries
        assert list(read_query_details(path, ["q1"])) == ["q1"]
        with pytest.raises(DataError, match=r"lacks query 'q9'"):
            read_query_details(path, ["q1", "q9"])

    def test_a_result_without_one_leaves_no_sidecar_of_an_earlier_run(self, tmp_path: Path) -> None:
        write_result(tmp_path, result_with(), DrillDown(queries={}))
        path = write_result(tmp_path, result_with())
        assert not drilldown_path(path).exists()
        with pytest.raises(DataError, match=r"scifact\.queries\.json: no such file"):
            read_drilldown(path)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("mteb:SciFact", "mteb-SciFact"),
        ("path:/data/my set", "path-data-my-set"),
        ("../../etc", "etc"),
        ("..", "unnamed"),
        ("한국어", "한국어"),
    ],
)
def test_a_name_stays_within_its_folder(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"aggregate": {"ndcg@10": 0.5000001, "mrr@10": 0.75}}, r"aggregate\.ndcg@10 is not the mean"),
        ({"aggregate": {"ndcg@10": 0.5}}, r"aggregate\.mrr@10 is not the mean"),
        ({"aggregate": {"mrr@10": 0.75}}, "aggregate lacks the main metric 'ndcg@10'"),
        ({"per_query": {}}, "per_query is empty"),
        ({"per_query_metrics": {"mrr@10": [0.75]}}, r"per_query_metrics\.mrr@10 has 1 values for the 2 of per_query"),
        ({"per_query_metrics": {"mrr@10": [math.nan, 1.0]}}, "should be a finite number"),
        ({"aggregate": {"ndcg@10": math.inf, "mrr@10": 0.75}}, "should be a finite number"),
        ({"seed": 1.0}, "valid integer"),
        ({"task": "ranking"}, "'reranking', 'embedding', 'retrieval' or 'crossmodal'"),
        ({"identity": {**IDENTITY, "checkpoint": "newest"}}, "'best', 'last' or 'none'"),
        (WITHOUT_QUERIES | {"task_type": None}, "per_query is empty, but embedding of type None has queries"),
        (WITHOUT_QUERIES | {"task_type": "Retrieval"}, "per_query is empty, but embedding of type Retrieval has"),
        (WITHOUT_QUERIES | {"task": "reranking"}, "per_query is empty, but reranking of type STS has queries"),
    ],
)
def test_what_contradicts_itself_is_neither_made_nor_read(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        result_with(**changes)
    path = write_result(tmp_path, result_with())
    write_plain(path, read_plain(path) | changes)
    with pytest.raises(DataError, match=problem) as caught:
        read_result(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith("); delete it, and run again")
    assert "\n" not in message
    assert "Value error" not in message


class TestIdentity:
    @pytest.mark.parametrize(("field", "other"), [("experiment", "other"), ("base_model", None), ("depth", 100)])
    def test_another_is_refused_and_the_difference_told(self, tmp_path: Path, field: str, other: object) -> None:
        path = write_result(tmp_path, result_with())
        before = path.read_bytes()
        with pytest.raises(DataError) as caught:
            write_result(tmp_path, result_with(identity={**IDENTITY, field: other}))
        assert str(caught.value) == (
            f"{path} holds another evaluation ({field} {IDENTITY[field]!r} there, {other!r} here); "
            "choose another --output-dir"
        )
        assert path.read_bytes() == before

    def test_datasets_whose_file_names_meet_are_told_apart(self, tmp_path: Path) -> None:
        write_result(tmp_path, result_with(dataset="path:a/b"))
        with pytest.raises(DataError, match="dataset 'path:a/b' there, 'path:a-b' here"):
            write_result(tmp_path, result_with(dataset="path:a-b"))
