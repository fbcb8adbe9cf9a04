"""Dense retrieval: every document of a corpus embedded once, the nearest to each query found exactly, and scored.

``dense_collection`` chooses the documents and queries of a collection; ``evaluate_retrieval`` searches and scores them,
and writes only the vectors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from unimoe.cluster.work import ALONE, Workers
from unimoe.config import Batches, DenseConfig
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.trec import Run, head
from unimoe.data.collection import Collection
from unimoe.data.sources.msmarco import PASSAGES, TOP1000
from unimoe.evaluation.sharing import shared
from unimoe.evaluation.spec import Outcome
from unimoe.metrics import DEFAULT_METRICS, score_run
from unimoe.metrics.scoring import from_grade
from unimoe.models.embedder import Advance, Embedder, Vectors
from unimoe.retrieval.dense import dense_run
from unimoe.retrieval.embeddings import Encode


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
    """Choose what of a collection is searched and scored.

    In this order: grades below ``relevance_threshold`` become 0; ``corpus_sample`` cuts the corpus, which keeps the
    documents that are relevant to any query; ``test_size`` splits the queries; ``max_queries`` cuts those that are
    scored; ``use_small_eval_set`` cuts the corpus once more, to what is relevant to the scored queries and some others.

    Args:
        collection: the whole collection.
        config: settings of the search.
        max_queries: score at most this many queries, a fixed sample.

    Raises:
        UsageError: a sample cannot hold the relevant documents, a part of the split would be empty, or the corpus is
            no more than the candidates of a published first stage.
        DataError: there are no documents, or no judgment reaches the threshold.
    """
    _refuse_unsearchable(collection)
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


def evaluate_retrieval(
    model: Embedder,
    collection: Collection,
    config: DenseConfig,
    *,
    store_dir: Path,
    weights: str | None,
    exclude_self: bool = False,
    advance: Advance | None = None,
    workers: Workers = ALONE,
    **batches: Unpack[Batches],
) -> Outcome:
    """Embed a corpus and its queries, search it, and score what is found.

    Args:
        model: embeds queries and documents.
        collection: as ``dense_collection`` cuts it.
        config: lengths, depth, cutoffs, backend and storage.
        store_dir: of the vectors; this and the next three as in ``dense_run``.
        weights: content hash of an adapter or a head.
        exclude_self: leave out the document whose id is the query's.
        advance: called with the number of texts done.
        workers: those that share the documents.
        batches: the size of a forward pass; by default what suits the device.

    Raises:
        DataError: no documents, no judgments, or an embedding is not finite or zero, which names the text's id.
        UsageError: the backend is not installed, or vectors cannot be written to ``store_dir``.
    """
    _refuse_unsearchable(collection)
    start, embedded = time.perf_counter(), len(collection.queries)
    of_document: dict[str, Any] = {"kind": "document", "max_length": config.document_length, **batches}

    def counted(encode: Encode, units: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        nonlocal embedded
        for vectors in shared(workers, **of_document)(encode, units):
            embedded += len(vectors)
            yield vectors

    run = dense_run(
        model,
        collection,
        config,
        store_dir=store_dir,
        weights=weights,
        exclude_self=exclude_self,
        advance=advance,
        spread=counted,
        **batches,
    )
    return replace(
        retrieval_outcome(collection, run, config),
        items=embedded,
        seconds=time.perf_counter() - start,
        notes=retrieval_notes(collection, config.depth),
    )


def retrieval_outcome(collection: Collection, run: Run, config: DenseConfig) -> Outcome:
    """Score a run over a collection by nDCG@10, MRR@10, MAP, recall@100, and recall_of_retrieved@K for every cutoff."""
    return Outcome(
        main_metric="ndcg@10",
        run=run,
        qrels=collection.qrels,
        queries=collection.queries,
        scores=score_run(collection.qrels, run, retrieval_metrics(config), collection.relevance_level),
        relevance_level=collection.relevance_level,
    )


def retrieval_metrics(config: DenseConfig) -> tuple[str, ...]:
    """Return the metrics of a retrieval."""
    return (*DEFAULT_METRICS, *(f"recall_of_retrieved@{cutoff}" for cutoff in sorted(set(config.cutoffs))))


def cut_run(run: Run, depth: int) -> Run:
    """Keep the first ``depth`` documents of every query."""
    return {query_id: head(scores, depth) for query_id, scores in run.items()}


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


def _pool(collection: Collection, n: int, seed: int, key: str) -> Collection:
    try:
        return collection.pool(n, seed)
    except UsageError as error:
        raise UsageError(f"retrieval.{key}: {error}") from None


def _refuse_unsearchable(collection: Collection) -> None:
    if not collection.corpus:
        raise DataError(f"{collection.name}: the corpus holds no documents; there is nothing to search")
    if not collection.qrels:
        raise DataError(f"{collection.name}: split {collection.split!r} holds no judgments; nothing can be scored")
    if collection.candidates_only:
        raise UsageError(
            f"{collection.name}: its corpus is no more than the candidates of {TOP1000}, so a search among them says "
            f"nothing about a search of all passages; put {PASSAGES} beside it"
        )
