"""The training of an arm by a worker of a cluster: its state is in the store, where another worker goes on with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from unimoe.checkpoint import folder_name, read_checkpoint, training_fingerprint, write_manifest
from unimoe.config import Experiment
from unimoe.engine.cluster import Assignment, Cluster
from unimoe.engine.mirror import Mirror
from unimoe.engine.units import UnitStore
from unimoe.engine.work import Compute, Part, Recipe, nowhere
from unimoe.errors import DataError
from unimoe.evaluation.dev_eval import DevEvaluation
from unimoe.io import cache_dir
from unimoe.models.loader import ModelLoader
from unimoe.results import arm_dir
from unimoe.training.checkpoint_manager import CheckpointManager
from unimoe.training.examples import load_training_data
from unimoe.training.trainer import StepReport, train_arm

_CHECKPOINTS: tuple[Literal["last", "best"], ...] = ("last", "best")

_FINAL = ("checkpoint", "logs")
"""What the driver takes over from a finished training."""


def train_by_worker(
    cluster: Cluster, experiment: Experiment, arm: str, seed: int, loader: ModelLoader, data: str
) -> list[float]:
    """Let a worker train an arm, unless it is trained, and take its checkpoint over into the output folder.

    Args:
        cluster: has the workers.
        experiment: holds the arm.
        arm: its name.
        seed: of the training.
        loader: knows the base model.
        data: content hash of the training data.

    Returns:
        The first and the last loss; none where the checkpoint was there.

    Raises:
        UnimoeError: as ``train_arm``.
    """
    base, dtype = loader.identity, loader.dtype_name
    if CheckpointManager(experiment, arm, seed, base=base, dtype=dtype, data=data).is_finished():
        return []
    key = training_fingerprint(experiment, arm, seed, base=base, dtype=dtype, data=data)
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "experiment": settings, "dtype": dtype}
    what = f"train {arm}, seed {seed}"
    workers = cluster.workers(Assignment(what, "units/trainings", recipe, {"training": key}))
    part = {"arm": arm, "seed": seed, "key": key, "data": data, "items": experiment.training.steps}
    with cluster.board.noted(what, experiment.training.steps):
        (losses,) = workers.compute("train", [part], nowhere)
    folder = arm_dir(Path(experiment.output_dir), arm, seed)
    (folder / "state.safetensors").unlink(missing_ok=True)  # of a training here that was killed
    for name in _CHECKPOINTS:
        shutil.rmtree(folder / folder_name(name), ignore_errors=True)
    Mirror(folder, cluster.store, _scope(key)).fetch(*_FINAL)
    for name in _CHECKPOINTS:
        if (own := folder / folder_name(name)).exists():
            checkpoint = read_checkpoint(own)
            config = {**checkpoint.config, "output_dir": experiment.output_dir}  # the worker's was a folder of its own
            write_manifest(own, checkpoint.model_copy(update={"config": config}))
    return [float(loss) for loss in losses]


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that trains arms of an experiment."""
    experiment = Experiment.model_validate(recipe["experiment"])
    loader = ModelLoader(experiment, device, getattr(torch, recipe["dtype"]))
    data = cache(lambda: load_training_data(experiment))

    def train(part: Part) -> list[float]:
        if data().content_hash != part["data"]:
            raise DataError(
                f"{experiment.training.collection}: another content on this machine than on the driver's; give all "
                "machines the same UNIMOE_DATA"
            )
        root = cache_dir("trainings") / part["key"]
        shutil.rmtree(root, ignore_errors=True)  # the store knows how far the training is
        here = experiment.model_copy(update={"output_dir": str(root)})
        mirror = Mirror(arm_dir(root, part["arm"], part["seed"]), store, _scope(part["key"]))
        mirror.fetch()
        losses: list[float] = []

        def on_step(report: StepReport) -> None:
            losses.append(report.loss)
            if (report.step - 1) % experiment.training.save_every == 0:  # the step before wrote a state
                mirror.push()

        train_arm(
            here,
            part["arm"],
            part["seed"],
            base=loader.fresh_base(),
            data=data(),
            frozen_layers=loader.frozen_layers,
            on_step=on_step,
            score_on_dev=DevEvaluation(here, part["arm"]),
        )
        mirror.push()
        shutil.rmtree(root, ignore_errors=True)
        return [losses[0], losses[-1]] if losses else []

    return {"train": train}


def _scope(key: str) -> str:
    return f"trainings/{key}"
