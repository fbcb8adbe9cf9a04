"""Small tasks of MTEB with invented text: one of each type in MTEB(eng, v2), loaded from memory."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import (
    AbsTask,
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
    AbsTaskSummarization,
)
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from support.reranking import invented
from support.tiny_models import tiny_base

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.data.collection import Collection
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.embedding_eval import evaluate_task
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.evaluate import Driver
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.systems.system import System
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import EvalResult, Task

LABELS = ("weather", "kitchen", "garden")

_NOUNS = {
    "weather": ["rain", "snow", "thunder", "a cold wind", "fog", "the sun"],
    "kitchen": ["the oven", "a sharp knife", "bread dough", "soup", "a kettle", "salt"],
    "garden": ["roses", "the old hedge", "a spade", "beans", "the lawn", "seeds"],
}

_FRAMES = (
    "Nobody minded {} at noon.",
    "All week it was about {}.",
    "We wrote down what {} did.",
    "Then came {} again!",
)


def sentences(number: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Invented sentences, no two alike, and which of ``LABELS`` each is about."""
    rng = random.Random(seed)
    every = [
        (frame.format(noun), LABELS.index(label)) for label in LABELS for noun in _NOUNS[label] for frame in _FRAMES
    ]
    chosen = rng.sample(every, number)
    return [text for text, _ in chosen], [label for _, label in chosen]


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


def in_splits(**splits: dict[str, Any]) -> DatasetDict:
    """The columns of each split."""
    return DatasetDict({split: Dataset.from_dict(columns) for split, columns in splits.items()})


class InventedSTS(InMemory, AbsTaskSTS):
    """14 pairs of sentences with scores from 0 to 5: the more the labels agree, the higher."""

    metadata = card("InventedSTS", "STS", "cosine_spearman")

    def held(self) -> DatasetDict:
        texts, labels = sentences(28)
        rng = random.Random(1)
        scores = [3 * (a == b) + 2 * rng.random() for a, b in zip(labels[::2], labels[1::2], strict=True)]
        return in_splits(test={"sentence1": texts[::2], "sentence2": texts[1::2], "score": scores})


class InventedPairs(InMemory, AbsTaskPairClassification):
    """18 pairs of sentences, about the same or not."""

    metadata = card("InventedPairs", "PairClassification", "max_ap")

    def held(self) -> DatasetDict:
        texts, labels = sentences(36, seed=2)
        same = [int(a == b) for a, b in zip(labels[::2], labels[1::2], strict=True)]
        return in_splits(test={"sentence1": texts[::2], "sentence2": texts[1::2], "labels": same})


class InventedClassification(InMemory, AbsTaskClassification):
    """24 sentences to learn from, 8 of each label, so that every experiment learns from all of them; 30 to classify."""

    metadata = card("InventedClassification", "Classification", "accuracy")

    def held(self) -> DatasetDict:
        texts, labels = sentences(60, seed=3)
        learnt = [row for label in range(3) for row in [n for n, own in enumerate(labels) if own == label][:8]]
        asked = [row for row in range(60) if row not in learnt][:30]
        train, test = (
            {"text": [texts[n] for n in rows], "label": [labels[n] for n in rows]} for rows in (learnt, asked)
        )
        return in_splits(train=train, test=test)


class InventedClustering(InMemory, AbsTaskClustering):
    """40 sentences of three labels; four clusterings of 30 drawn from them."""

    metadata = card("InventedClustering", "Clustering", "v_measure")
    max_fraction_of_documents_to_embed = None
    max_documents_per_cluster = 30
    n_clusters = 4

    def held(self) -> DatasetDict:
        texts, labels = sentences(40, seed=4)
        return in_splits(test={"sentences": texts, "labels": [LABELS[label] for label in labels]})


class InventedSummarization(InMemory, AbsTaskSummarization):
    """Three texts, each with two summaries by people and four by machines, judged in another order of the same four."""

    metadata = card("InventedSummarization", "Summarization", "cosine_spearman")
    min_score, max_score = 1, 5

    def held(self) -> DatasetDict:
        texts, _ = sentences(21, seed=5)
        rows = {
            "text": texts[:3],
            "human_summaries": [texts[3 + 2 * n : 5 + 2 * n] for n in range(3)],
            "machine_summaries": [texts[9 + 4 * n : 13 + 4 * n] for n in range(3)],
            "relevance": [[1.0, 2.5, 4.0, 5.0], [5.0, 1.0, 2.5, 4.0], [2.5, 5.0, 1.0, 4.0]],
        }
        return in_splits(test=rows)


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


class InventedMean(AbsTaskAggregate):
    """The mean of two tasks, as CQADupstackRetrieval is one of twelve."""

    metadata = AggregateTaskMetadata(
        name="InventedMean",
        description="The mean of two.",
        tasks=[InventedRetrieval(), InventedSTS()],
        main_score="ndcg_at_10",
        type="Retrieval",
        eval_splits=["test"],
    )


ALL_TYPES: tuple[type[AbsTask], ...] = (
    InventedSTS,
    InventedPairs,
    InventedClassification,
    InventedClustering,
    InventedSummarization,
    InventedRetrieval,
    InventedReranking,
)
"""One of each type of MTEB(eng, v2)."""


def loaded(kind: type[AbsTask]) -> AbsTask:
    """A task with its data."""
    task = kind()
    task.load_data()
    return task


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
