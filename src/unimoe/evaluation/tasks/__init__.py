"""What is evaluated, one file a task: each describes a system's evaluation, runs it, and has what it measures.

``described`` says what all of them have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unimoe.config import DenseExperiment
from unimoe.data.collection import Collection
from unimoe.data.published import canonical_name
from unimoe.evaluation.datasets import Dataset
from unimoe.evaluation.spec import Evaluation, Outcome, Work, model_hashes
from unimoe.evaluation.system import ZERO_SHOT_ARM, System
from unimoe.models.loader import weights_hash
from unimoe.results import About, Identity, Task

_OF_TRAINING = {"training", "lora", "arms", "seeds", "gates"}
"""Sections that say nothing about a model that no arm trains."""


def described(
    system: System,
    task: Task,
    run: Callable[[Evaluation, Work], Outcome],
    *,
    identity: dict[str, Any],
    hashes: dict[str, str],
    dataset: str,
    main_metric: str | None,
    size: int | None = None,
    caveats: list[str] | None = None,
    task_type: str | None = None,
) -> Evaluation:
    """Return the evaluation of a system's task that ``run`` does; the rest is what the data say of it."""
    model, checkpoint, experiment = system.model, system.checkpoint, system.experiment
    trained = weights_hash(checkpoint, experiment.evaluation) if checkpoint else None
    of_no_arm = model is not None and checkpoint is None and system.name != ZERO_SHOT_ARM
    config = experiment.model_dump(exclude=_OF_TRAINING if of_no_arm else None)
    if checkpoint and isinstance(experiment, DenseExperiment):  # which says nothing about the arm
        config["checkpoint"] = checkpoint.config
    base, dtype, own = (model.identity, model.dtype, model.prompt) if model else (None, None, None)
    known = {"prompt": own, **identity}
    about = About(
        config_name=system.name,
        seed=system.seed,
        task=task,
        dataset=dataset,
        task_type=task_type,
        identity=Identity(experiment=experiment.name, base_model=base, checkpoint=system.which, **known),
        training=checkpoint.training if checkpoint else None,
        config=config,
        caveats=[*experiment.caveats, *(model.caveats if model else ()), *(caveats or ())],
    )
    hashes |= model_hashes(base, known["prompt"], trained)
    reusable = model is None or model.reusable
    return Evaluation(about, hashes, main_metric, dtype, reusable, size, system, run)


def used_before(system: System, dataset: Dataset) -> list[str]:
    """Return the caveats of a checkpoint on a split whose queries trained or chose it, as its manifest says."""
    recipe = system.checkpoint.config.get("training") if system.checkpoint else None  # a bi-encoder's has none
    if not recipe or canonical_name(recipe["collection"]) != canonical_name(dataset.collection):
        return []
    used = {"trained": recipe["split"]} | ({"chose": recipe["dev"]["split"]} if system.which == "best" else {})
    return [f"these queries {how} the checkpoint" for how, split in used.items() if split == dataset.split]


def rule_hashes(collection: Collection) -> dict[str, str]:
    """Return what hashes say of documents with their query's id: nothing where these are kept."""
    return {"identical_ids": "left out"} if collection.excludes_self else {}
