"""Retrieval: a model, BM25 or their fusion searches a collection, and what each finds is scored.

``dense_collection`` chooses the documents and queries of a collection; ``embed_collection`` embeds every document once
and keeps the vectors; ``search_size`` finds the nearest to each query exactly, by vectors of any size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from unimoe.config import DenseConfig, DenseExperiment
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.data.sources.msmarco import PASSAGES, TOP1000
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import from_grade
from unimoe.results import Task
from unimoe.retrieval import bm25
from unimoe.retrieval.dense import EmbeddedCollection

TASK: Task = "retrieval"


@dataclass(frozen=True)
class DenseCollection:
    """A collection as dense retrieval is evaluated on it.

    Attributes:
        test: the queries that are scored, over the documents that are searched; grades below the threshold are 0.
        pool: documents searched, where they are a sample; None for the whole corpus.
        caveats: why scores are unfit for decisions; empty when they are fit.
    """

    test: Collection
    pool: int | None
    caveats: list[str]


def dense_collection(collection: Collection, config: DenseConfig, max_queries: int | None = None) -> DenseCollection:
    """Choose what of a whole collection is searched and scored.

    In this order: grades below ``relevance_threshold`` become 0; ``corpus_sample`` cuts the corpus, which keeps the
    documents that are relevant to any query; ``test_size`` splits the queries; ``max_queries`` cuts those that are
    scored; ``use_small_eval_set`` cuts the corpus once more, to what is relevant to the scored queries and some others.
    """
    if not collection.corpus:
        raise DataError(f"{collection.name}: the corpus holds no documents; there is nothing to search")
    if collection.candidates_only:
        raise UsageError(
            f"{collection.name}: its corpus is no more than the candidates of {TOP1000}, so a search among them says "
            f"nothing about a search of all passages; put {PASSAGES} beside it"
        )
    collection = replace(collection, qrels=from_grade(collection.qrels, config.relevance_threshold))
    test = collection
    if config.corpus_sample is not None:
        test = _pool(collection, config.corpus_sample, config.split_seed, "corpus_sample")
    if config.test_size is not None:
        test = test.split_queries(config.test_size, config.split_seed)[1]
    caveats, scored = [], len(test.qrels)
    if max_queries is not None and max_queries < scored:
        test = test.sample_queries(max_queries)
        caveats.append(f"--max-queries {max_queries}: {scored:,} queries are judged")
    if config.use_small_eval_set and config.subset_size < len(test.corpus):
        test = _pool(test, config.subset_size, config.split_seed, "subset_size")
        caveats.append(
            f"use_small_eval_set: {config.subset_size:,} of {len(collection.corpus):,} documents are searched, "
            "which makes finding the relevant ones easy"
        )
    pool = len(test.corpus) if len(test.corpus) < len(collection.corpus) else None
    return DenseCollection(test, pool, caveats)


def retrieval_metrics(config: DenseConfig) -> tuple[str, ...]:
    """Return the metrics of a retrieval."""
    return (*DEFAULT_METRICS, *(f"recall_of_retrieved@{cutoff}" for cutoff in sorted(set(config.cutoffs))))


def retrieval_notes(collection: Collection, depth: int) -> list[str]:
    """Return what to know before the scores of a run of this depth are believed, in sentences."""
    documents, name = len(collection.corpus), collection.name
    notes = []
    if depth > documents:
        notes.append(f"{name}: depth {depth:,}, but the corpus holds {documents:,}: every document is ranked")
    if min(depth, documents) < 100:
        notes.append(f"{name}: recall@100 and map count the {min(depth, documents):,} documents kept of each query")
    if without := [
        query_id for query_id, grades in collection.qrels.items() if not any(grade > 0 for grade in grades.values())
    ]:
        count = f"{len(without):,} ({first_few(without)})"
        notes.append(f"{name}: judged queries without a relevant document, which count 0: {count}")
    return notes


Found = tuple[Run, dict[str, Any]]
"""What a model finds, and what an ``Outcome`` says of the search: items, seconds, device and the index of vectors."""


@dataclass
class Searches:
    """A dataset as systems search it, and what the latest model made of it, which its fusion and sizes take too."""

    dataset: Dataset
    chosen: DenseCollection
    loader: object = None  # of the latest model; vectors of others are on disk
    embedded: EmbeddedCollection | None = None
    found: Found | None = None  # by whole vectors, or by a model that has none

    @cached_property
    def passages(self) -> dict[str, Document] | None:
        """The passages of the documents; None where an encoder reads them whole."""
        cut = self.dataset.passages
        return cut and cut.parts(self.chosen.test.corpus)


def bm25_engine(experiment: DenseExperiment) -> bm25.Engine:
    """Return the implementation of BM25 that is compared and fused with the encoder."""
    setting = experiment.evaluation.first_stage
    if setting in ("bm25s", "rank_bm25"):
        return cast("bm25.Engine", setting)
    raise UsageError(f"evaluation.first_stage={setting}: retrieval searches with BM25 itself; use bm25s or rank_bm25")


def _pool(collection: Collection, n: int, seed: int, key: str) -> Collection:
    try:
        return collection.pool(n, seed)
    except UsageError as error:
        raise UsageError(f"retrieval.{key}: {error}") from None
