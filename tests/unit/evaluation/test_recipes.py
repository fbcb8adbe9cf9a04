"""What workers of a cluster get of a model: the settings that make it here, and which of them were set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.tiny_models import save_tiny_model
from support.toy_collections import invented

from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError
from unimoe.evaluation.engines import ClusterReranker, _fetched, _TaskReply, jobs_of
from unimoe.evaluation.system import model_recipe, recipes_experiment
from unimoe.evaluation.tasks.rerank import rerank_collection
from unimoe.models.named import ModelSettings, default_experiment, named_model
from unimoe.models.writer import LocalWriter


def test_a_worker_knows_which_template_was_set() -> None:
    for overrides in ((), ("prompt.template=qwen3",), ("prompt.instruction=find",)):
        experiment = default_experiment("cross-encoder:folder", overrides)
        recipe = json.loads(json.dumps(model_recipe("named", experiment, name="x")))
        there = recipes_experiment(recipe)
        assert there.prompt == experiment.prompt
        assert there.prompt.model_fields_set == experiment.prompt.model_fields_set


def test_a_worker_knows_whether_a_length_was_set() -> None:
    for overrides in ((), ("model.max_length=100",), ("model.max_length=512",)):
        experiment = default_experiment("late:folder", overrides)
        recipe = json.loads(json.dumps(model_recipe("named", experiment, name="late:folder")))
        there = recipes_experiment(recipe)
        assert there.model == experiment.model
        assert there.model.model_fields_set == experiment.model.model_fields_set


@pytest.mark.parametrize(
    ("scope", "files"),
    [
        ("checkpoints/..", ["unimoe.json"]),
        ("checkpoints/0123456789abcdef", ["../evil"]),
        ("checkpoints/0123456789abcdef", ["/tmp/evil"]),
        ("checkpoints/0123456789abcdef", ["a\\evil"]),
        ("checkpoints/0123456789abcdef", ["a\0b"]),
        ("checkpoints/0123456789abcdef", ["x" * 300]),
    ],
)
def test_a_worker_writes_a_checkpoint_below_its_cache_alone(
    scope: str, files: list[str], tmp_path: Path, tmp_cache: Path
) -> None:
    recipe: dict[str, Any] = {"scope": scope, "files": files}
    with pytest.raises(DataError, match=r"the name of a file or folder .*; name another --store"):
        _fetched(recipe, UnitStore(str(tmp_path / "store")))
    assert not [path for path in tmp_cache.rglob("*") if path.is_file()]


REPLY = {"task_type": "STS", "main_metric": "spearman", "main_score": 0.5, "mteb_json": {}, "items": 3, "seconds": 1.0}


@pytest.mark.parametrize("change", [{"main_score": "0.5"}, {"mteb_json": []}, {"seconds": None}, {"items": 0.5}])
def test_the_reply_about_a_task_of_mteb_is_read_by_its_schema(change: dict[str, Any]) -> None:
    assert dict(_TaskReply.model_validate(REPLY)) == REPLY
    with pytest.raises(ValidationError):
        _TaskReply.model_validate(REPLY | change)


@pytest.mark.parametrize(
    ("way", "ends"), [("permutation", ["", ""]), ("pairwise", ["", ""]), ("setwise", ["\ud800", "?"])]
)
def test_a_worker_writes_the_lists_of_many_queries_together_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, ends: list[str]
) -> None:
    """A worker tells lists apart by their queries; two of these have equal texts, or look alike to a model."""
    made = invented(documents=9, queries=4, words=4)
    first, second, *_ = made.queries
    alike = {query: made.queries[first] + end for query, end in zip((first, second), ends, strict=True)}
    collection = replace(made, queries={**made.queries, **alike})
    lengths = dict(zip(collection.queries, (9, 8, 9, 8), strict=True))
    run = {
        query: {key: float(place) for place, key in enumerate([*collection.corpus][:length])}
        for query, length in lengths.items()
    }
    name = f"listwise:{save_tiny_model(tmp_path / 'causal', layers=2)}"
    experiment = default_experiment(name, (f"listwise.way={way}", "listwise.passes=1", "listwise.words=3"))
    jobs = jobs_of(
        json.loads(json.dumps(model_recipe("named", experiment, name=name, dtype="float32"))),
        torch.device("cpu"),
        UnitStore(str(tmp_path / "store")),
    )
    units, batches = list[int](), list[int]()

    class Workers:
        size = 1

        def compute(self, job: str, parts: Any, read: Any) -> Any:
            for part in parts:
                units.append(len(part["pairs"]))
                yield read(jobs[job](part), part)

        def ask(self, job: str, part: Any) -> Any:
            return jobs[job](part)

    write = LocalWriter.write

    def counted(self: Any, asks: Any) -> Any:
        batches.append(len(asks))
        return write(self, asks)

    monkeypatch.setattr(LocalWriter, "write", counted)
    workers: Any = Workers()
    found = rerank_collection(ClusterReranker(workers, jobs["facts"]({"options": {}}), {}), collection, run)
    assert units == [9, 8 + 9 + 8], "equal queries are apart"
    assert max(batches) == 3
    assert sum(batches) == found.usage["answers"]
    here, _ = named_model(name, ModelSettings(experiment, torch.device("cpu"), torch.float32))
    alone = rerank_collection(here.reranker(), collection, run)
    assert found.run == alone.run
    assert found.usage == alone.usage
