"""Retrieval: a model, BM25 or their fusion searches a collection, and what each finds is scored.

``dense_collection`` chooses the documents and queries of a collection; ``embed_collection`` embeds every document once
and keeps the vectors; ``search_size`` finds the nearest to each query exactly, by vectors of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from unimoe.config import DenseConfig
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.sources.msmarco import PASSAGES, TOP1000
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import from_grade
from unimoe.results import Task
from unimoe.retrieval.dense import EmbeddedCollection
from unimoe.retrieval.passages import as_read

TASK: Task = "retrieval"

FoundRun = tuple[Run, dict[str, Any]]
"""What a model finds, and what an ``Outcome`` says of the search: items, seconds, device and the index of vectors."""


@dataclass
class Searches:
    """A dataset as systems search it, and what the latest model made of it, which its fusion and sizes take too.

    Attributes:
        test: the queries that are scored, over the documents that are searched; grades below the threshold are 0.
        pool: documents searched, where they are a sample; None for the whole corpus.
        caveats: why scores are unfit for decisions; empty when they are fit.
        loader: of the latest model; vectors of others are on disk.
        found: by whole vectors, or by a model that has none.
    """

    dataset: Dataset
    test: Collection
    pool: int | None = None
    caveats: Sequence[str] = ()
    loader: object = None
    embedded: EmbeddedCollection | None = None
    found: FoundRun | None = None

    @cached_property
    def read(self) -> Collection:
        """``test`` as an encoder reads it: with passages in the place of documents, where these are cut."""
        return as_read(self.test, self.dataset.passages)


def dense_collection(dataset: Dataset, collection: Collection, config: DenseConfig) -> Searches:
    """Choose what of a whole collection is searched and scored.

    In this order: grades below ``relevance_threshold`` become 0; ``corpus_sample`` cuts the corpus, which keeps the
    documents that are relevant to any query; ``test_size`` splits the queries; ``max_queries`` cuts those that are
    scored; ``use_small_eval_set`` cuts the corpus once more, to what is relevant to the scored queries and some others.
    """
    documents, name = len(collection.corpus), collection.name
    if not documents:
        raise DataError(f"{name}: the corpus holds no documents; there is nothing to search")
    if collection.candidates_only:
        raise UsageError(
            f"{name}: its corpus is no more than the candidates of {TOP1000}, so a search among them says nothing "
            f"about a search of all passages; put {PASSAGES} beside it"
        )
    judged = from_grade(collection.qrels, config.relevance_threshold)
    test, caveats = replace(dataset.with_rule(collection), qrels=judged), []
    if config.corpus_sample is not None:
        test = _pool(test, config.corpus_sample, config.split_seed, "corpus_sample")
    if config.test_size is not None:
        test = test.split_queries(config.test_size, config.split_seed)[1]
    most, scored = dataset.max_queries, len(test.qrels)
    sample = test if most is None else test.sample_queries(most)
    if len(sample.qrels) < scored:
        test = sample
        caveats.append(f"--max-queries {most}: {scored:,} queries are judged")
    if config.use_small_eval_set and config.subset_size < len(test.corpus):
        test = _pool(test, config.subset_size, config.split_seed, "subset_size")
        caveats.append(
            f"use_small_eval_set: {config.subset_size:,} of {documents:,} documents are searched, which makes finding "
            "the relevant ones easy"
        )
    return Searches(dataset, test, len(test.corpus) if len(test.corpus) < documents else None, caveats)


def retrieval_metrics(config: DenseConfig) -> tuple[str, ...]:
    """Return the metrics of a retrieval."""
    return (*DEFAULT_METRICS, *(f"recall_of_retrieved@{cutoff}" for cutoff in sorted(set(config.cutoffs))))


def retrieval_notes(collection: Collection, depth: int) -> list[str]:
    """Return what to know before the scores of a run of this depth are believed, in sentences."""
    documents, name, notes = len(collection.corpus), collection.name, []
    if depth > documents:
        notes.append(f"{name}: depth {depth:,}, but the corpus holds {documents:,}: every document is ranked")
    if min(depth, documents) < 100:
        notes.append(f"{name}: recall@100 and map count the {min(depth, documents):,} documents kept of each query")
    if without := [query for query, grades in collection.qrels.items() if max(grades.values()) <= 0]:
        count = f"{len(without):,} ({first_few(without)})"
        notes.append(f"{name}: judged queries without a relevant document, which count 0: {count}")
    return notes


def _pool(collection: Collection, n: int, seed: int, key: str) -> Collection:
    try:
        return collection.pool(n, seed)
    except UsageError as error:
        raise UsageError(f"retrieval.{key}: {error}") from None
