"""Small tasks of MTEB with invented text, loaded from memory; MTEB's own mocks have one of every type."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset, DatasetDict
from mteb import TaskResult
from mteb.abstasks import AbsTask, AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from support.tiny_models import tiny_base
from support.toy_collections import invented

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.data.collection import Collection
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.evaluate import Driver
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.system import System
from unimoe.evaluation.tasks.mteb import evaluate_task
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import EvalResult, Task


def card(name: str, kind: str, main_score: str, **more: Any) -> TaskMetadata:
    """MTEB's card of a task."""
    facts: dict[str, Any] = {
        "name": name,
        "description": f"Invented data of type {kind}.",
        "type": kind,
        "category": "t2t",
        "main_score": main_score,
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
        "dataset": {"path": f"invented/{name}", "revision": "1"},
    }
    return TaskMetadata(**facts | more)


class InMemory:
    """A task of MTEB whose data ``held`` makes, in place of a download."""

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        self.dataset: Any = self.held()
        self.data_loaded = True

    def held(self) -> Any:
        raise NotImplementedError


class InventedSTS(InMemory, AbsTaskSTS):
    """14 pairs of texts with scores from 0 to 5."""

    metadata = card("InventedSTS", "STS", "cosine_spearman")

    def held(self) -> DatasetDict:
        texts, rng = [document.text for document in invented(documents=28).corpus.values()], random.Random(1)
        scores = [5 * rng.random() for _ in texts[::2]]
        columns = {"sentence1": texts[::2], "sentence2": texts[1::2], "score": scores}
        return DatasetDict({"test": Dataset.from_dict(columns)})


RANKED = invented(documents=18, queries=5, words=40, name="ranked")

CANDIDATES = {
    query: dict.fromkeys(random.Random(query).sample(list(RANKED.corpus), 9) + list(grades), 0.0)
    for query, grades in RANKED.qrels.items()
}
"""Nine documents of each query and its relevant ones, in no order."""


class InventedRetrieval(InMemory, AbsTaskRetrieval):
    """Five queries over the whole of 18 documents, with an instruction of its own."""

    instruction = "Given a word, retrieve texts that hold it"
    metadata = card("InventedRetrieval", "Retrieval", "ndcg_at_10", prompt={"query": instruction})

    def held(self) -> dict[str, Any]:
        return {"default": {"test": split_data(RANKED)}}


class InventedReranking(InMemory, AbsTaskRetrieval):
    """The same queries, whose candidates are given."""

    metadata = card("InventedReranking", "Reranking", "map_at_1000")

    def held(self) -> dict[str, Any]:
        return {"default": {"test": split_data(RANKED, CANDIDATES)}}


INVENTED = (InventedSTS, InventedRetrieval, InventedReranking)


def loaded(kind: type[AbsTask]) -> AbsTask:
    """A task with its data."""
    task = kind()
    task.load_data()
    return task


def by_mteb(model: Any, task: AbsTask) -> TaskResult:
    """What MTEB finds with its own search wrappers."""
    quiet: Any = {"batch_size": 32, "show_progress_bar": False}
    results = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=quiet)
    return results.task_results[0]


def split_data(
    collection: Collection, candidates: Mapping[str, Mapping[str, float]] | None = None
) -> RetrievalSplitData:
    """A collection as MTEB holds one split of a task; with candidates it is to be reranked."""
    corpus = [{"id": key, "title": title, "text": text} for key, (title, text) in collection.corpus.items()]
    return RetrievalSplitData(
        corpus=Dataset.from_list(corpus),
        queries=Dataset.from_list([{"id": key, "text": text} for key, text in collection.queries.items()]),
        relevant_docs={query: dict(grades) for query, grades in collection.qrels.items()},
        top_ranked={query: list(found) for query, found in candidates.items()} if candidates else None,
    )


PROMPT = PromptConfig(query_prefix="Query: ", document_prefix="Document: ")
PLAIN, INSTRUCTED = TaskPrompts(MTEBConfig(task_instruction=None)), TaskPrompts(MTEBConfig())


def make_model(seed: int = 0, prompt: PromptConfig = PROMPT, max_length: int = 256) -> UnimodelForExp1:
    """A random model whose roles have prefixes."""
    return UnimodelForExp1(tiny_base(seed=seed), prompt, max_length)


class Suite:
    """Evaluates a system on tasks of MTEB, as ``evaluate --mteb`` does; ``reasons`` say why some have no score."""

    def __init__(self, output_dir: Path, system: System, wanted: Sequence[Task] = ("reranking", "embedding")) -> None:
        self._system, self.reasons = replace(system, tasks=tuple(wanted), output_dir=output_dir), list[str]()

    def run(self, tasks: Sequence[Any]) -> list[EvalResult]:
        """Return the results."""
        driver = Driver([self._system], ChosenData(mteb=tasks), Engine())
        found = [result for _, result in driver.on_mteb()]
        self.reasons += driver.failures.reasons
        return found


def evaluate(model: UnimodelForExp1, kind: type[Any], prompts: TaskPrompts = PLAIN) -> Outcome:
    """Embed one task of ``support.mteb_tasks``."""
    return evaluate_task(MTEBEncoderWrapper(model, prompts=prompts), loaded(kind))


def cosines(
    model: UnimodelForExp1, collection: Collection, query_prefix: str | None = None
) -> dict[str, dict[str, float]]:
    """Of every query with every document, by the model alone."""
    documents = model.encode([d.full_text for d in collection.corpus.values()], kind="document").astype(float)
    asked = model.encode([*collection.queries.values()], kind="query", prefix=query_prefix).astype(float)
    return {
        query: dict(zip(collection.corpus, map(float, documents @ vector), strict=True))
        for query, vector in zip(collection.queries, asked, strict=True)
    }
