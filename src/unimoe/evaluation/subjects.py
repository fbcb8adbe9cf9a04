"""The arms that can be evaluated: trained checkpoints, the base model as it is, and the first stage."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from unimoe.checkpoint import Checkpoint, read_checkpoint
from unimoe.config import Experiment
from unimoe.errors import DataError
from unimoe.evaluation.evaluator import BM25_ARM, ZERO_SHOT_ARM, Subject
from unimoe.models.bench import ModelBench


def first_stage_subject(experiment: Experiment) -> Subject:
    """BM25 alone."""
    return Subject(BM25_ARM, experiment)


def zero_shot_subject(experiment: Experiment, bench: ModelBench) -> Subject:
    """The base model without training."""
    return Subject(ZERO_SHOT_ARM, experiment, cache(bench.zero_shot), bench.identity, bench.prompt, bench.dtype_name)


def trained_subject(experiment: Experiment, bench: ModelBench, folder: Path) -> Subject:
    """A trained arm, from its checkpoint folder.

    Raises:
        DataError: the checkpoint is missing, damaged, or of another base model than the bench's.
    """
    checkpoint = read_checkpoint(folder)
    if checkpoint.base_model != bench.identity:
        raise DataError(
            f"{folder} was trained on {checkpoint.base_model}, this evaluation would load {bench.identity}; "
            "set model.base to the one it was trained on"
        )
    load = cache(lambda: bench.trained(folder))
    return Subject(checkpoint.arm, experiment, load, bench.identity, bench.prompt, bench.dtype_name, checkpoint)


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
