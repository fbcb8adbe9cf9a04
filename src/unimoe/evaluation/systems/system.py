"""The systems that can be evaluated: trained checkpoints, the untrained base model, an encoder, and the first stage."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from unimoe.cluster.worker import Recipe
from unimoe.config import DenseExperiment, Experiment
from unimoe.config.training import ArmConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.checkpoint import Checkpoint, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results import Task
from unimoe.retrieval.bm25 import engine_of
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
        load: returns the model, when it is needed: a ``PairModel`` or ``Reranker`` to rerank, an ``Embedder`` to
            embed or to search, or one that is all of them; None for the first stage.
        base_identity: of the base model, ``id@hash``; ``prompt`` is name and hash too.
        dtype: what the model computes in; None where that is not known.
        instructed: whether a reranker reads the instruction of MTEB's tasks.
        recipe: how workers of a cluster make the model, as ``model_recipe`` returns it; None where they cannot.
        reusable: whether identity and prompt tell the model from every other; where they do not, it is always
            evaluated again.
        fused: whether its search is fused with BM25's.
        size: of the vectors that it searches by.
        output_dir: where its results go; None for the experiment's folder.
    """

    name: str
    experiment: Experiment | DenseExperiment
    load: Callable[[], Any] | None = None
    base_identity: str | None = None
    prompt: str | None = None
    dtype: str | None = None
    checkpoint: Checkpoint | None = None
    tasks: tuple[Task, ...] = ("reranking", "embedding")
    instructed: bool = True
    recipe: Recipe | None = None
    reusable: bool = True
    fused: bool = False
    size: Size = FULL
    output_dir: Path | None = None

    @property
    def seed(self) -> int | None:
        """The training seed; None for arms that have none."""
        return self.checkpoint.seed if self.checkpoint else None

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

    def model(self) -> Any:
        """Return the model, of any system but the first stage alone."""
        assert self.load is not None  # noqa: S101 - for the type checker
        return self.load()


def first_stage_system(experiment: Experiment | DenseExperiment) -> System:
    """Return the first stage alone: BM25, or whatever made the given candidates."""
    bm25 = experiment.evaluation.first_stage == engine_of(experiment.evaluation)
    tasks: tuple[Task, ...] = ("reranking", "retrieval") if isinstance(experiment, Experiment) else ("retrieval",)
    return System(BM25 if bm25 else FIRST_STAGE, experiment, tasks=tasks)


def zero_shot_system(experiment: Experiment, loader: ModelLoader) -> System:
    """Return the base model without training."""
    dtype = loader.dtype_name
    recipe = model_recipe("zero-shot", experiment, dtype=dtype)
    load = cache(loader.zero_shot)
    return System(ZERO_SHOT_ARM, experiment, load, loader.identity, loader.prompt, dtype, recipe=recipe)


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
        cache(lambda: loader.trained(folder)),
        loader.identity,
        loader.prompt,
        loader.dtype_name,
        checkpoint,
        tasks_of(experiment.arm_named(checkpoint.arm)),
        recipe=model_recipe("checkpoint", experiment, folder=str(folder)),
    )


def checkpoint_loader(experiment: Experiment, checkpoint: Checkpoint, device: torch.device) -> ModelLoader:
    """Return the loader of a checkpoint; ``auto`` means the dtype of its training: in another it is another model."""
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else checkpoint.dtype
    return ModelLoader(experiment, device, getattr(torch, dtype))


def model_recipe(kind: str, experiment: Experiment | DenseExperiment, **values: Any) -> Recipe:
    """Return how a worker makes the model of a system, as JSON values; ``engines`` has a maker of each kind."""
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    if isinstance(experiment, Experiment):  # a template that is set says more than the one by default
        settings["prompt"] = experiment.prompt.model_dump(mode="json", exclude_unset=True)
    return {"maker": "unimoe.evaluation.engines:jobs_of", "kind": kind, "experiment": settings, **values}


def arm_name(name: str) -> str:
    """Return the name of an arm."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", name) or name in (BM25, FIRST_STAGE):
        raise UsageError(
            f"--name {name}: no name for this arm; use letters, digits, '_', '.' and '-', and neither {BM25} nor "
            f"{FIRST_STAGE}, which have results of their own"
        )
    return name
