"""Retrieval: an encoder, BM25 or their fusion searches a collection, and what each finds is scored.

``dense_collection`` chooses the documents and queries of a collection; ``evaluate_retrieval`` embeds every document
once, finds the nearest to each query exactly, and writes only the vectors; ``Searches`` evaluates several systems on
one collection, which is embedded once for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from unimoe.config import Batches, DenseConfig, DenseExperiment
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.core.io import hash_json
from unimoe.core.trec import Run, head
from unimoe.data.collection import Collection
from unimoe.data.sources.msmarco import PASSAGES, TOP1000
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.reranking.cluster_model import spread_over
from unimoe.evaluation.reranking.rerankers import device_of
from unimoe.evaluation.spec import Evaluation, Outcome, system_evaluation
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.datasets import Dataset
from unimoe.metrics import DEFAULT_METRICS, score_run
from unimoe.metrics.scoring import from_grade
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance, Embedder, Vectors
from unimoe.models.loader import weights_hash
from unimoe.results import Task
from unimoe.retrieval import bm25
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.retrieval.dense import dense_run
from unimoe.retrieval.embeddings import Encode
from unimoe.retrieval.fusion import reciprocal_rank_fusion

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
    **batches: Unpack[Batches],
) -> Outcome:
    """Embed a collection, as ``dense_collection`` cuts it, search it, and score what is found; see ``dense_run``."""
    _refuse_unsearchable(collection)
    start, embedded = time.perf_counter(), len(collection.queries)
    of_document: dict[str, Any] = {"kind": "document", "max_length": config.document_length, **batches}

    def counted(encode: Encode, units: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        nonlocal embedded
        for vectors in spread_over(model, **of_document)(encode, units):
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


class Searches:
    """A dataset as systems search it: BM25, an encoder, and their fusion, for which texts are embedded once."""

    def __init__(self, dataset: Dataset, chosen: DenseCollection, engine: Engine) -> None:
        self.dataset, self.chosen, self._engine = dataset, chosen, engine
        self._embedded: tuple[System, Outcome] | None = None  # the latest: vectors of others are on disk

    def evaluation(self, system: System) -> Evaluation:
        """Return the evaluation of a system's search."""
        experiment, test = _settings(system), self.chosen.test
        config, encodes = experiment.retrieval, system.load is not None
        settings: list[object] = [config.depth, sorted(set(config.cutoffs))]
        if encodes:
            settings.append(config.storage)
        if system.fused:
            settings += [config.fuse_depth, config.fuse_k]
        evaluation = system_evaluation(
            system,
            TASK,
            self.dataset.name,
            {"collection": test.content_hash, "settings": hash_json(settings)} | self.dataset.rule_hashes,
            None,
            prompt=system.prompt,
            split=test.split,
            first_stage=None if encodes and not system.fused else _words_name(experiment),
            pool=self.chosen.pool,
            max_queries=self.dataset.max_queries,
            main_metric=self.dataset.main_metric,
            caveats=self.chosen.caveats,
        )
        size = len(test.queries) + (len(test.corpus) if encodes else 0)
        return replace(evaluation, size=size, run=partial(self._search, evaluation, system))

    def _search(self, evaluation: Evaluation, system: System, advance: Advance | None) -> Outcome:
        """Search by words, by vectors or by both, and score what is found."""
        experiment, test, dataset = _settings(system), self.chosen.test, self.dataset
        config, start = experiment.retrieval, time.perf_counter()
        deep = max(config.depth, config.fuse_depth or 0)  # both sides of a fusion are searched to
        embedded = self._embed(evaluation, system, deep, advance) if system.load else None
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
            sides = [_cut(side, config.fuse_depth or deep) for side in (run, embedded.run)]
            run = reciprocal_rank_fusion(sides, depth=config.depth, k=config.fuse_k)
        outcome = retrieval_outcome(test, _cut(run, config.depth), config)
        outcome = replace(outcome, main_metric=dataset.main_metric, items=0, seconds=time.perf_counter() - start)
        if embedded is None:
            return outcome
        outcome = replace(outcome, device=embedded.device, token_budget=experiment.evaluation.token_budget)
        if system.fused:
            return outcome
        notes = retrieval_notes(test, config.depth)
        return replace(outcome, items=embedded.items, seconds=embedded.seconds, notes=notes)

    def _embed(self, evaluation: Evaluation, system: System, depth: int, advance: Advance | None) -> Outcome:
        """Embed and search once for an encoder and its fusion, and not at all if both results exist."""
        if self._embedded is None or self._embedded[0].load is not system.load:
            experiment = _settings(system)
            model = self._engine.model(system, evaluation.title, evaluation.unit_identity)
            outcome = evaluate_retrieval(
                model,
                self.chosen.test,
                experiment.retrieval.model_copy(update={"depth": depth}),
                store_dir=Path(experiment.output_dir) / "vectors",
                weights=weights_hash(system.checkpoint, experiment.evaluation) if system.checkpoint else None,
                exclude_self=self.dataset.exclude_self,
                advance=advance,
                **experiment.evaluation.batches,
            )
            self._embedded = (system, replace(outcome, device=describe_device(device_of(model))))
        return self._embedded[1]


def bm25_engine(experiment: DenseExperiment) -> bm25.Engine:
    """Return the implementation of BM25 that is compared and fused with the encoder."""
    setting = experiment.evaluation.first_stage
    if setting == "bm25s":
        return "bm25s"
    if setting == "rank_bm25":
        return "rank_bm25"
    raise UsageError(f"evaluation.first_stage={setting}: retrieval searches with BM25 itself; use bm25s or rank_bm25")


def _settings(system: System) -> DenseExperiment:
    if not isinstance(system.experiment, DenseExperiment):
        raise TypeError(f"{system.name}: a search needs the settings of dense retrieval")
    return system.experiment


def _words_name(experiment: DenseExperiment) -> str:
    return first_stage_name(experiment.evaluation.bm25, bm25_engine(experiment))


def _cut(run: Run, depth: int) -> Run:
    return {query_id: head(scores, depth) for query_id, scores in run.items()}


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
