"""Tasks and benchmarks of MTEB by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.mteb_tasks import ALL_TYPES, InventedMean

from unimoe.core.errors import UsageError
from unimoe.data.mteb_names import FAST_TASKS, FULL_BENCHMARK, beir_name, find_tasks, mteb_name, split_names
from unimoe.data.published import BEIR_NAMES, CQADUPSTACK


@pytest.fixture(scope="module")
def benchmark() -> list[Any]:
    """The 41 tasks: making the registry of benchmarks takes seconds."""
    return list(find_tasks([FULL_BENCHMARK]))


def names(*wanted: str) -> list[str]:
    return [task.metadata.name for task in find_tasks(wanted)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" STS12 , MTEB(eng, v2) ,,MTEB(Multilingual, v2),", ["STS12", "MTEB(eng, v2)", "MTEB(Multilingual, v2)"]),
        ("cqadupstack/tex,path:a b/c@dev", ["cqadupstack/tex", "path:a b/c@dev"]),
        ("", []),
    ],
)
def test_commas_part_names_but_not_inside_brackets(text: str, expected: list[str]) -> None:
    assert split_names(text) == expected


def test_every_published_set_is_a_task_of_retrieval_on_the_split_that_is_scored() -> None:
    for name in (*BEIR_NAMES, *CQADUPSTACK):
        (task,) = find_tasks([mteb_name(name) or ""])
        assert task.metadata.type == "Retrieval", name
        assert list(task.eval_splits) == (["dev"] if name == "msmarco" else ["test"]), name
        assert task.hf_subsets == ["default"], name
        assert beir_name(task.metadata.name) == name


@pytest.mark.parametrize(
    ("collection", "task"),
    [("SciFact", "SciFact"), ("fiqa2018", "FiQA2018"), ("apidocs", None), ("nanobeir:SciFact", None)],
)
def test_other_spellings_and_other_collections(collection: str, task: str | None) -> None:
    assert mteb_name(collection) == task


class TestFind:
    def test_fast_is_three_and_each_task_comes_once(self) -> None:
        assert names("STS12", "fast", "SciFact", "STS12") == ["STS12", *FAST_TASKS]
        assert list(FAST_TASKS) == ["SciFact", "NFCorpus", "FiQA2018"]

    def test_a_benchmark_is_its_tasks(self, benchmark: list[Any]) -> None:
        found = [task.metadata.name for task in benchmark]
        types = Counter(str(task.metadata.type) for task in benchmark)
        assert types == {
            "Retrieval": 10, "STS": 9, "Clustering": 8, "Classification": 8, "PairClassification": 3, "Reranking": 2,
            "Summarization": 1,
        }  # fmt: skip
        assert types.keys() == {str(kind.metadata.type) for kind in ALL_TYPES}  # of which each is tried
        assert names("full") == found == list(dict.fromkeys(found))
        assert not any(task.data_loaded for task in benchmark)

    def test_a_mean_of_tasks_is_its_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert names("CQADupstackRetrieval") == [mteb_name(name) for name in CQADUPSTACK]
        monkeypatch.setattr("unimoe.data.mteb_names._named", lambda name: [InventedMean()])
        assert names("anything") == ["InventedRetrieval", "InventedSTS"]

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("SciFcat", "mteb has no task or benchmark 'SciFcat' (did you mean 'SciFact'?)"),
            ("scifact", "(did you mean 'SciFact'?)"),
            ("MTEB(eng,v2)", "(did you mean 'MTEB(eng, v2)'?)"),
            ("ful", "(did you mean 'full'?)"),
            ("CIFAR10ZeroShot", "CIFAR10ZeroShot is a task about image; the models here read text"),
        ],
    )
    def test_what_cannot_be_found_is_answered_with_the_closest(self, name: str, words: str) -> None:
        with pytest.raises(UsageError) as refused:
            find_tasks(["STS12", name])
        assert words in str(refused.value)
