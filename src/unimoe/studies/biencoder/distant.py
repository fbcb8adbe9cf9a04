"""Trainings of a tuning by workers of a cluster, each with its search of the test split where it is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from unimoe.cluster.folder_job import Tick, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, Recipe
from unimoe.data.catalog import result_name
from unimoe.evaluation.engines import ClusterEngine, Engine
from unimoe.evaluation.retrieval_eval import TASK
from unimoe.evaluation.systems.retriever import fused_name
from unimoe.results import result_path, run_path
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.evaluation import base_retriever, evaluate, trained_retriever
from unimoe.studies.biencoder.training.pairs import biencoder_splits
from unimoe.studies.biencoder.training.trainer import BiEncoderTrainer
from unimoe.studies.common.splits import Splits
from unimoe.studies.common.workers import GIVEN, Task, done_by_workers, dtype_of_gpus, refuse_other_data


def with_dtype_of_workers(config: BiEncoderConfig, engine: Engine | None) -> BiEncoderConfig:
    """Return the config with the dtype that ``auto`` means to workers: results are known by it."""
    if config.encoder.dtype != "auto" or (dtype := dtype_of_gpus(engine)) is None:
        return config
    return config.model_copy(update={"encoder": config.encoder.model_copy(update={"dtype": dtype})})


def train_by_workers(
    engine: Engine | None,
    base: BiEncoderConfig,
    configs: Sequence[BiEncoderConfig],
    splits: Splits,
    given: Sequence[str] = (),
    *,
    tested: bool,
) -> None:
    """Let workers do the trainings that are not done, each with its test where ``tested``; see ``done_by_workers``."""
    if not isinstance(engine, ClusterEngine):
        return
    tasks = []
    for config in configs:
        trainer = BiEncoderTrainer(config, torch.device("cpu"), splits)
        trainer.make_room()
        if trainer.is_finished() and (not tested or _is_tested(config)):
            continue
        data = [trainer.state.fingerprint, splits.test.content_hash]
        what = f"train {config.arm}, seed {config.seed}"
        tasks.append(Task.of(what, config, base.output_dir, trainer.steps, tested=tested, data=data))
    settings = base.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "config": settings, GIVEN: [*given]}
    done_by_workers(engine, recipe, tasks, Path(base.output_dir))


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that trains a bi-encoder of a tuning and searches the test split with it."""
    base = BiEncoderConfig.model_validate(recipe["config"])
    splits = cache(lambda: biencoder_splits(base))

    def train(part: Part, folder: Path, tick: Tick) -> None:
        config = BiEncoderConfig.model_validate(part["config"] | {"output_dir": str(folder / part["folder"])})
        trainer = BiEncoderTrainer(config, device, splits())
        refuse_other_data(config.collection, [trainer.state.fingerprint, splits().test.content_hash], part["data"])
        trainer.fit(lambda *_: tick(), lambda _: tick())
        if part["tested"]:
            before = base_retriever(config, splits(), device)
            after = trained_retriever(trainer.best_dir, before, splits(), device)
            evaluate(config, splits(), [after], recipe[GIVEN])

    return folder_jobs(train, store)


def _is_tested(config: BiEncoderConfig) -> bool:
    """Return whether the last files that the driver takes over are there."""
    folder, dataset = Path(config.output_dir), result_name(config.collection)
    return all(
        path(folder, arm, config.seed, TASK, dataset).exists()
        for arm in (config.arm, fused_name(config.arm))
        for path in (result_path, run_path)
    )
