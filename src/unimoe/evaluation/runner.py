"""Runs evaluations, each once, and writes their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.core.console import Steps, stderr
from unimoe.evaluation.embedding_eval import evaluate_embedding_collection, evaluate_task
from unimoe.evaluation.engines import Engine, LocalEngine
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.main_scores import ranks_documents
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.reranking.rerankers import device_of, reranker_of, used_budget
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.evaluation.reranking_eval import rerank_dataset
from unimoe.evaluation.retrieval_eval import (
    Searches,
    bm25_engine,
    evaluate_retrieval,
    retrieval_evaluation,
    retrieval_metrics,
    retrieval_notes,
)
from unimoe.evaluation.spec import Evaluation, Outcome, collection_evaluation, mteb_evaluation
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.datasets import LoadedDataset
from unimoe.evaluation.worker_jobs import mteb_outcome, mteb_part
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance
from unimoe.models.loader import weights_hash
from unimoe.results import EvalResult, Task
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.first_stage import cut_run
from unimoe.retrieval.fusion import reciprocal_rank_fusion

if TYPE_CHECKING:
    from mteb import AbsTask


class Evaluator:
    """Runs evaluations whose results an experiment's folder lacks; ``given`` are command-line overrides."""

    def __init__(self, output_dir: Path, given: Sequence[str] = (), engine: Engine | None = None) -> None:
        self.store = ResultStore(output_dir, given)
        self.engine = engine or LocalEngine()

    def evaluations(
        self, system: System, data: LoadedDataset | Searches, tasks: Sequence[Task] | None = None
    ) -> Iterator[Evaluation]:
        """Yield the evaluations of a system on a dataset: of every task, or of those that are wanted.

        A first stage that gives no order has none.
        """
        if isinstance(data, Searches) or system.load is not None or data.first_stage.ordered:
            for task in system.tasks if tasks is None else tasks:
                yield self.on_collection(system, task, data)

    def on_collection(self, system: System, task: Task, data: LoadedDataset | Searches) -> Evaluation:
        """Return the evaluation of a system's task on a collection."""
        if isinstance(data, Searches):
            evaluation = retrieval_evaluation(system, data)
            return replace(evaluation, run=partial(self._search, evaluation, system, data))
        evaluation = collection_evaluation(system, task, data)
        if system.load is None:
            return replace(evaluation, size=0, run=lambda _: _first_stage_outcome(data, task))
        if task == "embedding":
            size = len(data.pooled.corpus) + len(data.pooled.queries)
            return replace(evaluation, size=size, run=partial(self._run, self._embed, evaluation, system, data))
        pairs = sum(map(len, data.candidates.values()))
        return replace(evaluation, size=pairs, run=partial(self._run, self._rerank, evaluation, system, data))

    def on_mteb_task(self, system: System, task: Task, mteb_task: AbsTask) -> Evaluation:
        """Return the evaluation of a system on a task of MTEB, by embedding or by reranking its candidates."""
        evaluation = mteb_evaluation(system, task, mteb_task)
        return replace(evaluation, run=partial(self._run, self._on_mteb, evaluation, system, mteb_task))

    def take(self, evaluation: Evaluation, steps: Steps, metric: str | None = None) -> EvalResult:
        """Run one evaluation as a step of several; a result of its very spec that exists is kept.

        The step shows ``metric``, by default the main one.
        """
        if self.store.is_done(evaluation):
            steps.skip(evaluation.title)
            self.store.clear_unfinished(evaluation)  # of a run that was killed right after the result
            return self.store.read(evaluation)
        with self.store.alone(evaluation), steps.step(evaluation.title, evaluation.size) as step:
            with self.engine.noted(evaluation.title, evaluation.size):
                self.store.refuse_taken(evaluation)
                outcome = evaluation.run(step.advance)
                result = self.store.write(evaluation, outcome)
            shown = metric or result.main_metric
            step.outcome = f"{shown} {result.aggregate[shown]:.4f}"
        for note in outcome.notes:
            stderr.print(note, style="dim", soft_wrap=True)
        return result

    def needs_data(self, mteb_task: AbsTask) -> bool:
        """Return whether this process reads a task's data, and no worker does the task whole."""
        return not self.engine.remote or ranks_documents(mteb_task)

    def _model(self, evaluation: Evaluation, system: System) -> Any:
        identity = evaluation.fingerprint if evaluation.reusable else None
        return self.engine.model(system, evaluation.title, identity)

    def _run(
        self, score: Callable[..., Outcome], evaluation: Evaluation, system: System, data: Any, advance: Advance | None
    ) -> Outcome:
        """Score by the system's model, and add where it computed, in what batches, and what a server was paid."""
        model = self._model(evaluation, system)
        before = dict(getattr(model, "usage", {}))
        outcome = score(model, evaluation, system, data, advance)
        if evaluation.task == "embedding":
            outcome = replace(outcome, token_budget=used_budget(model, **system.experiment.evaluation.batches))
        if not outcome.usage:  # a reranked collection's has what stored shards were paid too
            paid: dict[str, float] = getattr(model, "usage", {})
            outcome = replace(outcome, usage={name: paid[name] - before.get(name, 0.0) for name in paid})
        return replace(outcome, device=describe_device(device_of(model)))

    def _rerank(
        self, model: Any, evaluation: Evaluation, system: System, data: LoadedDataset, advance: Advance | None
    ) -> Outcome:
        reranker, folder = reranker_of(model, **system.experiment.evaluation.batches), self._kept(evaluation)
        store = ShardStore(folder, evaluation.fingerprint) if folder else None
        return rerank_dataset(reranker, data, store=store, advance=advance)

    def _embed(
        self, model: Any, evaluation: Evaluation, system: System, data: LoadedDataset, advance: Advance | None
    ) -> Outcome:
        """Rank a collection by the cosine of embeddings, through MTEB."""
        wrapped = MTEBEncoderWrapper(model, **_adapted(evaluation, system, advance))
        exclude_self, folder = data.dataset.exclude_self, self._kept(evaluation)
        outcome = evaluate_embedding_collection(wrapped, data.pooled, exclude_self=exclude_self, folder=folder)
        main_score = outcome.main_score if evaluation.task_type else None
        return replace(outcome, main_metric=data.dataset.main_metric, main_score=main_score)

    def _on_mteb(
        self, model: Any, evaluation: Evaluation, system: System, mteb_task: AbsTask, advance: Advance | None
    ) -> Outcome:
        settings, adapted = system.experiment.evaluation, _adapted(evaluation, system, advance)
        if not self.needs_data(mteb_task):
            part = mteb_part(mteb_task, settings.mteb, {**_identified(evaluation, system), **settings.batches})
            (found,) = model.workers.compute("mteb", [part])
            return mteb_outcome(found)
        if evaluation.task == "embedding":
            return evaluate_task(MTEBEncoderWrapper(model, **adapted), mteb_task, self._kept(evaluation))
        outcome = evaluate_task(MTEBCrossEncoderWrapper(model, **adapted), mteb_task, self._kept(evaluation))
        budget = reranker_of(model, **settings.batches).token_budget
        return replace(outcome, token_budget=budget, queries_without_candidates=[])

    def _search(self, evaluation: Evaluation, system: System, data: Searches, advance: Advance | None) -> Outcome:
        """Search by words, by vectors or by both, and score what is found."""
        experiment, test, dataset = system.dense, data.chosen.test, data.dataset
        config, start = experiment.retrieval, time.perf_counter()
        deep = max(config.depth, config.fuse_depth or 0)  # both sides of a fusion are searched to
        embedded = self._embedded(evaluation, system, data, deep, advance) if system.load else None
        run = embedded.run if embedded else {}
        if embedded is None or system.fused:
            run = bm25_run(
                test,
                deep,
                experiment.evaluation.bm25,
                engine=bm25_engine(experiment),
                exclude_self=dataset.exclude_self,
                advance=None if system.fused else advance,
                cached=True,
            )
        if embedded is not None and system.fused:
            start = time.perf_counter()
            sides = [cut_run(side, config.fuse_depth or deep) for side in (run, embedded.run)]
            run = reciprocal_rank_fusion(sides, depth=config.depth, k=config.fuse_k)
        outcome = Outcome.of_run(test, cut_run(run, config.depth), dataset.main_metric, retrieval_metrics(config))
        outcome = replace(outcome, items=0, seconds=time.perf_counter() - start)
        if embedded is None:
            return outcome
        outcome = replace(outcome, device=embedded.device, token_budget=experiment.evaluation.token_budget)
        if system.fused:
            return outcome
        notes = retrieval_notes(test, config.depth)
        return replace(outcome, items=embedded.items, seconds=embedded.seconds, notes=notes)

    def _embedded(
        self, evaluation: Evaluation, system: System, data: Searches, depth: int, advance: Advance | None
    ) -> Outcome:
        """Embed and search once for an encoder and its fusion, and not at all if both results exist."""
        if data.embedded is None or data.embedded[0].load is not system.load:
            experiment, model = system.dense, self._model(evaluation, system)
            outcome = evaluate_retrieval(
                model,
                data.chosen.test,
                experiment.retrieval.model_copy(update={"depth": depth}),
                store_dir=Path(experiment.output_dir) / "vectors",
                weights=weights_hash(system.checkpoint, experiment.evaluation) if system.checkpoint else None,
                exclude_self=data.dataset.exclude_self,
                advance=advance,
                **experiment.evaluation.batches,
            )
            data.embedded = system, replace(outcome, device=describe_device(device_of(model)))
        return data.embedded[1]

    def _kept(self, evaluation: Evaluation) -> Path | None:
        """Return the folder of what a killed evaluation finds again; None where it may be another system's.

        Shards that workers score are in the cluster's store.
        """
        shards = evaluation.task == "reranking" and self.engine.remote
        return self.store.unfinished(evaluation) if evaluation.reusable and not shards else None


def _identified(evaluation: Evaluation, system: System) -> dict[str, Any]:
    """Return the name and identity of an adapter to MTEB, as JSON values."""
    return {"name": system.name, "identity": evaluation.hashes | {"dtype": str(system.dtype)}}


def _adapted(evaluation: Evaluation, system: System, advance: Advance | None) -> dict[str, Any]:
    """Return the arguments of an adapter to MTEB besides the model."""
    settings = system.experiment.evaluation
    own = _identified(evaluation, system)
    return {**own, "prompts": TaskPrompts(settings.mteb), "advance": advance, **settings.batches}


def _first_stage_outcome(data: LoadedDataset, task: Task) -> Outcome:
    """Score the first stage alone: as candidates to rerank, or as retrieval from the whole corpus."""
    if task != "reranking":
        return Outcome.of_run(data.collection, data.first_stage.run, data.dataset.main_metric)
    outcome = Outcome.of_run(data.collection, data.candidates, data.dataset.main_metric)
    return replace(outcome, first_stage=outcome.scores, queries_without_candidates=data.queries_without_candidates)
