"""Trainings of a comparison by workers of a cluster, each with its reranking of the test sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from unimoe.cluster.folder_job import Tick, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, Recipe
from unimoe.evaluation.engines import ClusterEngine, Engine
from unimoe.results import result_path, run_path
from unimoe.studies.common.workers import GIVEN, Task, done_by_workers, dtype_of_gpus, refuse_other_data
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.evaluation import report_trained
from unimoe.studies.cross_encoder.jobs import training_of
from unimoe.studies.cross_encoder.training.checkpoint import MANIFEST
from unimoe.studies.cross_encoder.training.data import CrossEncoderData, load_cross_encoder_data
from unimoe.studies.cross_encoder.training.trainer import CrossEncoderTraining


def with_dtype_of_workers(config: CrossEncoderConfig, engine: Engine | None) -> CrossEncoderConfig:
    """Return the config with the dtype that ``auto`` means to workers: a training is known by it."""
    if config.dtype != "auto" or (dtype := dtype_of_gpus(engine)) is None:
        return config
    return config.model_copy(update={"dtype": dtype})


def train_by_workers(
    engine: Engine | None,
    base: CrossEncoderConfig,
    configs: Sequence[CrossEncoderConfig],
    data: CrossEncoderData,
    given: Sequence[str] = (),
    paired: Collection[str] = (),
    *,
    tested: bool,
) -> None:
    """Let workers do the trainings that are not done, each with its test where ``tested``; see ``done_by_workers``.

    ``paired`` are the arms whose results record that seeds pair.
    """
    if not isinstance(engine, ClusterEngine):
        return
    tasks, test = [], data.test if tested else ()
    for config in configs:
        training = training_of(config, data, torch.device("cpu"))
        if _is_done(training, [one.dataset for one in test]):
            continue
        training.make_room()
        data_hashes = [training.fingerprint, *(one.content_hash for one in test)]
        what = f"train {config.arm}, seed {config.seed}" + ("" if tested else f", rate {config.learning_rate:g}")
        more = {"tested": tested, "paired": config.arm in paired, "data": data_hashes}
        tasks.append(Task.of(what, config, base.output_dir, training.steps, **more))
    settings = base.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "config": settings, GIVEN: [*given]}
    done_by_workers(engine, recipe, tasks, Path(base.output_dir))


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that trains a cross-encoder of a comparison and reranks its test sets."""
    base = CrossEncoderConfig.model_validate(recipe["config"])
    data = cache(lambda: load_cross_encoder_data(base))

    def train(part: Part, folder: Path, tick: Tick) -> None:
        config = CrossEncoderConfig.model_validate(part["config"] | {"output_dir": str(folder / part["folder"])})
        training, test = training_of(config, data(), device), data().test if part["tested"] else ()
        refuse_other_data(base.lists.source, [training.fingerprint, *(one.content_hash for one in test)], part["data"])
        manifest = training.fit(lambda *_: tick())
        for one in test:
            report_trained(training, manifest, one, recipe[GIVEN], lambda _: tick(), paired=part["paired"])

    return folder_jobs(train, store)


def _is_done(training: CrossEncoderTraining, datasets: Sequence[str]) -> bool:
    """Return whether the last file that the driver takes over is there."""
    if not datasets:
        return (training.checkpoint_dir / MANIFEST).exists()
    config = training.config
    place = (Path(config.output_dir), config.arm, config.seed, "reranking")
    return all(path(*place, one).exists() for one in datasets for path in (result_path, run_path))
