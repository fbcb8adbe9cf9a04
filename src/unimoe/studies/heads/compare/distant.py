"""Trainings of a comparison by workers of a cluster, each with its test where it is reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from unimoe.cluster.folder_job import Tick, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, Recipe
from unimoe.evaluation.engines import ClusterEngine, Engine
from unimoe.models.device import choose_device, choose_dtype
from unimoe.studies.common.workers import GIVEN, Task, done_by_workers, refuse_other_data
from unimoe.studies.heads.compare.arms import Comparison
from unimoe.studies.heads.compare.testing import report, training_file
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.trainer import HeadTrainer, load_data


def train_by_workers(
    engine: Engine | None,
    comparison: Comparison,
    trainers: Iterable[HeadTrainer],
    given: Sequence[str] = (),
    *,
    tested: bool,
) -> None:
    """Let workers do the trainings that are not done, each with its test where ``tested``; see ``done_by_workers``.

    The trainers are made only for a cluster, as each holds the pools on its device.
    """
    if not isinstance(engine, ClusterEngine):
        return
    base, tasks = comparison.base, []
    for trainer in trainers:
        if trainer.is_finished() and (not tested or training_file(trainer, Path(base.output_dir)).exists()):
            continue
        trainer.make_room()
        config, data = trainer.config, trainer.state.fingerprint
        what = f"train {trainer.arm}, seed {trainer.seed}" + ("" if tested else f", {Path(config.output_dir).name}")
        more = {"arm": trainer.arm, "tested": tested, "data": data}
        tasks.append(Task.of(what, config, base.output_dir, config.num_steps, **more))
    dtype = choose_dtype(choose_device(base.device), base.encoder.dtype)
    recipe = {
        "maker": f"{__name__}:jobs_of",
        "comparison": comparison.model_dump(mode="json", exclude={"base": {"output_dir"}}),
        "encoder_dtype": str(dtype).removeprefix("torch."),
        GIVEN: {"options": [*given], "output_dir": base.output_dir},
    }
    done_by_workers(engine, recipe, tasks, Path(base.output_dir))


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that trains a head of a comparison and tests it.

    Texts are embedded as the driver does it, on a CPU: heads are trained on the same bits everywhere.
    """
    output_dir = recipe[GIVEN]["output_dir"]
    raw = recipe["comparison"]
    comparison = Comparison.model_validate(raw | {"base": raw["base"] | {"output_dir": output_dir}})
    base = comparison.base
    encoder = base.encoder.model_copy(update={"dtype": recipe["encoder_dtype"]})
    data = cache(lambda: load_data(base.model_copy(update={"encoder": encoder})))

    def train(part: Part, folder: Path, tick: Tick) -> None:
        own = {"output_dir": str(Path(output_dir, part["folder"])), "device": device.type}
        config = TrainConfig.model_validate(part["config"] | own)
        trainer = HeadTrainer(config, data(), part["arm"], folder / part["folder"])
        refuse_other_data(config.task, trainer.state.fingerprint, part["data"])
        trainer.fit(lambda *_: tick())
        if part["tested"]:
            report(trainer, comparison, folder, recipe[GIVEN]["options"])

    return folder_jobs(train, store)
