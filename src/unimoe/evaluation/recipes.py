"""How a worker of a cluster makes the model of a system, and what it does with it.

A recipe is JSON values, with files in the store; a job takes a part, which is JSON values too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, Recipe
from unimoe.config import DenseExperiment, EvaluationConfig, Experiment
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_dir, cache_dir, read_bytes
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.mteb.remote import task_job
from unimoe.evaluation.reranking.rerankers import device_of, reranker_of, returns_logits, used_budget
from unimoe.evaluation.reranking.shards import prepared_part, score_part
from unimoe.evaluation.systems.named import Naming, named_system
from unimoe.evaluation.systems.retriever import encoder_retriever
from unimoe.evaluation.systems.system import RecipeMaker, checkpoint_loader
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.device import describe_device
from unimoe.models.embedder import Vectors
from unimoe.models.loader import ModelLoader


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


def _recipe(kind: str, experiment: Experiment | DenseExperiment, **values: Any) -> Recipe:
    settings = experiment.model_dump(mode="json", exclude={"output_dir"})
    return {"maker": f"{__name__}:jobs_of", "kind": kind, "experiment": settings, **values}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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

    return _model_jobs(cache(load))


def _fetched(recipe: Recipe, store: UnitStore) -> Path:
    """Return the folder of a checkpoint on this machine, from the store where it is not here yet."""
    scope: str = recipe["scope"]
    folder = cache_dir("checkpoints") / scope.rpartition("/")[2]
    if not folder.exists():
        with atomic_dir(folder) as temporary:
            for name in recipe["files"]:
                content = store.read(scope, name)
                if content is None:
                    raise DataError(f"{store.shown}: {scope}/{name} is missing or damaged; run again")
                (temporary / name).write_bytes(content)
    return folder


def _model_jobs(model: Callable[[], Any]) -> Mapping[str, Compute]:
    """Return the jobs of an embedder, a model of token ids or a ``Reranker``, which ``model`` loads when it must."""

    def encode(part: Part) -> Vectors:
        vectors: Vectors = model().encode(part["texts"], **part["options"])
        return vectors

    def rerank(part: Part) -> NDArray[np.float64]:
        reranker = reranker_of(model(), **part["options"])
        return score_part(reranker, part, prepared_part(reranker, part))

    def cut(part: Part) -> list[list[tuple[str, str]]]:
        documents = {key: Document("", text) for key, text in part["corpus"].items()}
        collection = Collection(part["name"], "", documents, part["queries"], {})
        return reranker_of(model(), **part["options"]).cut(collection, part["candidates"])

    def truncated(part: Part) -> list[str]:
        return reranker_of(model(), **part["options"]).truncated_queries(part["queries"])

    def score(part: Part) -> list[float]:
        reranker = reranker_of(model(), **part["options"])
        pairs = [(query, document) for query, document in part["pairs"]]
        return list(map(float, reranker.score(reranker.prepare(pairs))))

    def facts(part: Part) -> dict[str, Any]:
        """Return what a driver that does not hold the model must know of it."""
        own = model()
        described = {name: str(getattr(own, name)) for name in ("base_identity", "prompt_name") if hasattr(own, name)}
        if callable(getattr(own, "rerank_ids", None)):
            described["order"] = own.pair_ids.order
        if hasattr(own, "dtype"):
            described["dtype"] = _name(own.dtype)
        place, budget = describe_device(device_of(own)), used_budget(own, **part["options"])
        return {**described, "place": place, "token_budget": budget, "logits": returns_logits(own)}

    jobs: tuple[Compute, ...] = (encode, rerank, cut, truncated, score, facts)
    return {**{job.__name__: job for job in jobs}, "mteb": task_job(model)}
