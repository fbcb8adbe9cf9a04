"""The training of an arm, in this process or by a worker of a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch

from unimoe.cluster.cluster import Cluster
from unimoe.cluster.folder_job import Tick, done_by_worker, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Recipe
from unimoe.config import Experiment
from unimoe.core.errors import DataError
from unimoe.evaluation.dev_eval import DevEvaluation
from unimoe.models.loader import ModelLoader
from unimoe.training.checkpoint_manager import CheckpointManager
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.loop import Facts
from unimoe.training.trainer import train_arm


def train_here(
    experiment: Experiment, arm: str, seed: int, loader: ModelLoader, data: TrainingData, tick: Callable[[], None]
) -> list[float]:
    """Train an arm in this process, and call ``tick`` at each step; return the losses, none where it is trained."""
    losses: list[float] = []

    def on_step(_: int, facts: Facts) -> None:
        losses.append(facts["loss"])
        tick()

    train_arm(
        experiment,
        arm,
        seed,
        base=loader.fresh_base(),
        data=data,
        frozen_layers=loader.frozen_layers,
        on_step=on_step,
        score_on_dev=DevEvaluation(experiment, arm),
    )
    return losses


def train_by_worker(
    cluster: Cluster, experiment: Experiment, arm: str, seed: int, loader: ModelLoader, data: str
) -> list[float]:
    """Let a worker train an arm, unless it is trained, and take its checkpoint over into the output folder.

    ``data`` is the content hash of the training data. Returns the first and the last loss; none where the checkpoint
    was there.
    """
    base, dtype = loader.identity, loader.dtype_name
    there = CheckpointManager(experiment, arm, seed, base=base, dtype=dtype, data=data)
    if there.is_finished():
        return []
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "experiment": settings, "dtype": dtype}
    part = {"arm": arm, "seed": seed, "key": there.state.fingerprint, "data": data}
    for left in (there.last, there.best):  # of a training in this process that was killed
        shutil.rmtree(left, ignore_errors=True)
    there.state.delete()
    steps, folder = experiment.training.steps, Path(experiment.output_dir)
    losses: list[float] = done_by_worker(cluster, f"train {arm}, seed {seed}", recipe, part, folder, items=steps)
    return losses


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that trains arms of an experiment."""
    experiment = Experiment.model_validate(recipe["experiment"])
    loader = ModelLoader(experiment, device, getattr(torch, recipe["dtype"]))
    data = cache(lambda: load_training_data(experiment))

    def train(part: Part, folder: Path, tick: Tick) -> list[float]:
        if data().content_hash != part["data"]:
            raise DataError(
                f"{experiment.training.collection}: another content on this machine than on the driver's; give all "
                "machines the same UNIMOE_DATA"
            )
        here = experiment.model_copy(update={"output_dir": str(folder)})
        losses = train_here(here, part["arm"], part["seed"], loader, data(), tick)
        return [losses[0], losses[-1]] if losses else []

    return folder_jobs(train, store)
