"""What a worker of a cluster does with the model of a system: it embeds texts, scores pairs, and does tasks of MTEB.

A recipe (``systems.system.model_recipe``) says how it makes the model, a part what it does: both are JSON values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Recipe
from unimoe.config import DenseExperiment, Experiment, MTEBConfig
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_dir, cache_dir, read_bytes
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.embedding_eval import evaluate_task, load_from_hub
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.reranking.rerankers import device_of, reranker_of, returns_logits, used_budget
from unimoe.evaluation.spec import Outcome, mteb_data_hash
from unimoe.evaluation.systems.named import Naming, named_system
from unimoe.evaluation.systems.retriever import encoder_retriever
from unimoe.evaluation.systems.system import checkpoint_loader
from unimoe.metrics import Scores
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.device import describe_device
from unimoe.models.embedder import Vectors
from unimoe.models.loader import ModelLoader

if TYPE_CHECKING:
    from mteb import AbsTask

_FOUND = ("task_type", "main_metric", "main_score", "mteb_json", "items", "seconds")
"""What the outcome of a task of MTEB without documents has."""


def with_files(recipe: Recipe, store: UnitStore) -> Recipe:
    """Put the checkpoint's files that a recipe names into a store, and return the recipe that finds them there."""
    if recipe["kind"] != "checkpoint":
        return recipe
    folder = Path(recipe["folder"])
    checkpoint = read_checkpoint(folder)
    scope = f"checkpoints/{checkpoint.fingerprint}-{checkpoint.adapter_hash}"
    there = store.keys(scope)
    files = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for name in files:
        if name not in there:
            store.write(scope, name, read_bytes(folder / name))
    return {name: value for name, value in recipe.items() if name != "folder"} | {"files": files, "scope": scope}


def _fetched(recipe: Recipe, store: UnitStore) -> Path:
    """Return the folder of a checkpoint on this machine, from the store where it is not here yet."""
    scope: str = recipe["scope"]
    folder = cache_dir("checkpoints") / scope.rpartition("/")[2]
    if not folder.exists():
        with atomic_dir(folder) as temporary:
            for name in recipe["files"]:
                (temporary / name).write_bytes(store.content(scope, name))
    return folder


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the jobs of the model of a recipe, which is loaded on a device of this machine when it is needed."""

    @cache
    def model() -> Any:
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

    def encode(part: Part) -> Vectors:
        vectors: Vectors = model().encode(part["texts"], **part["options"])
        return vectors

    def rerank(part: Part) -> NDArray[np.float64]:
        """Return the scores of pairs, which are numbers of texts; then seconds and token budget."""
        reranker, texts = reranker_of(model(), **part["options"]), part["texts"]
        prepared = reranker.prepare([(texts[query], texts[document]) for query, document in part["pairs"]])
        found = reranker.shard_scores(prepared)
        return np.array([*found.scores, found.seconds, reranker.token_budget or 0])

    def truncated(part: Part) -> list[str]:
        return reranker_of(model(), **part["options"]).truncated_queries(part["queries"])

    def facts(part: Part) -> dict[str, Any]:
        """Return what a driver that does not hold the model must know of it."""
        own = model()
        described = {name: str(getattr(own, name)) for name in ("base_identity", "prompt_name") if hasattr(own, name)}
        if hasattr(own, "dtype"):
            described["dtype"] = str(own.dtype).removeprefix("torch.")
        place, budget = describe_device(device_of(own)), used_budget(own, **part["options"])
        cut = getattr(reranker_of(own), "cut_by", None)  # what only embeds is never cut
        return {**described, "place": place, "token_budget": budget, "logits": returns_logits(own), "cut_by": cut}

    def mteb(part: Part) -> dict[str, Any]:
        """Do a task of MTEB that ranks no documents."""
        (task,) = find_tasks([part["name"]])
        task.hf_subsets = part["subsets"]
        if list(task.eval_splits) != part["splits"]:
            task.metadata.eval_splits = part["splits"]
        if mteb_data_hash(task) != part["data"]:
            raise DataError(
                f"{part['name']}: this machine's mteb has another revision of its data; install the driver's"
            )
        load_from_hub(task)
        prompts = TaskPrompts(MTEBConfig.model_validate(part["prompts"]))
        outcome = evaluate_task(MTEBEncoderWrapper(model(), prompts=prompts, **part["adapted"]), task)
        found: dict[str, Any] = json.loads(json.dumps({name: getattr(outcome, name) for name in _FOUND}))
        return found

    return {job.__name__: job for job in (encode, rerank, truncated, facts, mteb)}


def mteb_part(task: AbsTask, prompts: MTEBConfig, adapted: dict[str, Any]) -> Part:
    """Return the part by which a worker does a task of MTEB; ``adapted`` are arguments of the adapter."""
    return {
        "name": task.metadata.name,
        "splits": list(task.eval_splits),
        "subsets": sorted(task.hf_subsets),
        "data": mteb_data_hash(task),
        "prompts": prompts.model_dump(mode="json"),
        "adapted": adapted,
    }


def mteb_outcome(found: dict[str, Any]) -> Outcome:
    """Return the outcome of what a worker found."""
    return Outcome(run={}, qrels={}, queries={}, scores=Scores({}, {}, []), **found)
