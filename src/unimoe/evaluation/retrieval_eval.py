"""Retrieval: an encoder, BM25 or their fusion searches a collection, and what each finds is scored.

``dense_collection`` chooses the documents and queries of a collection; ``embed_collection`` embeds every document once
and keeps the vectors; ``search_retrieval`` finds the nearest to each query exactly, by vectors of any size.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import cast

from unimoe.config import DenseConfig, DenseExperiment
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.data.collection import Collection
from unimoe.data.sources.msmarco import PASSAGES, TOP1000
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import from_grade
from unimoe.results import Task
from unimoe.retrieval import bm25
from unimoe.retrieval.dense import EmbeddedCollection
from unimoe.retrieval.sizes import FULL, Size, search_size

TASK: Task = "retrieval"


@dataclass(frozen=True)
class DenseCollection:
    """A collection as dense retrieval is evaluated on it.

    Attributes:
        test: the queries that are scored, over the documents that are searched; grades below the threshold are 0.
        train: the other queries over the sampled corpus, so that a training can keep to the same split; None where all
            queries are scored.
        pool: documents searched, where they are a sample; None for the whole corpus.
        caveats: why scores are unfit for decisions; empty when they are fit.
    """

    test: Collection
    train: Collection | None
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
    if not collection.qrels:
        raise DataError(f"{collection.name}: split {collection.split!r} holds no judgments; nothing can be scored")
    if collection.candidates_only:
        raise UsageError(
            f"{collection.name}: its corpus is no more than the candidates of {TOP1000}, so a search among them says "
            f"nothing about a search of all passages; put {PASSAGES} beside it"
        )
    collection = replace(collection, qrels=from_grade(collection.qrels, config.relevance_threshold))
    sampled = collection
    if config.corpus_sample is not None:
        sampled = _pool(collection, config.corpus_sample, config.split_seed, "corpus_sample")
    train, test = None, sampled
    if config.test_size is not None:
        train, test = sampled.split_queries(config.test_size, config.split_seed)
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
    return DenseCollection(test, train, pool, caveats)


def search_retrieval(
    embedded: EmbeddedCollection,
    collection: Collection,
    config: DenseConfig,
    size: Size = FULL,
    *,
    exclude_self: bool = False,
) -> Outcome:
    """Search an embedded collection by vectors of a size, and score what is found; whole ones count the embedding."""
    start = time.perf_counter()
    run, index = search_size(size, embedded, config, exclude_self=exclude_self)
    items, before = (embedded.items, embedded.seconds) if size == FULL else (0, 0.0)
    return Outcome.of_run(
        collection,
        run,
        "ndcg@10",
        retrieval_metrics(config),
        items=items,
        seconds=time.perf_counter() - start + before,
        device=embedded.place,
        vector_index=index,
    )


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


@dataclass
class Searches:
    """A dataset as systems search it, and what the latest encoder made of it, which its fusion and sizes take too."""

    dataset: Dataset
    chosen: DenseCollection
    loader: object = None  # of the latest encoder; vectors of others are on disk
    embedded: EmbeddedCollection | None = None
    whole: Outcome | None = None  # of a search by whole vectors


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
