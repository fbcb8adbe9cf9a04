"""Where evaluations compute: in this process, or on the workers of a cluster, and what these do with a model.

A worker gets a recipe (``systems.system.model_recipe``), which says how it makes the model, and parts of work: both are
JSON values.
"""

from __future__ import annotations

import importlib
import json
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.cluster.cluster import Cluster, ClusterWorkers
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Recipe
from unimoe.config import Batches, DenseExperiment, MTEBConfig
from unimoe.config.base import Dtype
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import Strict, atomic_dir, cache_dir, hash_json, read_bytes
from unimoe.core.limits import name_problem
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import find_tasks, random_state_kept
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.main_scores import ranks_documents
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.retriever import encoder_retriever
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.system import System, checkpoint_loader, recipes_experiment
from unimoe.metrics import Scores
from unimoe.models.checkpoint import Checkpoint, read_checkpoint
from unimoe.models.device import choose_dtype, describe_device
from unimoe.models.embedder import Advance, Embedder, Spread, Vectors
from unimoe.models.lists import COUNTS
from unimoe.models.loader import ModelLoader
from unimoe.models.model import Model
from unimoe.models.named import ModelSettings, loaders_model, named_model
from unimoe.models.own_prompts import OwnPrompts
from unimoe.models.reranker import (
    Cut,
    Reranker,
    Shards,
    ShardScores,
    ShardStore,
    named_pairs,
    pair_texts,
    shard_characters,
)
from unimoe.results import safe_name

if TYPE_CHECKING:
    from mteb import AbsTask


class Engine:
    """Where models compute: in this process without a ``cluster``.

    It is ``remote`` where workers elsewhere hold the models and keep finished units: evaluations run side by side.
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster, self.remote = cluster, cluster is not None
        self._run = uuid.uuid4().hex  # which names what no later run may find

    def model(self, system: System, what: str, identity: str | None) -> Model:
        """Return the model of a system for some work, on a cluster a stand-in for it; ``what`` names its units.

        ``identity`` is the hash of all that units depend on besides what they say themselves and the device; None where
        nothing tells the model from every other, so that no later run may find them.
        """
        own = system.model
        assert own is not None  # noqa: S101 - for the type checker
        if self.cluster is None or system.recipe is None:  # a server is asked, and a matcher searches, from here
            return own
        recipe = _with_files(system.recipe, self.cluster.store)
        workers = ClusterWorkers(self.cluster, what, f"units/{safe_name(what)}", recipe, identity or self._run)
        facts = workers.ask("facts", {"options": dict(system.experiment.evaluation.batches)})
        embed = own.embed and partial(ClusterEmbedder, workers, facts, own.own_prompts)

        def rerank(instruction: str | None = None, **batches: Unpack[Batches]) -> Reranker:
            return ClusterReranker(workers, facts, {"instruction": instruction, **batches})

        return replace(own, embed=embed, rerank=own.rerank and rerank)

    def reads(self, task: AbsTask) -> bool:
        """Return whether this process reads the data of a task of MTEB, and no worker does the task whole."""
        return not self.remote or ranks_documents(task)

    def mteb_by_worker(
        self, embedder: Embedder, task: AbsTask, prompts: MTEBConfig, data: str, adapted: dict[str, Any]
    ) -> Outcome:
        """Let a worker do a task of MTEB that ranks no documents.

        ``data`` is the hash of its data, ``adapted`` are arguments of the adapter.
        """
        assert isinstance(embedder, ClusterEmbedder)  # noqa: S101 - as ``model`` returns it
        part = {
            "name": task.metadata.name,
            "splits": list(task.eval_splits),
            "subsets": sorted(task.hf_subsets),
            "data": data,
            "prompts": prompts.model_dump(mode="json"),
            "adapted": adapted,
        }
        (found,) = embedder.workers.compute("mteb", [part], lambda reply, _: _TaskReply.model_validate(reply))
        return Outcome(run={}, qrels={}, queries={}, scores=Scores({}, {}, []), **dict(found))

    def noted(self, what: str, size: int | None) -> AbstractContextManager[None]:
        """Keep on the board in a cluster's store, for ``unimoe status``, that work on so many items runs."""
        return self.cluster.board.noted(what, size) if self.cluster else nullcontext()

    def dtype(self, device: torch.device, setting: Dtype, *, trains: bool = False) -> torch.dtype:
        """Return the dtype of the computation; ``auto`` on a cluster is what its first worker finds faster."""
        if self.cluster is None:
            return choose_dtype(device, setting, trains=trains)
        dtype: torch.dtype = getattr(torch, self.cluster.facts()["dtype"] if setting == "auto" else setting)
        return dtype

    def refuse_server(self) -> None:
        """Refuse to ask a server from a cluster."""
        if self.remote:
            raise UsageError(
                "a model behind a server is asked by one process; leave --engine out, and raise "
                "served.requests_in_flight for more requests at a time"
            )

    def run(self, jobs: Iterable[Callable[[], None]], at_once: int) -> None:
        """Run jobs one after the other, or on a cluster some at a time in threads, as they wait for workers.

        There an error of one is raised after the others have ended.
        """
        if self.cluster is None:
            for job in jobs:
                job()
            return
        with random_state_kept():  # now: while one thread imports transformers, another finds half of it
            importlib.import_module("unimoe.evaluation.mteb.tasks")
            _ = importlib.import_module("transformers").PreTrainedTokenizerBase
        begun, room, threads = list[Future[None]](), Semaphore(at_once - 1), ThreadPoolExecutor(at_once)
        try:
            for job in jobs:  # each loads its data when it is taken, so no more of them are than run
                begun.append(threads.submit(job))
                begun[-1].add_done_callback(lambda _: room.release())
                room.acquire()
            for one in begun:
                one.exception()
            for one in begun:
                one.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


_FACTS = 2 + len(COUNTS)
"""Numbers after the scores of a shard: seconds, token budget, and what was counted."""


class ClusterEmbedder(Embedder):
    """A model that workers hold and embed with; the driver sees the ``facts`` that describe it."""

    device, dtype = torch.device("cpu"), torch.float32  # of what the driver does with vectors

    def __init__(self, workers: ClusterWorkers, facts: Mapping[str, Any], own_prompts: OwnPrompts) -> None:
        self.workers, self._place, self._budget = workers, facts["place"], facts["token_budget"]
        self.own_prompts = own_prompts
        self.base_identity, self.prompt_name = facts["base_identity"], facts["prompt_name"]
        self.dtype = getattr(torch, facts["dtype"])

    @property
    def place(self) -> str:
        """Where the workers compute."""
        return str(self._place)

    def budget(self, token_budget: int | None = None, batch_size: int | None = None) -> int | None:
        """Return the tokens of a worker's forward pass."""
        budget: int | None = self._budget
        return budget

    def encode(self, texts: Sequence[str], *, advance: Advance | None = None, **options: Any) -> Vectors:
        """Embed texts; see ``Embedder``. Workers report no batches."""
        vectors: Vectors = self.workers.ask("encode", {"texts": list(texts), "options": options})
        return vectors

    def spread(self, **options: Any) -> Spread:
        """Return what lets all workers embed units of texts; see ``Embedder``."""
        return lambda _, units: self.workers.compute(
            "encode",
            ({"texts": list(unit), "options": options} for unit in units),
            lambda reply, part: _numbers(reply, len(part["texts"]), 2),
        )


class ClusterReranker(Reranker):
    """A model that workers hold and score pairs with; ``options`` are those of ``Model.reranker`` there."""

    def __init__(self, workers: ClusterWorkers, facts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._workers, self.options, self.place, self.logits = workers, options, facts["place"], facts["logits"]
        self._budget, self._cut_by = facts["token_budget"], facts["cut_by"]

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass."""
        budget: int | None = self._budget
        return budget

    @property
    def cut_by(self) -> Cut:
        """How the model's reranker cuts pairs."""
        cut: Cut = self._cut_by
        return cut

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document."""
        found: list[str] = self._workers.ask("truncated", {"queries": dict(queries), "options": self.options})
        return found

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> Sequence[float]:
        """Score pairs of texts as one shard."""
        (reply,) = self._workers.compute("rerank", [self._part(prepared)], _scores)
        scores: list[float] = reply.tolist()[:-_FACTS]
        return scores

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score the shards that ``cut`` made, each as a unit of the cluster's store."""

        def parts() -> Iterator[Part]:
            for number, shard in enumerate(shards, start=1):
                label = f"shard {number} of {len(shards)} (query {shard[0][0]!r}, document {shard[0][1]!r}, and on)"
                yield {**self._part(pair_texts(collection, shard)), "items": len(shard), "label": label}

        scores: list[float] = []
        times, budgets, usage = [0.0], [self.token_budget or 0], Counter[str]()
        replies = self._workers.compute("rerank", parts(), _scores)
        for shard in shards:
            with named_pairs(collection, shard):
                reply = next(replies).tolist()
            found, (seconds, budget, *counts) = reply[:-_FACTS], reply[-_FACTS:]
            usage.update({name: count for name, count in zip(COUNTS, counts, strict=True) if count})
            if advance:
                advance(len(found))
            scores += found
            times.append(seconds)
            budgets.append(int(budget))
        seconds, budget = math.fsum(times) / self._workers.size, min(filter(None, budgets), default=None)
        return ShardScores(scores=scores, seconds=seconds, token_budget=budget, usage=dict(usage))

    def _part(self, pairs: Sequence[tuple[str, str]]) -> Part:
        """Return a part with each text of some pairs once, as a shard repeats a query or a document."""
        texts = {text: number for number, text in enumerate(dict.fromkeys(chain.from_iterable(pairs)))}
        numbers = [[texts[query], texts[document]] for query, document in pairs]
        return {"options": self.options, "texts": list(texts), "pairs": numbers}


def _scores(reply: Any, part: Part) -> NDArray[Any]:
    """Return what ``rerank`` of ``jobs_of`` returns; a ``ValueError`` where a store holds something else."""
    return _numbers(reply, len(part["pairs"]) + _FACTS, 1)


def _numbers(reply: Any, rows: int, dimensions: int) -> NDArray[Any]:
    """Return an array of finite numbers in so many rows; a ``ValueError`` where it is another."""
    found: NDArray[Any] = np.asarray(reply)
    if found.dtype.kind != "f" or found.ndim != dimensions or len(found) != rows or not np.isfinite(found).all():
        raise ValueError(f"not {rows:,} rows of finite numbers")
    return found


class _TaskReply(Strict):
    """The reply of the job ``mteb``."""

    task_type: str | None
    main_metric: str
    main_score: float | None
    mteb_json: dict[str, Any]
    items: int | None
    seconds: float


def _with_files(recipe: Recipe, store: UnitStore) -> Recipe:
    """Put the checkpoint's files that a recipe names into a store, and return the recipe that finds them there."""
    if recipe["kind"] != "checkpoint":
        return recipe
    folder = Path(recipe["folder"])
    checkpoint = read_checkpoint(folder)
    scope = f"checkpoints/{_content(checkpoint)}"
    files = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for name in set(files) - store.keys(scope):
        store.write(scope, name, read_bytes(folder / name))
    return {name: value for name, value in recipe.items() if name != "folder"} | {"files": files, "scope": scope}


def _fetched(recipe: Recipe, store: UnitStore) -> Path:
    """Return the folder of a checkpoint on this machine, from the store where it is not here yet."""
    scope: str = recipe["scope"]
    content = scope.rpartition("/")[2]
    if problem := next(
        filter(None, (name_problem(name, is_folder=True) for name in [content, *recipe["files"]])), None
    ):
        raise DataError(f"{store.shown}/{scope}: the name of a file or folder {problem}; name another --store")
    folder = cache_dir("checkpoints") / content
    if not folder.exists():
        with atomic_dir(folder) as temporary:
            for name in recipe["files"]:
                (temporary / name).write_bytes(store.content(scope, name))
            if _content(read_checkpoint(temporary)) != content:
                raise DataError(f"{store.shown}/{scope} holds another checkpoint: delete it, and run again")
    return folder


def _content(checkpoint: Checkpoint) -> str:
    return hash_json([checkpoint.fingerprint, checkpoint.adapter_hash])  # a manifest of others may hold any text


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the jobs of the model of a recipe, which is loaded on a device of this machine when it is needed."""

    @cache
    def model() -> Model:
        kind = recipe["kind"]
        if kind == "encoder":
            system = encoder_retriever(DenseExperiment.model_validate(recipe["experiment"]), "encoder", device)
            assert system.model is not None  # noqa: S101 - for the type checker
            return system.model
        experiment = recipes_experiment(recipe)
        if kind == "checkpoint":
            folder = _fetched(recipe, store)
            return loaders_model(checkpoint_loader(experiment, read_checkpoint(folder), device), folder)
        dtype: torch.dtype = getattr(torch, recipe["dtype"])
        if kind == "zero-shot":
            return loaders_model(ModelLoader(experiment, device, dtype))
        return named_model(recipe["name"], ModelSettings(experiment, device, dtype))[0]

    def encode(part: Part) -> Vectors:
        return model().embedder().encode(part["texts"], **part["options"])

    def rerank(part: Part) -> NDArray[np.float64]:
        """Return the scores of pairs, which are numbers of texts; then seconds, token budget and counts."""
        reranker, texts = model().reranker(**part["options"]), part["texts"]
        prepared = reranker.prepare([(texts[query], texts[document]) for query, document in part["pairs"]])
        found = reranker.shard_scores(prepared)
        counts = [found.usage.get(name, 0.0) for name in COUNTS]
        return np.array([*found.scores, found.seconds, reranker.token_budget or 0, *counts])

    def truncated(part: Part) -> list[str]:
        return model().reranker(**part["options"]).truncated_queries(part["queries"])

    def facts(part: Part) -> dict[str, Any]:
        """Return what a driver that does not hold the model must know of it."""
        own, known = model(), dict[str, Any]()
        if own.embed:
            embedder = own.embedder()
            known = {"base_identity": str(embedder.base_identity), "prompt_name": str(embedder.prompt_name)}
            known |= {"dtype": str(embedder.dtype).removeprefix("torch."), "place": describe_device(embedder.place)}
            known["token_budget"] = embedder.budget(**part["options"])
        if own.rerank:
            reranker = own.reranker(**part["options"])
            known |= {"place": describe_device(reranker.place), "token_budget": reranker.token_budget}
            order, size = reranker.cut_by
            # A unit of lists has as much text as one of pairs, so that a writer answers about many together.
            size = shard_characters(reranker.place) if order == "ranked" else size
            known |= {"logits": reranker.logits, "cut_by": (order, size)}
        return known

    def mteb(part: Part) -> dict[str, Any]:
        """Do a task of MTEB that ranks no documents."""
        from unimoe.evaluation.tasks.mteb import evaluate_task, load_from_hub, mteb_data_hash

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
        outcome = evaluate_task(MTEBEncoderWrapper(model().embedder(), prompts=prompts, **part["adapted"]), task)
        found: dict[str, Any] = json.loads(
            json.dumps({name: getattr(outcome, name) for name in _TaskReply.model_fields})
        )
        return found

    return {job.__name__: job for job in (encode, rerank, truncated, facts, mteb)}
