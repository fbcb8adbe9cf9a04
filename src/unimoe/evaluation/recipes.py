"""How a process on another machine makes the model of a system: a recipe of JSON values, and files in the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Recipe
from unimoe.config import DenseExperiment, EvaluationConfig, Experiment
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_dir, cache_dir, read_bytes
from unimoe.evaluation.jobs import model_jobs
from unimoe.evaluation.systems.named import Naming, named_system
from unimoe.evaluation.systems.retriever import encoder_retriever
from unimoe.evaluation.systems.system import RecipeMaker, checkpoint_loader
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.loader import ModelLoader

_MAKER = f"{__name__}:jobs_of"


def checkpoint_recipe(experiment: Experiment, folder: Path) -> RecipeMaker:
    """Return what makes the recipe of a checkpoint's model, and puts the checkpoint's files into a store."""

    def make(store: UnitStore) -> Recipe:
        checkpoint = read_checkpoint(folder)
        scope = f"checkpoints/{checkpoint.fingerprint}-{checkpoint.adapter_hash}"
        there = store.keys(scope)
        files = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        for name in files:
            if name not in there:
                store.write(scope, name, read_bytes(folder / name))
        return _recipe("checkpoint", experiment, files=files, scope=scope)

    return make


def arm_recipe(evaluation: EvaluationConfig, folder: Path) -> RecipeMaker:
    """Return what makes the recipe of a trained arm that embeds for dense retrieval."""
    trained = read_checkpoint(folder).experiment.model_copy(update={"evaluation": evaluation})
    return checkpoint_recipe(trained, folder)


def zero_shot_recipe(experiment: Experiment, dtype: torch.dtype) -> RecipeMaker:
    """Return what makes the recipe of the untrained base model."""
    return lambda store: _recipe("zero-shot", experiment, dtype=_name(dtype))


def named_recipe(experiment: Experiment, name: str, arm: str | None, dtype: torch.dtype) -> RecipeMaker:
    """Return what makes the recipe of a model by name."""
    return lambda store: _recipe("named", experiment, name=name, arm=arm, dtype=_name(dtype))


def encoder_recipe(experiment: DenseExperiment, dtype: torch.dtype) -> RecipeMaker:
    """Return what makes the recipe of the encoder of dense retrieval."""
    encoder = experiment.encoder.model_copy(update={"dtype": _name(dtype)})
    return lambda store: _recipe("encoder", experiment.model_copy(update={"encoder": encoder}))


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the jobs of the model of a recipe, on a device of this machine."""

    def load() -> Any:
        kind = recipe["kind"]
        if kind == "encoder":
            return encoder_retriever(DenseExperiment.model_validate(recipe["experiment"]), "encoder", device).model()
        experiment = Experiment.model_validate(recipe["experiment"])
        if kind == "checkpoint":
            folder = _fetched(recipe, store)
            return checkpoint_loader(experiment, read_checkpoint(folder), device).trained(folder)
        dtype: torch.dtype = getattr(torch, recipe["dtype"])
        if kind == "zero-shot":
            return ModelLoader(experiment, device, dtype).zero_shot()
        return named_system(recipe["name"], Naming(experiment, device, dtype, recipe["arm"])).model()

    return model_jobs(load)


def _recipe(kind: str, experiment: Experiment | DenseExperiment, **values: Any) -> Recipe:
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    return {"maker": _MAKER, "kind": kind, "experiment": settings, **values}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _fetched(recipe: Recipe, store: UnitStore) -> Path:
    """Return the folder of a checkpoint on this machine, from the store where it is not here yet."""
    scope: str = recipe["scope"]
    folder = cache_dir("checkpoints") / scope.rpartition("/")[2]
    if not folder.exists():
        with atomic_dir(folder) as temporary:
            for name in recipe["files"]:
                content = store.read(recipe["scope"], name)
                if content is None:
                    raise DataError(f"{store.shown}: {recipe['scope']}/{name} is missing or damaged; run again")
                (temporary / name).write_bytes(content)
    return folder
