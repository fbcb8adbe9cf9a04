"""Describes evaluations, runs each once, and writes their results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from unimoe.checks import lines
from unimoe.checks.texts import concerned
from unimoe.config import DenseExperiment
from unimoe.core.console import Steps, stderr
from unimoe.core.io import hash_json
from unimoe.data.collection import Collection
from unimoe.data.published import canonical_name
from unimoe.evaluation.embedding_eval import evaluate_embedding_collection, evaluate_task, mteb_card, mteb_data_hash
from unimoe.evaluation.engines import Engine, mteb_by_worker
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper, spread_over
from unimoe.evaluation.mteb.main_scores import main_metric, ranks_documents
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.reranking.rerankers import device_of, reranker_of, used_budget
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.evaluation.reranking_eval import rerank_dataset
from unimoe.evaluation.retrieval_eval import Found, Searches, retrieval_metrics, retrieval_notes
from unimoe.evaluation.spec import Evaluation, Outcome, model_hashes
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.systems.system import BM25, ZERO_SHOT_ARM, System
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance
from unimoe.models.loader import weights_hash
from unimoe.results import EvalResult, Identity, Task
from unimoe.retrieval.bm25 import bm25_run, engine_of, first_stage_name
from unimoe.retrieval.dense import embed_collection
from unimoe.retrieval.first_stage import cut_run, reciprocal_rank_fusion
from unimoe.retrieval.model_search import ModelSearch
from unimoe.retrieval.sizes import FULL, search_size

if TYPE_CHECKING:
    from mteb import AbsTask

_OF_TRAINING = {"training", "lora", "arms", "seeds", "gates"}
"""Sections that say nothing about a model that no arm trains."""


class Evaluator:
    """Runs evaluations whose results are missing; ``given`` are command-line overrides, which results record."""

    def __init__(self, given: Sequence[str] = (), engine: Engine | None = None) -> None:
        self._given, self.engine = given, engine or Engine()

    def store(self, evaluation: Evaluation) -> ResultStore:
        """Return the store of an evaluation's result."""
        return ResultStore(_system(evaluation).results_dir, self._given)

    def take(self, evaluation: Evaluation, steps: Steps, metric: str | None = None) -> EvalResult:
        """Run one evaluation as a step of several; a result of its very spec that exists is kept.

        The step shows ``metric``, by default the main one.
        """
        store = self.store(evaluation)
        if store.is_done(evaluation):
            steps.skip(evaluation.title)
            store.clear_unfinished(evaluation)  # of a run that was killed right after the result
            return store.read(evaluation)
        with store.alone(evaluation), steps.step(evaluation.title, evaluation.size) as step:
            with self.engine.noted(evaluation.title, evaluation.size):
                store.refuse_taken(evaluation)
                outcome = self._outcome(evaluation, step.advance)
                result = store.write(evaluation, outcome)
            shown = metric or result.main_metric
            step.outcome = f"{shown} {result.aggregate[shown]:.4f}"
        for note in (*outcome.notes, *lines(outcome.scores.checks, "caveat")):
            stderr.print(note, style="dim", soft_wrap=True)
        return result

    def evaluated(self, evaluation: Evaluation, advance: Advance) -> EvalResult:
        """Return the result of an evaluation, which runs unless it exists."""
        return self.store(evaluation).evaluated(evaluation, lambda: self._outcome(evaluation, advance))

    def needs_data(self, mteb_task: AbsTask) -> bool:
        """Return whether this process reads a task's data, and no worker does the task whole."""
        return not self.engine.remote or ranks_documents(mteb_task)

    def _outcome(self, evaluation: Evaluation, advance: Advance) -> Outcome:
        system, data = _system(evaluation), evaluation.data
        if isinstance(data, Searches):
            return self._search(evaluation, data, advance)
        if isinstance(data, LoadedDataset) and system.load is None:
            return _first_stage_outcome(data, evaluation.task)
        model, batches = self._model(evaluation), system.experiment.evaluation.batches
        before = dict(getattr(model, "usage", {}))
        score = self._on_collection if isinstance(data, LoadedDataset) else self._on_mteb
        outcome = score(model, evaluation, advance)
        if evaluation.task == "embedding":
            outcome = replace(outcome, token_budget=used_budget(model, **batches))
        if not outcome.usage:  # a reranked collection's has what stored shards were paid too
            paid: dict[str, float] = getattr(model, "usage", {})
            outcome = replace(outcome, usage={name: paid[name] - before.get(name, 0.0) for name in paid})
        return replace(outcome, device=describe_device(device_of(model)))

    def _model(self, evaluation: Evaluation) -> Any:
        identity = evaluation.fingerprint if evaluation.reusable else None
        return self.engine.model(_system(evaluation), evaluation.title, identity)

    def _on_collection(self, model: Any, evaluation: Evaluation, advance: Advance) -> Outcome:
        """Rerank a collection's candidates, or rank its documents by the cosine of embeddings, through MTEB."""
        data: LoadedDataset = evaluation.data
        settings, folder = _system(evaluation).experiment.evaluation, self._kept(evaluation)
        if evaluation.task == "reranking":
            store = ShardStore(folder, evaluation.fingerprint) if folder else None
            return rerank_dataset(reranker_of(model, **settings.batches), data, store=store, advance=advance)
        wrapped = MTEBEncoderWrapper(model, **_adapted(evaluation), prompts=TaskPrompts(settings.mteb), advance=advance)
        wrapped.kept = evaluation.reusable and _system(evaluation).checkpoint is None
        outcome = evaluate_embedding_collection(wrapped, data.pooled, passages=data.read.corpus, folder=folder)
        main_score = outcome.main_score if evaluation.task_type else None
        return replace(outcome, main_metric=data.dataset.main_metric, main_score=main_score)

    def _on_mteb(self, model: Any, evaluation: Evaluation, advance: Advance) -> Outcome:
        mteb_task: AbsTask = evaluation.data
        settings = _system(evaluation).experiment.evaluation
        if not self.needs_data(mteb_task):
            return mteb_by_worker(model, mteb_task, settings.mteb, _adapted(evaluation))
        adapter = MTEBEncoderWrapper if evaluation.task == "embedding" else MTEBCrossEncoderWrapper
        adapted = adapter(model, **_adapted(evaluation), prompts=TaskPrompts(settings.mteb), advance=advance)
        outcome = evaluate_task(adapted, mteb_task, self._kept(evaluation))
        if evaluation.task == "embedding":
            return outcome
        budget = reranker_of(model, **settings.batches).token_budget
        return replace(outcome, token_budget=budget, queries_without_candidates=[])

    def _search(self, evaluation: Evaluation, data: Searches, advance: Advance) -> Outcome:
        """Search by words, by a model or by both, and score what is found."""
        system, found = _system(evaluation), dict[str, Any](items=0)
        config, settings = system.dense.retrieval, system.dense.evaluation
        deep = max(config.depth, config.fuse_depth or 0)  # both sides of a fusion are searched to
        if system.load:
            run, of_model = self._found(evaluation, data, deep, advance)
            found |= {"device": of_model["device"]} if system.fused else of_model
            found["token_budget"] = settings.token_budget
        start = time.perf_counter()
        if system.load is None or system.fused:
            how: dict[str, Any] = {"engine": engine_of(settings), "advance": None if system.fused else advance}
            words = bm25_run(data.test, deep, settings.bm25, cached=True, **how)
            if system.fused:
                start = time.perf_counter()  # both rankings have times of their own
                sides = [cut_run(side, config.fuse_depth or deep) for side in (words, run)]
                run = reciprocal_rank_fusion(sides, depth=config.depth, k=config.fuse_k)
            else:
                run = words
            found["seconds"] = time.perf_counter() - start
        elif system.size == FULL:
            found["notes"] = retrieval_notes(data.test, config.depth)
        metric, metrics = data.dataset.main_metric, retrieval_metrics(config)
        return Outcome.of_run(data.test, cut_run(run, config.depth), metric, metrics, **found)

    def _found(self, evaluation: Evaluation, data: Searches, depth: int, advance: Advance) -> Found:
        """Embed once for an encoder, its fusion and its sizes, and not at all if all results exist; then search."""
        system, start = _system(evaluation), time.perf_counter()
        config, batches, whole = system.dense.retrieval, system.dense.evaluation.batches, system.size == FULL
        if data.loader is not system.load:
            model, data.found = self._model(evaluation), None
            place = describe_device(device_of(model))
            if isinstance(model, ModelSearch):  # which keeps the ranking
                run = model.run(data.test, depth, advance=advance)
                data.found = run, {"items": 0, "seconds": time.perf_counter() - start, "device": place}
            else:
                weights = weights_hash(system.checkpoint, system.dense.evaluation) if system.checkpoint else None
                spread = spread_over(model, kind="document", max_length=config.document_length, **batches)
                how: dict[str, Any] = {"weights": weights, "advance": advance, "spread": spread, **batches}
                data.embedded = embed_collection(model, data.read, config, place=place, **how)
            data.loader = system.load
        if data.found and whole:
            return data.found
        assert data.embedded is not None  # noqa: S101 - for the type checker
        searched, start = config.model_copy(update={"depth": depth}) if whole else config, time.perf_counter()
        run, index = search_size(system.size, data.embedded, searched)
        items, before = (data.embedded.items, data.embedded.seconds) if whole else (0, 0.0)
        facts = {"items": items, "seconds": time.perf_counter() - start + before, "device": data.embedded.place}
        found: Found = run, facts | {"vector_index": index}
        data.found = found if whole else data.found
        return found

    def _kept(self, evaluation: Evaluation) -> Path | None:
        """Return the folder of what a killed evaluation finds again; None where it may be another system's.

        Shards that workers score are in the cluster's store.
        """
        shards = evaluation.task == "reranking" and self.engine.remote
        return self.store(evaluation).unfinished(evaluation) if evaluation.reusable and not shards else None


def evaluations(
    system: System, data: LoadedDataset | Searches, tasks: Sequence[Task] | None = None
) -> Iterator[Evaluation]:
    """Yield the evaluations of a system on a dataset: of every task, or of those that are wanted.

    A first stage that gives no order has none.
    """
    if isinstance(data, Searches) or system.load is not None or data.first_stage.ordered:
        stage = data.dataset.settings.first_stage
        alone = BM25 if stage == "bm25s" else stage
        on_stage = replace(system, name=f"{system.name}@{stage}" if system.load else alone)
        for task in system.tasks if tasks is None else tasks:
            named = data.dataset.named and task != "embedding"  # which needs no candidates
            yield describe(on_stage if named else system, task, data)


def describe(system: System, task: Task, data: LoadedDataset | Searches | AbsTask) -> Evaluation:
    """Return the evaluation of a system's task: on a collection, by a search of one, or on a task of MTEB."""
    if isinstance(data, LoadedDataset):
        facts = _of_collection(system, task, data)
    else:
        facts = _of_search(system, data) if isinstance(data, Searches) else _of_mteb_task(system, task, data)
    checkpoint, experiment, base = system.checkpoint, system.experiment, system.base_identity
    trained = weights_hash(checkpoint, experiment.evaluation) if checkpoint else None
    of_no_arm = system.load is not None and checkpoint is None and system.name != ZERO_SHOT_ARM
    config = experiment.model_dump(exclude=_OF_TRAINING if of_no_arm else None)
    if checkpoint and isinstance(experiment, DenseExperiment):  # which says nothing about the arm
        config["checkpoint"] = checkpoint.config
    known = {"prompt": system.prompt, **facts.pop("identity")}
    return Evaluation(
        system=system.name,
        seed=system.seed,
        task=task,
        identity=Identity(experiment=experiment.name, base_model=base, checkpoint=system.which, **known),
        hashes=facts.pop("hashes") | model_hashes(base, known["prompt"], trained),
        config=config,
        dtype=system.dtype,
        caveats=[*experiment.caveats, *facts.pop("caveats", [])],
        training=checkpoint.training if checkpoint else None,
        reusable=system.reusable,
        of=system,
        data=data,
        **facts,
    )


def _of_collection(system: System, task: Task, data: LoadedDataset) -> dict[str, Any]:
    """Return what an ``Evaluation`` says of the data, and of a prompt that depends on it."""
    dataset, card, hashes = data.dataset, None, {"collection": data.collection.content_hash}
    identity: dict[str, Any] = {"split": dataset.split, "max_queries": dataset.max_queries}
    if task == "embedding":
        name = data.collection.name  # which the task is named by, whatever folder it is read from
        card, documents = mteb_card(dataset.collection), len(data.pooled.corpus)
        identity["prompt"] = _prompt_on_task(system, card_of(name))
        identity["pool"] = documents if documents < len(data.whole.corpus) else None
        identity["passages"] = dataset.passages and str(dataset.passages)
        hashes |= {"pool": data.pooled.corpus_hash} | _rule_hashes(data.whole)
        size = len(data.read.corpus) + len(data.read.queries)
    else:
        identity["first_stage"] = data.first_stage.source
        hashes["candidates"] = data.candidates_hash
        if task == "reranking":
            identity["depth"] = dataset.settings.depth  # the candidates' hash holds the rule about equal ids
            identity["passages"] = dataset.passages and str(dataset.passages)
        else:
            hashes |= _rule_hashes(data.whole)
        size = sum(map(len, data.to_read[1].values()))
    return {
        "dataset": card.name if card else dataset.name,
        "task_type": str(card.type) if card else None,
        "main_metric": dataset.main_metric,
        "identity": identity,
        "hashes": hashes,
        "size": size if system.load else 0,
        "caveats": [*data.caveats(task), *_used_before(system, dataset)],
    }


def _of_search(system: System, data: Searches) -> dict[str, Any]:
    config, dataset, test, encodes = system.dense.retrieval, data.dataset, data.test, system.load is not None
    settings: list[object] = [config.depth, sorted(set(config.cutoffs))]
    if encodes:
        settings.append(config.storage)
    if system.fused:
        settings += [config.fuse_depth, config.fuse_k]
    identity: dict[str, Any] = {"split": test.split, "max_queries": dataset.max_queries, "pool": data.pool}
    identity["passages"] = str(dataset.passages) if encodes and dataset.passages else None
    if system.size != FULL:
        identity["vectors"] = system.size.name
        if system.size.precision == "binary":
            identity["vectors"] += f"(rescore={config.rescore},multiplier={config.rescore_multiplier})"
        settings.append(identity["vectors"])
    by_words, bm25 = not encodes or system.fused, system.dense.evaluation.bm25
    if by_words:
        identity["first_stage"] = first_stage_name(bm25.in_language(test.language), engine_of(system.dense.evaluation))
    checks = concerned(test.checks, by_words=by_words and bm25.language is None)
    return {
        "dataset": dataset.name,
        "main_metric": dataset.main_metric,
        "identity": identity,
        "hashes": {"collection": test.content_hash, "settings": hash_json(settings)} | _rule_hashes(test),
        "size": len(test.queries) + len(data.read.corpus) * encodes if system.size == FULL else 0,
        "caveats": [*lines(checks, "caveat"), *data.caveats, *_used_before(system, dataset)],
    }


def _rule_hashes(collection: Collection) -> dict[str, str]:
    """Return what hashes say of documents with their query's id: nothing where these are kept."""
    return {"identical_ids": "left out"} if collection.excludes_self else {}


def _used_before(system: System, dataset: Dataset) -> list[str]:
    """Return the caveats of a checkpoint on a split whose queries trained or chose it, as its manifest says."""
    recipe = system.checkpoint.config.get("training") if system.checkpoint else None  # a bi-encoder's has none
    if not recipe or canonical_name(recipe["collection"]) != canonical_name(dataset.collection):
        return []
    used = {"trained": recipe["split"]} | ({"chose": recipe["dev"]["split"]} if system.which == "best" else {})
    return [f"these queries {how} the checkpoint" for how, split in used.items() if split == dataset.split]


def _of_mteb_task(system: System, task: Task, mteb_task: AbsTask) -> dict[str, Any]:
    card = mteb_task.metadata
    identity = {"split": "+".join(mteb_task.eval_splits), "prompt": _prompt_on_task(system, card, task)}
    if task == "reranking":
        identity["first_stage"] = "mteb"  # candidates are part of the task
    own = {"dataset": card.name, "task_type": str(card.type), "main_metric": main_metric(mteb_task)}
    return {**own, "identity": identity, "hashes": {"collection": mteb_data_hash(mteb_task)}}


def result_dataset(task: Task, dataset: Dataset) -> str:
    """Return the name of a dataset in results: the collection's, but in embedding MTEB's where it has one."""
    card = mteb_card(dataset.collection) if task == "embedding" else None
    return card.name if card else dataset.name


def card_of(collection: str) -> Any:
    """Return MTEB's card of a collection's task, or what prompts read of one where there is none."""
    return mteb_card(collection) or SimpleNamespace(name=collection, type="Retrieval", prompt="")


def _prompt_on_task(system: System, card: Any, task: Task = "embedding") -> str | None:
    """Name and hash of a system's prompt, and of what the task is read with beside it: prefixes, or an instruction."""
    if task == "reranking" and not system.instructed:
        return system.prompt
    prompts = TaskPrompts(system.experiment.evaluation.mteb)
    own = [prompts.instruction(card)] if task == "reranking" else prompts.of_task(card, system.own_prompts)
    if system.prompt is None or own == [None] * len(own):
        return system.prompt
    return f"{system.prompt.rpartition('@')[0]}@{hash_json([system.prompt, own])}"


def _adapted(evaluation: Evaluation) -> dict[str, Any]:
    """Return arguments of an adapter to MTEB, as JSON values."""
    identity = evaluation.hashes | {"dtype": str(evaluation.dtype)}
    return {"name": evaluation.system, "identity": identity, **_system(evaluation).experiment.evaluation.batches}


def _system(evaluation: Evaluation) -> System:
    if evaluation.of is None:
        raise ValueError(f"{evaluation.title}: its outcome comes from elsewhere")
    return evaluation.of


def _first_stage_outcome(data: LoadedDataset, task: Task) -> Outcome:
    """Score the first stage alone: as candidates to rerank, or as retrieval from the whole corpus."""
    if task != "reranking":
        return Outcome.of_run(data.collection, data.first_stage.run, data.dataset.main_metric)
    outcome = Outcome.of_run(data.collection, data.candidates, data.dataset.main_metric)
    return replace(outcome, first_stage=outcome.scores, queries_without_candidates=data.queries_without_candidates)
