"""What workers of a cluster get of a model: the settings that make it here, and which of them were set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from unimoe.cluster.units import UnitStore
from unimoe.core.errors import DataError
from unimoe.evaluation.engines import _fetched, _TaskReply
from unimoe.evaluation.system import model_recipe, recipes_experiment
from unimoe.models.named import default_experiment


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
