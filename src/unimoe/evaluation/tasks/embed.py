"""Embedding: a collection's documents ranked by the cosine of embeddings, through MTEB, as its task where it is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from unimoe.core.errors import DataError
from unimoe.core.trec import plain_run
from unimoe.data.collection import Collection, Document
from unimoe.data.mteb_names import find_tasks, mteb_name, random_state_kept
from unimoe.evaluation.datasets import Dataset, LoadedDataset
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts, prompt_on_task
from unimoe.evaluation.spec import Evaluation, Outcome, Work, described, rule_hashes, seen_before
from unimoe.evaluation.system import System
from unimoe.evaluation.tasks.mteb import adapted, embedded, evaluate_task
from unimoe.metrics import DEFAULT_METRICS
from unimoe.models.own_prompts import BARE
from unimoe.results import Task
from unimoe.results.runs.scoring import checked_scores

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata


def describe(system: System, task: Task, data: LoadedDataset) -> Evaluation:
    """Return the ranking of a dataset's pool by embeddings."""
    dataset, documents = data.dataset, len(data.pooled.corpus)
    prompt, read = (system.model.prompt, system.model.own_prompts) if system.model else (None, BARE)
    prompts = TaskPrompts(system.experiment.evaluation.mteb)
    # The task is named by the collection, whatever folder it is read from.
    own = prompts.of_task(card_of(data.collection.name), read)
    identity: dict[str, Any] = {
        "split": dataset.split,
        "max_queries": dataset.max_queries,
        "prompt": prompt_on_task(prompt, own),
        "pool": documents if documents < len(data.whole.corpus) else None,
        "passages": dataset.passages and str(dataset.passages),
    }
    hashes = {"collection": data.collection.content_hash, "pool": data.pooled.corpus_hash} | rule_hashes(data.whole)
    card = mteb_card(dataset.collection)
    return described(
        system,
        task,
        partial(_run, data),
        identity=identity,
        hashes=hashes,
        dataset=result_dataset(task, dataset),
        task_type=str(card.type) if card else None,
        main_metric=dataset.main_metric,
        size=len(data.read.corpus) + len(data.read.queries),
        caveats=[*data.caveats(task), *seen_before(system, data.collection)],
    )


def _run(data: LoadedDataset, evaluation: Evaluation, work: Work) -> Outcome:
    system, prompts = evaluation.system, TaskPrompts(evaluation.system.experiment.evaluation.mteb)
    embedder = work.loaded.embedder()
    wrapped = MTEBEncoderWrapper(embedder, **adapted(evaluation), prompts=prompts, advance=work.advance)
    wrapped.kept = evaluation.reusable and system.checkpoint is None
    outcome = evaluate_embedding_collection(wrapped, data.pooled, passages=data.read.corpus, folder=work.folder)
    main_score = outcome.main_score if evaluation.about.task_type else None
    outcome = replace(outcome, main_metric=data.dataset.main_metric, main_score=main_score)
    return embedded(outcome, evaluation, embedder)


def evaluate_embedding_collection(
    model: MTEBEncoderWrapper,
    collection: Collection,
    *,
    passages: Mapping[str, Document] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """Rank a collection by the cosine of embeddings, through ``mteb.evaluate``.

    A BEIR set is evaluated as MTEB's task of it, with that task's name and instruction. Judged queries without relevant
    documents count 0, unjudged ones are only listed. ``passages`` of the documents are embedded in their place. Vectors
    are kept in ``folder`` for a killed run, None for a temporary one.
    """
    if not collection.corpus or not collection.qrels:
        lacking = "judgments" if collection.corpus else "documents"
        raise DataError(f"{collection.name}: split {collection.split!r} has no {lacking}; nothing can be ranked")
    with random_state_kept():
        from unimoe.evaluation.mteb.tasks import CollectionTask

        task = CollectionTask(collection, published=mteb_card(collection.name))
        task.passages = passages
    outcome = evaluate_task(model, task, folder)
    # By the collection's own judgments: MTEB's copy has no negative grades.
    level = collection.relevance_level
    measures = [outcome.main_metric, *DEFAULT_METRICS]
    scores = checked_scores(collection.qrels, plain_run(outcome.run), measures, level, collection.name)
    scores = replace(scores, unjudged_queries=collection.unjudged_queries)
    return replace(outcome, scores=scores, qrels=collection.qrels, queries=collection.queries, relevance_level=level)


def mteb_card(collection: str) -> TaskMetadata | None:
    """Return MTEB's card of the task that a collection is."""
    name = mteb_name(collection)
    return find_tasks([name])[0].metadata if name else None


def result_dataset(task: Task, dataset: Dataset) -> str:
    """Return the name of a dataset in results: the collection's, but in embedding MTEB's where it has one."""
    card = mteb_card(dataset.collection) if task == "embedding" else None
    return card.name if card else dataset.name


def card_of(collection: str) -> Any:
    """Return MTEB's card of a collection's task, or what prompts read of one where there is none."""
    return mteb_card(collection) or SimpleNamespace(name=collection, type="Retrieval", prompt="")
