"""What a command names: systems to evaluate, and the collections and tasks of MTEB to evaluate them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.config import DenseExperiment, Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.recipes import (
    arm_recipe,
    checkpoint_recipe,
    encoder_recipe,
    named_recipe,
    zero_shot_recipe,
)
from unimoe.evaluation.retrieval_eval import bm25_engine
from unimoe.evaluation.systems.named import ADDRESSES, Naming, default_experiment, is_checkpoint, named_system
from unimoe.evaluation.systems.retriever import (
    checkpoint_retriever,
    encoder_retriever,
    fused_system,
    served_settings,
)
from unimoe.evaluation.systems.system import (
    System,
    checkpoint_loader,
    first_stage_system,
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


def chosen_systems(
    checkpoints: Sequence[Path],
    model: str | None,
    *,
    name: str | None = None,
    config: Experiment | None = None,
    overrides: Sequence[str] = (),
    output_dir: Path | None = None,
    device: torch.device,
    engine: Engine,
) -> list[System]:
    """Return the systems that a command names; their models are loaded when they are needed.

    Args:
        checkpoints: folders; none for the untrained base model, or where ``model`` names another (``systems.named``).
        model: a model by name.
        name: its name in results; by default the model's.
        config: settings in place of the checkpoint's or model's; required without both.
        overrides: ``key=value`` strings, for the checkpoint's or model's config where no other is given.
        output_dir: where results go; by default beside each checkpoint.
        device: where models compute.
        engine: where the work is done.

    Raises:
        UsageError: checkpoints differ in how they would be evaluated.
        UnimoeError: a model cannot be used.
    """
    if model is not None and not is_checkpoint(model):
        experiment = config or default_experiment(model, tuple(overrides))
        if model.partition(":")[0] in ADDRESSES:
            engine.refuse_server()
        dtype = engine.dtype(device, experiment.model.dtype)
        system = named_system(model, Naming(experiment, device, dtype, name))
        recipe = named_recipe(system.settings, model, name, dtype)
        return [replace(system, recipe=recipe, output_dir=output_dir or _OUTPUTS / system.name)]
    folders = checkpoints if model is None else (Path(model),)
    if not folders:
        if config is None:
            raise UsageError("--zero-shot needs --config, which names the base model")
        loader = ModelLoader(config, device, engine.dtype(device, config.model.dtype))
        recipe = zero_shot_recipe(config, loader.dtype)
        return [replace(zero_shot_system(config, loader), recipe=recipe, output_dir=output_dir)]
    loaders: dict[str, ModelLoader] = {}
    systems = [_trained(folder, config, overrides, output_dir, device, loaders) for folder in folders]
    for folder, system in zip(folders, systems, strict=True):
        if system.experiment.evaluation != systems[0].experiment.evaluation:
            raise UsageError(
                f"{folder} was trained with other evaluation settings than {folders[0]}; give --config for all of them"
            )
    return systems


def _trained(
    folder: Path,
    config: Experiment | None,
    overrides: Sequence[str],
    output_dir: Path | None,
    device: torch.device,
    loaders: dict[str, ModelLoader],
) -> System:
    """Return a checkpoint; those on one base share its loader of ``loaders``, and so its weights."""
    checkpoint = read_checkpoint(folder)
    if config is None and overrides:
        config = parse_config(Experiment, overridden(checkpoint.config, overrides), source="checkpoint's config")
    experiment = _evaluation_config(checkpoint, config)
    made = checkpoint_loader(experiment, checkpoint, device)
    settings = experiment.model_dump(include={"model", "prompt", "lora", "evaluation"})
    loader = loaders.setdefault(hash_json([settings, made.dtype_name]), made)
    if output_dir is None:  # the experiment's folder, if the checkpoint is in its usual place in one
        usual = (checkpoint.arm, f"seed_{checkpoint.seed}", folder_name(checkpoint.which))
        output_dir = folder.resolve().parents[2] if folder.resolve().parts[-3:] == usual else None
    system = trained_system(experiment, loader, folder)
    return replace(system, recipe=checkpoint_recipe(experiment, folder), output_dir=output_dir)


def _evaluation_config(checkpoint: Checkpoint, given: Experiment | None) -> Experiment:
    """Return the checkpoint's configuration, with the evaluation settings of another config where one is given.

    Model, prompt and adapter are the checkpoint's: a score under another prompt would measure something else.
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


def retrieval_systems(
    experiment: DenseExperiment, name: str, checkpoint: Path | None, device: torch.device, engine: Engine
) -> list[System]:
    """Return BM25, the checkpoint's arm or else the experiment's encoder, and the fusion of both where one is wanted.

    Raises:
        UnimoeError: the first stage cannot search, or the encoder or checkpoint cannot be used.
    """
    bm25_engine(experiment)  # refused now, not after the first collection
    if checkpoint is None:
        dtype = engine.dtype(device, experiment.encoder.dtype)
        if served_settings(experiment):
            engine.refuse_server()
        retriever = encoder_retriever(experiment, name, device, dtype)
        recipe = encoder_recipe(experiment, dtype)
    else:
        retriever = checkpoint_retriever(experiment, checkpoint, name, device)
        recipe = arm_recipe(experiment.evaluation, checkpoint)
    retriever = replace(retriever, recipe=recipe)
    fused = [fused_system(retriever)] if experiment.retrieval.fuse_depth is not None else []
    return [first_stage_system(experiment), retriever, *fused]


@dataclass(frozen=True)
class ChosenData:
    """What systems are evaluated on.

    Attributes:
        datasets: collections.
        mteb: tasks of MTEB.
        task: the one task wanted; None for all that a system does.
        embeds: whether embeddings are evaluated on collections; in the full tier MTEB(eng, v2) is their evaluation.
    """

    datasets: list[Dataset]
    mteb: list[AbsTask] = field(default_factory=list)
    task: Task | None = None
    embeds: bool = True

    def tasks(self, system: System) -> list[Task]:
        """Return a system's tasks that are wanted; embeddings are compared with the first stage's retrieval."""
        if self.task is None:
            return list(system.tasks)
        return [own for own in system.tasks if own == self.task or (own, self.task) == ("retrieval", "embedding")]

    def tasks_on_collections(self, system: System) -> list[Task]:
        """Return those of them that collections are for."""
        return [task for task in self.tasks(system) if self.embeds or task != "embedding"]


def chosen_data(
    systems: Sequence[System],
    *,
    tier: str = "bundled",
    datasets: Sequence[str] = (),
    mteb: Sequence[str] = (),
    task: Task | None = None,
    max_queries: int | None = None,
) -> ChosenData:
    """Return the collections and the tasks of MTEB that the user names, or those of the tier.

    Raises:
        UsageError: there is none of a name, or a system is not evaluated on the one task wanted.
    """
    experiment, full = systems[0].settings, tier == "full" and not datasets and not mteb
    if datasets:
        collections = chosen_datasets(experiment, datasets, max_queries)
    else:
        collections = [] if mteb else tier_datasets(experiment, known_tier(tier), max_queries)
    if max_queries is not None and mteb:
        raise UsageError("--max-queries cuts collections, not tasks of MTEB; leave it out, or name --datasets")
    names = mteb or (("full",) if full and task != "reranking" else ())
    tasks = find_tasks(names) if names else []
    TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys(dataset.name for dataset in collections)
    for system in systems:
        if task is not None and task not in system.tasks:
            did = "was trained for" if system.checkpoint else "does"
            raise UsageError(f"--task {task}: {system.name} {did} {', '.join(system.tasks)} only; leave it out")
    return ChosenData(collections, tasks, task, embeds=not full)
