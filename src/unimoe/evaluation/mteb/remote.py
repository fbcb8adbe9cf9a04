"""Tasks of MTEB that rank no documents, done whole by one worker of a cluster: texts, scores and random draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unimoe.cluster.work import Part
from unimoe.config import MTEBConfig
from unimoe.core.errors import DataError
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.run import evaluate_task, load_from_hub
from unimoe.evaluation.spec import Outcome, mteb_data_hash
from unimoe.metrics import Scores

if TYPE_CHECKING:
    from mteb import AbsTask


def task_part(task: AbsTask, prompts: MTEBConfig, adapted: dict[str, Any]) -> Part:
    """Return the part by which a worker does a task; ``adapted`` are the adapter's arguments that are JSON values."""
    return {
        "name": task.metadata.name,
        "splits": list(task.eval_splits),
        "subsets": sorted(task.hf_subsets),
        "data": mteb_data_hash(task),
        "prompts": prompts.model_dump(mode="json"),
        "adapted": adapted,
    }


def task_job(model: Callable[[], Any]) -> Callable[[Part], dict[str, Any]]:
    """Return the job that does such tasks with a model.

    It raises a ``DataError`` where MTEB has other data here than on the driver's machine.
    """

    def evaluate(part: Part) -> dict[str, Any]:
        (task,) = find_tasks([part["name"]])
        task.hf_subsets = part["subsets"]
        if list(task.eval_splits) != part["splits"]:
            task.metadata.eval_splits = part["splits"]
        if mteb_data_hash(task) != part["data"]:
            raise DataError(
                f"{part['name']}: this machine's mteb has another revision of its data; install the driver's"
            )
        load_from_hub(task)
        prompts = TaskPrompts(MTEBConfig.model_validate(part["prompts"]))
        outcome = evaluate_task(MTEBEncoderWrapper(model(), prompts=prompts, **part["adapted"]), task)
        names = ("task_type", "main_metric", "main_score", "mteb_json", "items", "seconds")
        found: dict[str, Any] = json.loads(json.dumps({name: getattr(outcome, name) for name in names}))
        return found

    return evaluate


def task_outcome(found: dict[str, Any]) -> Outcome:
    """Return the outcome of what a worker found."""
    return Outcome(run={}, qrels={}, queries={}, scores=Scores({}, {}, []), **found)
