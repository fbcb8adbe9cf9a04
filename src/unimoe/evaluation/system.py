"""The systems that are evaluated: trained checkpoints, models by name, what searches, and the first stage alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from unimoe.cluster.worker import Recipe
from unimoe.config import DenseExperiment, Experiment
from unimoe.config.training import ArmConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.checkpoint import Checkpoint, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.models.model import Model
from unimoe.models.named import ModelSettings, is_served, loaders_model, named_model
from unimoe.results import Task, safe_name
from unimoe.retrieval.bm25 import engine_of
from unimoe.retrieval.model_search import ModelSearch
from unimoe.retrieval.sizes import FULL, Size

ZERO_SHOT_ARM = "zero_shot"
BM25, FIRST_STAGE = "bm25", "first_stage"
"""The arms of a first stage alone: BM25, and any other."""


def tasks_of(arm: ArmConfig) -> tuple[Task, ...]:
    """Return what a trained arm is evaluated on: reranking always, embedding unless it was trained to rank only."""
    return ("reranking",) if arm.task == "rank_only" else ("reranking", "embedding")


@dataclass(frozen=True)
class System:
    """What is evaluated: an arm of an experiment with its model, a model by name, or the first stage alone.

    Attributes:
        experiment: its configuration; that of dense retrieval where the task is ``retrieval``.
        model: None for the first stage.
        recipe: how workers of a cluster make the model, as ``model_recipe`` returns it; None where they cannot.
        search: what ranks by the model, where it makes no vectors of documents.
        fused: whether its search is fused with BM25's.
        size: of the vectors that it searches by.
        order: in which it reads candidates: 0 for the first stage's, else the seed of a random one; None where scores
            do not depend on it.
        output_dir: where its results go; None for the experiment's folder.
    """

    name: str
    experiment: Experiment | DenseExperiment
    model: Model | None = None
    tasks: tuple[Task, ...] = ("reranking", "embedding")
    checkpoint: Checkpoint | None = None
    recipe: Recipe | None = None
    search: ModelSearch | None = None
    fused: bool = False
    size: Size = FULL
    order: int | None = None
    output_dir: Path | None = None

    @property
    def seed(self) -> int | None:
        """The seed of training, or the order in which it reads candidates; None for systems that have neither."""
        return self.checkpoint.seed if self.checkpoint else self.order

    @property
    def which(self) -> Literal["best", "last", "none"]:
        """Which checkpoint of the arm it is."""
        return self.checkpoint.which if self.checkpoint else "none"

    @property
    def settings(self) -> Experiment:
        """The configuration of a system that is no search."""
        assert isinstance(self.experiment, Experiment)  # noqa: S101 - for the type checker
        return self.experiment

    @property
    def dense(self) -> DenseExperiment:
        """The configuration of a system that searches."""
        assert isinstance(self.experiment, DenseExperiment)  # noqa: S101 - for the type checker
        return self.experiment

    @property
    def results_dir(self) -> Path:
        """The folder of its results."""
        return self.output_dir or Path(self.experiment.output_dir)


def first_stage_system(experiment: Experiment | DenseExperiment) -> System:
    """Return the first stage alone: BM25, or whatever made the given candidates."""
    bm25 = experiment.evaluation.first_stage == engine_of(experiment.evaluation)
    tasks: tuple[Task, ...] = ("reranking", "retrieval") if isinstance(experiment, Experiment) else ("retrieval",)
    return System(BM25 if bm25 else FIRST_STAGE, experiment, tasks=tasks)


def zero_shot_system(experiment: Experiment, loader: ModelLoader) -> System:
    """Return the base model without training."""
    recipe = model_recipe("zero-shot", experiment, dtype=loader.dtype_name)
    return System(ZERO_SHOT_ARM, experiment, loaders_model(loader), recipe=recipe)


def trained_system(experiment: Experiment, loader: ModelLoader, folder: Path) -> System:
    """Return a trained arm from its checkpoint folder."""
    checkpoint = read_checkpoint(folder)
    if checkpoint.base_model != loader.identity:
        raise DataError(
            f"{folder} was trained on {checkpoint.base_model}, this evaluation would load {loader.identity}; "
            "set model.base to the one it was trained on"
        )
    return System(
        checkpoint.arm,
        experiment,
        loaders_model(loader, folder),
        tasks_of(experiment.arm_named(checkpoint.arm)),
        checkpoint,
        model_recipe("checkpoint", experiment, folder=str(folder)),
    )


def checkpoint_loader(experiment: Experiment, checkpoint: Checkpoint, device: torch.device) -> ModelLoader:
    """Return the loader of a checkpoint; ``auto`` means the dtype of its training: in another it is another model."""
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else checkpoint.dtype
    return ModelLoader(experiment, device, getattr(torch, dtype))


def named_system(name: str, settings: ModelSettings, arm: str | None = None) -> System:
    """Return the system of a model by name; ``arm`` is its name in results, None for one made of the model's."""
    model, experiment = named_model(name, settings)
    if model.embed and not model.instructed:
        experiment = _with_own_prefixes(experiment)
    if model.max_length is not None:
        as_read = experiment.model.model_copy(update={"max_length": model.max_length})
        experiment = experiment.model_copy(update={"model": as_read})
    served = is_served(name)  # which one process asks
    recipe = None if served else model_recipe("named", experiment, name=name, dtype=settings.dtype_name)
    order = 0 if model.reads_order else None
    return System(_arm_of(model.name or name, arm), experiment, model, model.tasks, recipe=recipe, order=order)


def in_orders(systems: Sequence[System], shuffles: int) -> list[System]:
    """Return systems with those that read candidates in an order once for each: the first stage's, and random ones."""
    orders = {system.name: [None] if system.order is None else range(shuffles + 1) for system in systems}
    return [replace(system, order=order) for system in systems for order in orders[system.name]]


def _arm_of(model: str, arm: str | None) -> str:
    """Return the name in results of the model called ``model``: the last part of a path that names it."""
    parts = [part for part in re.split(r"[:/\\]", model) if part] or [model]
    named = [part for part in parts if not re.fullmatch(r"checkpoint[\w.\-]*|seed_\w+|\.+", part)]
    return arm_name(arm or safe_name((named or parts)[-1]))


def _with_own_prefixes(experiment: Experiment) -> Experiment:
    """Return the same, with no instruction of MTEB's before texts to embed unless the experiment sets one."""
    evaluation = experiment.evaluation
    if "task_instruction" in evaluation.mteb.model_fields_set:
        return experiment
    own = evaluation.mteb.model_copy(update={"task_instruction": None})  # what decoders are trained on
    return experiment.model_copy(update={"evaluation": evaluation.model_copy(update={"mteb": own})})


def model_recipe(kind: str, experiment: Experiment | DenseExperiment, **values: Any) -> Recipe:
    """Return how a worker makes the model of a system, as JSON values; ``engines`` has a maker of each kind."""
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    if isinstance(experiment, Experiment):  # a template that is set says more than the one by default
        settings["prompt"] = experiment.prompt.model_dump(mode="json", exclude_unset=True)
        values["set"] = sorted(experiment.model.model_fields_set)  # a model has a length of its own where none is set
    return {"maker": "unimoe.evaluation.engines:jobs_of", "kind": kind, "experiment": settings, **values}


def recipes_experiment(recipe: Recipe) -> Experiment:
    """Return the experiment of a recipe that ``model_recipe`` made of one, with the settings that were set there."""
    experiment = Experiment.model_validate(recipe["experiment"])
    experiment.model.model_fields_set.intersection_update(recipe["set"])
    return experiment


def arm_name(name: str) -> str:
    """Return the name of an arm."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", name) or name in (BM25, FIRST_STAGE):
        raise UsageError(
            f"--name {name}: no name for this arm; use letters, digits, '_', '.' and '-', and neither {BM25} nor "
            f"{FIRST_STAGE}, which have results of their own"
        )
    return name
