"""The training of an arm, in this process or by a worker of a cluster."""

from __future__ import annotations

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
from unimoe.results import arm_dir
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.loop import StepFacts
from unimoe.training.trainer import ArmTraining


def arm_training(experiment: Experiment, arm: str, seed: int, loader: ModelLoader, data: TrainingData) -> ArmTraining:
    """Return the training of an arm, which is scored on dev where the experiment says so."""
    return ArmTraining(experiment, arm, seed, loader, data, DevEvaluation(experiment, arm))


def train_here(training: ArmTraining, tick: Callable[[], None]) -> list[float]:
    """Train an arm in this process, and call ``tick`` at each step; return the losses, none where it is trained."""
    losses: list[float] = []

    def on_step(_: int, facts: StepFacts) -> None:
        losses.append(facts["loss"])
        tick()

    training.run(on_step)
    return losses


def train_by_worker(cluster: Cluster, training: ArmTraining) -> list[float]:
    """Let a worker train an arm, unless it is trained, and take its checkpoint over into the output folder.

    Returns the first and the last loss; none where the checkpoint was there.
    """
    training.make_room()  # a driver that was killed may have copied a part of a worker's files
    if training.is_finished():
        return []
    experiment, arm, seed, folder = training.experiment, training.arm, training.seed, training.experiment.output_dir
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "experiment": settings, "dtype": training.loader.dtype_name}
    part = {"arm": arm, "seed": seed, "key": training.state.fingerprint, "data": training.state.settings["data"]}
    what, steps = f"train {arm}, seed {seed}", experiment.training.steps
    own = arm_dir(Path(), arm, seed).as_posix()
    return done_by_worker(cluster, what, recipe, part, Path(folder), list[float], items=steps, below=own)


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
        losses = train_here(arm_training(here, part["arm"], part["seed"], loader, data()), tick)
        return [losses[0], losses[-1]] if losses else []

    return folder_jobs(train, store)
