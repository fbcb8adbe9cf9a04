"""The systems that can be evaluated: trained checkpoints, the untrained base model, an encoder, and the first stage."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Recipe
from unimoe.config import Experiment
from unimoe.config.training import ArmConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.checkpoint import Checkpoint, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results import Task

RecipeMaker = Callable[[UnitStore], Recipe]
"""Returns how workers of a cluster make a model, with the files for it in a store."""

ZERO_SHOT_ARM = "zero_shot"
BM25, FIRST_STAGE = "bm25", "first_stage"
"""The arms of a first stage alone: BM25, and any other."""


def tasks_of(arm: ArmConfig) -> tuple[Task, ...]:
    """Return what a trained arm is evaluated on: reranking always, embedding unless it was trained to rank only."""
    return ("reranking",) if arm.task == "rank_only" else ("reranking", "embedding")


@dataclass(frozen=True)
class System:
    """An arm of an experiment with its model, or the first stage alone.

    Attributes:
        name: the arm.
        experiment: its configuration.
        load: returns the model, when it is needed: a ``PairModel`` or ``Reranker`` to rerank, an ``Embedder`` to
            embed, or one that is both; None for the first stage.
        base_identity: of the base model, ``id@hash``.
        prompt: name and hash of the prompt.
        dtype: what the model computes in; None where that is not known.
        checkpoint: of a trained arm.
        model_tasks: what a model that is not an arm's checkpoint is evaluated on.
        instructed: whether a reranker reads the instruction of MTEB's tasks.
        recipe: returns how workers of a cluster make the model, with its files in a store; None where they cannot.
        reusable: whether identity and prompt tell the model from every other; where they do not, it is always
            evaluated again.
    """

    name: str
    experiment: Experiment
    load: Callable[[], Any] | None = None
    base_identity: str | None = None
    prompt: str | None = None
    dtype: str | None = None
    checkpoint: Checkpoint | None = None
    model_tasks: tuple[Task, ...] = ("reranking", "embedding")
    instructed: bool = True
    recipe: RecipeMaker | None = None
    reusable: bool = True

    @property
    def seed(self) -> int | None:
        """The training seed; None for arms that have none."""
        return self.checkpoint.seed if self.checkpoint else None

    @property
    def which(self) -> Literal["best", "last", "none"]:
        """Which checkpoint of the arm it is."""
        return self.checkpoint.which if self.checkpoint else "none"

    @property
    def by_name(self) -> bool:
        """Whether it is a model that the experiment neither trains nor begins training with."""
        return self.load is not None and self.checkpoint is None and self.name != ZERO_SHOT_ARM

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the system is evaluated on; an arm that was trained to rank only is not evaluated on embedding."""
        if self.load is None:
            return ("reranking", "retrieval")
        return tasks_of(self.experiment.arm(self.name)) if self.checkpoint else self.model_tasks

    def model(self) -> Any:
        """Return the model.

        Raises:
            ValueError: it is the first stage, which has none.
        """
        if self.load is None:
            raise ValueError(f"{self.name}: the first stage alone has no model; give the system of an arm")
        return self.load()


def first_stage_system(experiment: Experiment) -> System:
    """Return the first stage alone: BM25, or whatever made the given candidates."""
    bm25 = experiment.evaluation.first_stage in {"bm25s", "rank_bm25"}
    return System(BM25 if bm25 else FIRST_STAGE, experiment)


def zero_shot_system(experiment: Experiment, loader: ModelLoader) -> System:
    """Return the base model without training."""
    load = cache(loader.zero_shot)
    return System(ZERO_SHOT_ARM, experiment, load, loader.identity, loader.prompt, loader.dtype_name)


def trained_system(experiment: Experiment, loader: ModelLoader, folder: Path) -> System:
    """Return a trained arm from its checkpoint folder.

    Raises:
        DataError: the checkpoint is missing, damaged, or of another base model than the loader's.
    """
    checkpoint = read_checkpoint(folder)
    if checkpoint.base_model != loader.identity:
        raise DataError(
            f"{folder} was trained on {checkpoint.base_model}, this evaluation would load {loader.identity}; "
            "set model.base to the one it was trained on"
        )
    load = cache(lambda: loader.trained(folder))
    return System(checkpoint.arm, experiment, load, loader.identity, loader.prompt, loader.dtype_name, checkpoint)


def checkpoint_loader(experiment: Experiment, checkpoint: Checkpoint, device: torch.device) -> ModelLoader:
    """Return the loader of a checkpoint; ``auto`` means the dtype of its training: in another it is another model."""
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else checkpoint.dtype
    return ModelLoader(experiment, device, getattr(torch, dtype))


def evaluation_config(checkpoint: Checkpoint, given: Experiment | None) -> Experiment:
    """Return the checkpoint's configuration, with the evaluation settings of another config where one is given.

    Model, prompt and adapter are the checkpoint's: a score under another prompt would measure something else.

    Raises:
        DataError: the given config has another model, prompt or adapter.
    """
    trained = checkpoint.experiment
    if given is None:
        return trained
    for section in ("model", "prompt", "lora"):
        if getattr(given, section) != getattr(trained, section):
            raise DataError(
                f"--config: its {section} section differs from what {checkpoint.arm}, seed {checkpoint.seed} was "
                f"trained with on {checkpoint.base_model}; only evaluation settings can be overridden"
            )
    return trained.model_copy(
        update={"evaluation": given.evaluation, "output_dir": given.output_dir, "caveats": given.caveats}
    )


def arm_name(name: str) -> str:
    """Return the name of an arm.

    Raises:
        UsageError: the name cannot be an arm's.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", name) or name in (BM25, FIRST_STAGE):
        raise UsageError(
            f"--name {name}: no name for this arm; use letters, digits, '_', '.' and '-', and neither {BM25} nor "
            f"{FIRST_STAGE}, which have results of their own"
        )
    return name
