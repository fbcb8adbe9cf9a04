"""Parts of a comparison that workers of a cluster do: each writes a folder, which the comparison takes over.

The comparison then runs as it does in one process, and finds these parts done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from unimoe.cluster.folder_job import done_by_worker
from unimoe.cluster.work import Part, Recipe
from unimoe.core.console import Steps
from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.evaluation.engines import ClusterEngine, Engine

GIVEN = "given"
"""Key of a recipe for the command's options: they are written into results, and change nothing else."""


@dataclass(frozen=True)
class Task:
    """A training with its evaluation: its name, what a worker must know as JSON values, and its number of steps."""

    what: str
    part: Part
    items: int

    @classmethod
    def of(cls, what: str, config: BaseModel, base_dir: str | Path, items: int, **more: object) -> Task:
        """Return the training of a config whose ``output_dir`` is in the comparison's, ``base_dir``."""
        settings = config.model_dump(mode="json")
        folder = Path(settings.pop("output_dir")).relative_to(base_dir).as_posix()
        settings.pop("device", None)  # the worker's own
        return cls(what, {"config": settings, "folder": folder, **more}, items)


def done_by_workers(engine: Engine, recipe: Recipe, tasks: Sequence[Task], folder: Path) -> None:
    """Let workers do tasks of a comparison, and copy what they write into its folder; do nothing without a cluster.

    Args:
        engine: has the workers.
        recipe: how a worker makes what does the tasks, as ``done_by_worker`` wants it.
        tasks: those that are not done in the folder.
        folder: of the comparison.

    Raises:
        Exception: of the first task that failed; the others have ended.
    """
    if not isinstance(engine, ClusterEngine) or not tasks:
        return
    cluster, decisive = engine.cluster, {name: value for name, value in recipe.items() if name != GIVEN}
    with Steps(1).step(f"trainings by workers: {len(tasks)}", len(tasks)) as step:

        def do(task: Task) -> None:
            part = {**task.part, "key": hash_json([decisive, task.part])}
            done_by_worker(cluster, task.what, recipe, part, folder, items=task.items)
            step.advance(1)

        engine.run([partial(do, task) for task in tasks], at_once=len(tasks))


def dtype_of_gpus(engine: Engine | None) -> str | None:
    """Return the dtype that ``auto`` means on the GPUs of a cluster, as the driver may have none; else None."""
    if not isinstance(engine, ClusterEngine):
        return None
    facts = engine.cluster.facts()
    return str(facts["dtype"]) if facts["device"].startswith("cuda") else None


def refuse_other_data(source: str, here: object, drivers: object) -> None:
    """Refuse to train on other data than the driver has.

    Raises:
        DataError: the hashes differ.
    """
    if here != drivers:
        raise DataError(
            f"{source}: other texts, vectors or base model on this machine than on the driver's; give all machines the "
            "same UNIMOE_DATA and one kind of processor"
        )
