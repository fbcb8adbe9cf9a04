"""What the command ``evaluate`` is asked: systems, collections and tasks of MTEB, and the tasks of each system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.recipes import checkpoint_recipe, named_recipe, zero_shot_recipe
from unimoe.evaluation.systems.named import ADDRESSES, Naming, default_experiment, is_checkpoint, named_system
from unimoe.evaluation.systems.system import (
    System,
    checkpoint_loader,
    evaluation_config,
    trained_system,
    zero_shot_system,
)
from unimoe.evaluation.tiers.datasets import Dataset, chosen_datasets, known_tier, tier_datasets
from unimoe.models.checkpoint import Checkpoint, folder_name, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results import Task

if TYPE_CHECKING:
    from mteb import AbsTask

_OUTPUTS = Path("outputs", "models")
"""Where results of models go that belong to no experiment: a folder each, since one holds one base model."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What the command was asked to evaluate.

    Attributes:
        checkpoints: none for the untrained base model, or where ``model`` names another (see ``systems.named``).
        config: settings in place of the checkpoint's or model's; required without both.
        overrides: ``key=value`` strings, for the checkpoint's or model's config where no other is given.
        datasets: collections by name, in place of the tier.
        mteb: tasks and benchmarks of MTEB by name, in place of the tier or beside ``datasets``.
        task: the one task wanted; None for all that the arm is evaluated on.
        output_dir: where results go; by default beside each checkpoint.
        threads: on a CPU; None for the faster of one and all.
        given: options given by hand, for provenance.
    """

    checkpoints: tuple[Path, ...]
    model: str | None
    name: str | None
    config: Experiment | None
    overrides: tuple[str, ...]
    tier: str
    datasets: tuple[str, ...]
    mteb: tuple[str, ...]
    task: Task | None
    max_queries: int | None
    output_dir: Path | None
    threads: int | None
    given: list[str]


@dataclass(frozen=True)
class Target:
    """A system that was asked for, with its settings and the folder of its results."""

    experiment: Experiment
    output_dir: Path
    load: Callable[[], System]


def targets(request: EvaluationRequest, device: torch.device, engine: Engine) -> list[Target]:
    """Return the systems that were asked for.

    Raises:
        UsageError: checkpoints differ in how they would be evaluated.
    """
    if request.model is not None and not is_checkpoint(request.model):
        return [_named(request.model, request, device, engine)]
    folders = request.checkpoints if request.model is None else (Path(request.model),)
    if not folders:
        return [_zero_shot(request, device, engine)]
    loaders: dict[str, ModelLoader] = {}
    found = [_trained(folder, request, device, loaders) for folder in folders]
    for folder, target in zip(folders, found, strict=True):
        if target.experiment.evaluation != found[0].experiment.evaluation:
            raise UsageError(
                f"{folder} was trained with other evaluation settings than {folders[0]}; give --config for all of them"
            )
    return found


def asked(request: EvaluationRequest, experiment: Experiment) -> tuple[list[Dataset], list[AbsTask]]:
    """Return the collections and the tasks of MTEB that the user named, or those of the tier."""
    datasets, mteb_tasks = _datasets(request, experiment), _mteb_tasks(request)
    TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys(dataset.name for dataset in datasets)
    return datasets, mteb_tasks


def on_collections(system: System, request: EvaluationRequest) -> Sequence[Task]:
    """Return the tasks to evaluate on collections; in the full tier MTEB(eng, v2) evaluates embeddings."""
    tasks = wanted(system, request.task)
    return [task for task in tasks if task != "embedding"] if _in_full_tier(request) else tasks


def wanted(system: System, task: Task | None) -> Sequence[Task]:
    """Return a system's tasks that the user asked for; embeddings are compared with the first stage's retrieval."""
    if task is None:
        return system.tasks
    return [own for own in system.tasks if own == task or (own, task) == ("retrieval", "embedding")]


def refuse_untrained_task(system: System, task: Task | None) -> None:
    """Refuse the one task that is wanted where a system is not evaluated on it."""
    if task is not None and task not in system.tasks:
        did = "was trained for" if system.checkpoint else "does"
        raise UsageError(f"--task {task}: {system.name} {did} {', '.join(system.tasks)} only; leave it out")


def _datasets(request: EvaluationRequest, experiment: Experiment) -> list[Dataset]:
    if request.datasets:
        return chosen_datasets(experiment, request.datasets, request.max_queries)
    return [] if request.mteb else tier_datasets(experiment, known_tier(request.tier), request.max_queries)


def _mteb_tasks(request: EvaluationRequest) -> list[AbsTask]:
    names = request.mteb or (("full",) if _in_full_tier(request) and request.task != "reranking" else ())
    if not names:
        return []
    if request.max_queries is not None and request.mteb:
        raise UsageError("--max-queries cuts collections, not tasks of MTEB; leave it out, or name --datasets")
    return find_tasks(names)


def _in_full_tier(request: EvaluationRequest) -> bool:
    return request.tier == "full" and not request.datasets and not request.mteb


def _zero_shot(request: EvaluationRequest, device: torch.device, engine: Engine) -> Target:
    if request.config is None:
        raise UsageError("--zero-shot needs --config, which names the base model")
    config = request.config
    loader = ModelLoader(config, device, engine.dtype(device, config.model.dtype))
    recipe = zero_shot_recipe(config, loader.dtype)
    return Target(
        config,
        request.output_dir or Path(config.output_dir),
        lambda: replace(zero_shot_system(config, loader), recipe=recipe),
    )


def _trained(folder: Path, request: EvaluationRequest, device: torch.device, loaders: dict[str, ModelLoader]) -> Target:
    """Return a checkpoint; those on one base share its loader of ``loaders``, and so its weights."""
    checkpoint = read_checkpoint(folder)
    experiment = evaluation_config(checkpoint, request.config or _overridden(checkpoint, request.overrides))
    made = checkpoint_loader(experiment, checkpoint, device)
    settings = experiment.model_dump(include={"model", "prompt", "lora", "evaluation"})
    loader = loaders.setdefault(hash_json([settings, made.dtype_name]), made)
    return Target(
        experiment,
        request.output_dir or _experiment_folder(folder, checkpoint) or Path(experiment.output_dir),
        lambda: replace(trained_system(experiment, loader, folder), recipe=checkpoint_recipe(experiment, folder)),
    )


def _named(name: str, request: EvaluationRequest, device: torch.device, engine: Engine) -> Target:
    experiment = request.config or default_experiment(name, request.overrides)
    if name.startswith(tuple(f"{scheme}:" for scheme in ADDRESSES)):
        engine.refuse_server()
    dtype = engine.dtype(device, experiment.model.dtype)
    system = named_system(name, Naming(experiment, device, dtype, request.name))
    system = replace(system, recipe=named_recipe(system.experiment, name, request.name, dtype))
    return Target(system.experiment, request.output_dir or _OUTPUTS / system.name, lambda: system)


def _overridden(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Experiment | None:
    if not overrides:
        return None
    return parse_config(Experiment, overridden(checkpoint.config, overrides), source="checkpoint's config")


def _experiment_folder(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the experiment's folder if the checkpoint is in its usual place in one, else None."""
    places = folder.resolve().parts[-3:]
    expected = (checkpoint.arm, f"seed_{checkpoint.seed}", folder_name(checkpoint.which))
    return folder.resolve().parents[2] if places == expected else None
