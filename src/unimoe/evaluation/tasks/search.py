"""Retrieval: a model, BM25 or their fusion searches a collection, and what each finds is scored.

``dense_collection`` chooses the documents and queries of a collection; ``embed_collection`` embeds every document once
and keeps the vectors; ``search_size`` finds the nearest to each query exactly, by vectors of any size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from unimoe.checks import Check, lines
from unimoe.checks.texts import concerned
from unimoe.config import DenseConfig
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.sources.msmarco import PASSAGES, TOP1000
from unimoe.evaluation.datasets import Dataset, cut_queries
from unimoe.evaluation.spec import Evaluation, Outcome, Work, described, rule_hashes, seen_before
from unimoe.evaluation.system import System
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import from_grade
from unimoe.models.device import choose_device, describe_device
from unimoe.models.loader import weights_hash
from unimoe.models.model import Model
from unimoe.results import Task
from unimoe.retrieval.bm25 import bm25_run, engine_of, first_stage_name
from unimoe.retrieval.dense import EmbeddedCollection, embed_collection
from unimoe.retrieval.first_stage import cut_run, reciprocal_rank_fusion
from unimoe.retrieval.passages import as_read
from unimoe.retrieval.sizes import FULL, search_size

TASK: Task = "retrieval"

Found = tuple[Run, dict[str, Any]]
"""What a model finds, and what an ``Outcome`` says of the search: items, seconds, device and the index of vectors."""


@dataclass
class Searches:
    """A dataset as systems search it, and what the latest model made of it, which its fusion and sizes take too.

    Attributes:
        test: the queries that are scored, over the documents that are searched; grades below the threshold are 0.
        pool: documents searched, where they are a sample; None for the whole corpus.
        latest: the latest model; vectors of others are on disk.
        found: by whole vectors, or by a model that has none.
    """

    dataset: Dataset
    test: Collection
    pool: int | None = None
    latest: Model | None = None
    embedded: EmbeddedCollection | None = None
    found: Found | None = None

    @property
    def checks(self) -> Sequence[Check]:
        """What was found of the collection, and what was left out of it."""
        return self.test.checks

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
    test = replace(dataset.with_rule(collection), qrels=judged)
    if config.corpus_sample is not None:
        test = _pool(test, config.corpus_sample, config.split_seed, "corpus_sample")
    if config.test_size is not None:
        test = test.split_queries(config.test_size, config.split_seed)[1]
    if dataset.max_queries is not None:
        test = cut_queries(test, dataset.max_queries)
    if config.use_small_eval_set and config.subset_size < len(test.corpus):
        test = _pool(test, config.subset_size, config.split_seed, "subset_size")
        line = (
            f"use_small_eval_set: {config.subset_size:,} of {documents:,} documents are searched, which makes finding "
            "the relevant ones easy"
        )
        test = replace(test, checks=(*test.checks, Check("documents", "caveat", line)))
    return Searches(dataset, test, len(test.corpus) if len(test.corpus) < documents else None)


def describe(system: System, data: Searches) -> Evaluation:
    """Return the search of a collection by a system."""
    config, dataset, test, encodes = system.dense.retrieval, data.dataset, data.test, system.model is not None
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
    return described(
        system,
        TASK,
        partial(_run, data),
        identity=identity,
        hashes={"collection": test.content_hash, "settings": hash_json(settings)} | rule_hashes(test),
        dataset=dataset.name,
        main_metric=dataset.main_metric,
        size=len(test.queries) + len(data.read.corpus) * encodes if system.size == FULL else 0,
        caveats=[*lines(checks, "caveat"), *seen_before(system, test)],
    )


def _run(data: Searches, evaluation: Evaluation, work: Work) -> Outcome:
    """Search by words, by a model or by both, and score what is found."""
    system, found = evaluation.system, dict[str, Any](items=0)
    config, settings = system.dense.retrieval, system.dense.evaluation
    deep = max(config.depth, config.fuse_depth or 0)  # both sides of a fusion are searched to
    if work.model:
        run, of_model = _found(system, data, deep, work)
        found |= {"device": of_model["device"]} if system.fused else of_model
        found["token_budget"] = settings.token_budget
    start = time.perf_counter()
    if work.model is None or system.fused:
        how: dict[str, Any] = {"engine": engine_of(settings), "advance": None if system.fused else work.advance}
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


def _found(system: System, data: Searches, depth: int, work: Work) -> Found:
    """Embed once for an encoder, its fusion and its sizes, and not at all if all results exist; then search."""
    start, config = time.perf_counter(), system.dense.retrieval
    batches, whole = system.dense.evaluation.batches, system.size == FULL
    if data.latest is not system.model:
        data.found = None
        if system.search:  # which keeps the ranking
            run = system.search.run(data.test, depth, advance=work.advance)
            place = describe_device(system.search.device or choose_device())
            data.found = run, {"items": 0, "seconds": time.perf_counter() - start, "device": place}
        else:
            model = work.loaded.embedder()
            place = describe_device(model.place)
            weights = weights_hash(system.checkpoint, system.dense.evaluation) if system.checkpoint else None
            spread = model.spread(kind="document", max_length=config.document_length, **batches)
            how: dict[str, Any] = {"weights": weights, "advance": work.advance, "spread": spread, **batches}
            data.embedded = embed_collection(model, data.read, config, place=place, **how)
        data.latest = system.model
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
