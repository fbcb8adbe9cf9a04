"""Tasks and benchmarks of MTEB by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.mteb_tasks import ALL_TYPES, InventedMean

from unimoe.core.errors import UsageError
from unimoe.data.catalog import members
from unimoe.data.mteb_names import FAST_TASKS, FULL_BENCHMARK, beir_name, find_tasks, mteb_name, split_names, task_names
from unimoe.data.sources.beir_sets import BEIR_NAMES, CQADUPSTACK


@pytest.fixture(scope="module")
def benchmark() -> list[Any]:
    """The 41 tasks: making the registry of benchmarks takes seconds."""
    return list(find_tasks([FULL_BENCHMARK]))


def names(*wanted: str) -> list[str]:
    return [task.metadata.name for task in find_tasks(wanted)]


class TestSplitNames:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SciFact", ["SciFact"]),
            ("MTEB(eng, v2),SciFact", ["MTEB(eng, v2)", "SciFact"]),
            (" STS12 , MTEB(eng, v2) ,,MTEB(Multilingual, v2),", ["STS12", "MTEB(eng, v2)", "MTEB(Multilingual, v2)"]),
            ("cqadupstack/tex,path:a b/c@dev", ["cqadupstack/tex", "path:a b/c@dev"]),
            ("", []),
        ],
    )
    def test_commas_part_names_but_not_inside_brackets(self, text: str, expected: list[str]) -> None:
        assert split_names(text) == expected


class TestBeirNames:
    def test_every_set_is_a_task_that_exists(self) -> None:
        published = [name for name in (*BEIR_NAMES, *CQADUPSTACK) if len(members(name)) == 1]
        found = {name: mteb_name(name) for name in published}
        assert len(found) == 14 + 12
        assert set(found.values()) <= set(task_names())
        assert [beir_name(task or "") for task in found.values()] == published

    def test_the_task_is_of_retrieval_in_english_on_the_split_that_is_scored(self) -> None:
        for name in (*BEIR_NAMES, *CQADUPSTACK):
            (task,) = find_tasks([mteb_name(name) or ""])
            assert task.metadata.type == "Retrieval", name
            assert list(task.eval_splits) == (["dev"] if name == "msmarco" else ["test"]), name
            assert task.hf_subsets == ["default"], name

    @pytest.mark.parametrize(
        ("collection", "task"),
        [
            ("SciFact", "SciFact"),
            ("fiqa2018", "FiQA2018"),
            ("cqadupstack/tex", "CQADupstackTexRetrieval"),
            ("apidocs", None),
            ("msmarco-dev-positives", None),
            ("nanobeir:SciFact", None),
        ],
    )
    def test_other_spellings_and_other_collections(self, collection: str, task: str | None) -> None:
        assert mteb_name(collection) == task


class TestFind:
    def test_fast_is_three_and_each_task_comes_once(self) -> None:
        assert names("fast") == list(FAST_TASKS) == ["SciFact", "NFCorpus", "FiQA2018"]
        assert names("STS12", "fast", "SciFact", "STS12") == ["STS12", *FAST_TASKS]

    def test_a_benchmark_is_its_tasks(self, benchmark: list[Any]) -> None:
        found = [task.metadata.name for task in benchmark]
        assert len(found) == len(set(found)) == 41
        types = Counter(str(task.metadata.type) for task in benchmark)
        assert types == {
            "Retrieval": 10, "STS": 9, "Clustering": 8, "Classification": 8, "PairClassification": 3, "Reranking": 2,
            "Summarization": 1,
        }  # fmt: skip
        assert types.keys() == {str(kind.metadata.type) for kind in ALL_TYPES}  # of which each is tried
        assert names("full") == found
        assert not any(task.data_loaded for task in benchmark)

    def test_a_mean_of_tasks_is_its_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert names("CQADupstackRetrieval") == [mteb_name(name) for name in CQADUPSTACK]
        monkeypatch.setattr("unimoe.data.mteb_names._named", lambda name: [InventedMean()])
        assert names("anything") == ["InventedRetrieval", "InventedSTS"]

    @pytest.mark.parametrize(
        ("name", "near"),
        [("SciFcat", "SciFact"), ("scifact", "SciFact"), ("MTEB(eng,v2)", "MTEB(eng, v2)"), ("ful", "full")],
    )
    def test_an_unknown_name_is_answered_with_the_closest(self, name: str, near: str) -> None:
        with pytest.raises(UsageError) as refused:
            find_tasks(["STS12", name])
        assert str(refused.value).startswith(f"mteb has no task or benchmark {name!r}")
        assert f"did you mean {near!r}?" in str(refused.value)

    def test_a_task_that_needs_more_than_text_is_refused_by_name(self) -> None:
        with pytest.raises(UsageError, match=r"^CIFAR10ZeroShot is a task about image; the models here read text"):
            find_tasks(["SciFact", "CIFAR10ZeroShot"])
