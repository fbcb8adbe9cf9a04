"""The arms that can be evaluated: trained checkpoints, the base model as it is, and the first stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from unimoe.checkpoint import Checkpoint, read_checkpoint
from unimoe.config import Experiment
from unimoe.errors import DataError
from unimoe.models.loader import ModelLoader
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task

ZERO_SHOT_ARM = "zero_shot"


@dataclass(frozen=True)
class Subject:
    """What is evaluated: an arm with its model, or the first stage alone.

    Attributes:
        name: the arm.
        experiment: its configuration.
        load: gives the model, when it is needed; null for the first stage.
        base_identity: of the base model.
        prompt: name and hash of the prompt.
        dtype: what the model computes in.
        checkpoint: of a trained arm.
    """

    name: str
    experiment: Experiment
    load: Callable[[], UnimodelForExp1] | None = None
    base_identity: str | None = None
    prompt: str | None = None
    dtype: str | None = None
    checkpoint: Checkpoint | None = None

    @property
    def seed(self) -> int | None:
        """The training seed; null for arms that have none."""
        return self.checkpoint.seed if self.checkpoint else None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the arm is evaluated on: reranking always, embedding unless it was trained to rank only."""
        if self.load is None:
            return ("reranking", "retrieval")
        trained_to_rank = self.checkpoint and self.experiment.arm(self.name).task == "rank_only"
        return ("reranking",) if trained_to_rank else ("reranking", "embedding")


def first_stage_subject(experiment: Experiment) -> Subject:
    """The first stage alone: BM25, or whatever made the candidates that are given."""
    bm25 = experiment.evaluation.first_stage in {"bm25s", "rank_bm25"}
    return Subject("bm25" if bm25 else "first_stage", experiment)


def zero_shot_subject(experiment: Experiment, loader: ModelLoader) -> Subject:
    """The base model without training."""
    return Subject(
        ZERO_SHOT_ARM, experiment, cache(loader.zero_shot), loader.identity, loader.prompt, loader.dtype_name
    )


def trained_subject(experiment: Experiment, loader: ModelLoader, folder: Path) -> Subject:
    """A trained arm, from its checkpoint folder.

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
    return Subject(checkpoint.arm, experiment, load, loader.identity, loader.prompt, loader.dtype_name, checkpoint)


def evaluation_config(checkpoint: Checkpoint, given: Experiment | None) -> Experiment:
    """The checkpoint's configuration, with the evaluation settings of another config where one is given.

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
