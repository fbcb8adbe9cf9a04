"""Trainings of a study by workers of a cluster: each writes a folder, which the study takes over.

The study then runs as it does in one process, and finds these trainings done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from unimoe.cluster.folder_job import Tick, done_by_worker, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Recipe
from unimoe.core.console import Steps
from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.evaluation.engines import Engine
from unimoe.studies.common.family import Family, family_of
from unimoe.studies.common.study import Study


def done_by_workers(
    engine: Engine | None, family: Family[Any, Any], trainings: Iterable[tuple[str, Any]], *, tested: bool
) -> None:
    """Let workers do the trainings, given by arm and configuration, that are not done, and copy what they write.

    Where they are reported, workers test them too. Without a cluster nothing is done, and no training is made. The
    error of the first training that failed is raised when the others have ended.
    """
    if engine is None or engine.cluster is None:
        return
    cluster, study = engine.cluster, family.study.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "study": study, "given": [*family.given]}
    tasks = []
    for arm, config in trainings:
        training = family.training(config, arm)
        reported = config.seed if family.trains(config) else None
        training.make_room()
        if training.is_finished() and (not tested or family.is_tested(training, arm, reported)):
            continue
        settings = config.model_dump(mode="json", exclude={"device", "output_dir"})
        folder = Path(config.output_dir).relative_to(family.root).as_posix()
        part = {"config": settings, "folder": folder, "arm": arm, "tested": tested}
        part["data"] = family.identity(training)
        part["key"] = hash_json([study, part])
        what = f"train {arm}, seed {config.seed}" + ("" if tested else f", {Path(folder).name}")
        tasks.append(partial(done_by_worker, cluster, what, recipe, part, family.root, items=max(1, training.steps)))
    if not tasks:
        return
    with Steps(1).step(f"trainings by workers: {len(tasks)}", len(tasks)) as step:

        def do(task: partial[Any]) -> None:
            task()
            step.advance(1)

        engine.run([partial(do, task) for task in tasks], at_once=len(tasks))


def dtype_of_gpus(engine: Engine | None) -> str | None:
    """Return the dtype that ``auto`` means on the GPUs of a cluster, as the driver may have none; else None."""
    if engine is None or engine.cluster is None:
        return None
    facts = engine.cluster.facts()
    return str(facts["dtype"]) if facts["device"].startswith("cuda") else None


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that does a training of a study, and its test."""
    study = Study.model_validate({**recipe["study"], "output_dir": "outputs"})
    opened = cache(lambda: family_of(study.family)(study, device, recipe["given"]))

    def train(part: Part, folder: Path, tick: Tick) -> None:
        family = opened()
        family.move_to(folder)
        own = {"output_dir": str(folder / part["folder"]), "device": device.type}
        known = {key: value for key, value in own.items() if key in family.config_type.model_fields}
        config = family.config_type.model_validate(part["config"] | known)
        training = family.training(config, part["arm"])
        if family.identity(training) != part["data"]:
            raise DataError(
                f"{study.name}: other texts, vectors or base model on this machine than on the driver's; give all "
                "machines the same UNIMOE_DATA and one kind of processor"
            )
        training.run(lambda *_: tick())
        if part["tested"]:
            family.test(training, part["arm"], lambda _: tick())

    return folder_jobs(train, store)
