"""The arms of dense retrieval: what embeds, BM25 on the very same documents and queries, and the fusion of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from unimoe.config.dense import DenseConfig, DenseExperiment
from unimoe.errors import UsageError
from unimoe.evaluation.retrieval_eval import (
    DenseCollection,
    RetrievalOutcome,
    cut_run,
    evaluate_retrieval,
    retrieval_notes,
    score_retrieval,
)
from unimoe.evaluation.retrieval_results import ArmOnDataset
from unimoe.evaluation.retrievers import BM25, Retriever
from unimoe.evaluation.tiers import Dataset
from unimoe.io import hash_json
from unimoe.models.embedder import Advance
from unimoe.results import Identity
from unimoe.retrieval.bm25 import Engine, cached_bm25_run, first_stage_name
from unimoe.retrieval.fusion import reciprocal_rank_fusion
from unimoe.trec import Run


def bm25_engine(experiment: DenseExperiment) -> Engine:
    """Whose BM25 stands beside the encoder.

    Raises:
        UsageError: the first stage is none that can search.
    """
    setting = experiment.evaluation.first_stage
    if setting == "bm25s":
        return "bm25s"
    if setting == "rank_bm25":
        return "rank_bm25"
    raise UsageError(f"evaluation.first_stage={setting}: retrieval searches with BM25 itself; use bm25s or rank_bm25")


class DatasetArms:
    """The arms of one retriever on one collection: what each is, and how it is measured.

    Args:
        experiment: how.
        dataset: the collection by name.
        data: the collection as it is searched and scored.
        retriever: what embeds.
    """

    def __init__(
        self, experiment: DenseExperiment, dataset: Dataset, data: DenseCollection, retriever: Retriever
    ) -> None:
        self.data = data
        self._experiment, self._dataset, self._retriever = experiment, dataset, retriever
        self._outcome: RetrievalOutcome | None = None

    def __iter__(self) -> Iterator[tuple[ArmOnDataset, int, Callable[[Advance], RetrievalOutcome]]]:
        """Each arm, the number of its queries and texts, and what measures it."""
        queries = len(self.data.test.queries)
        texts = queries + len(self.data.test.corpus)
        yield self._arm(BM25), queries, self._bm25
        yield self._arm(self._retriever.name), texts, self._encoder
        if self._config.fuse_depth is not None:
            yield self._arm(self._retriever.fused_name), texts, self._fusion

    @property
    def _config(self) -> DenseConfig:
        return self._experiment.retrieval

    @property
    def _depth(self) -> int:
        """What both sides of the fusion are searched to."""
        return max(self._config.depth, self._config.fuse_depth or 0)

    def _arm(self, name: str) -> ArmOnDataset:
        retriever, config, data = self._retriever, self._config, self.data
        encodes, searches_words = name != BM25, name != retriever.name
        settings: list[object] = [config.depth, sorted(set(config.cutoffs))]
        if encodes:
            settings.append(config.storage)
        if encodes and searches_words:
            settings += [config.fuse_depth, config.fuse_k]
        evaluation = self._experiment.evaluation
        first_stage = first_stage_name(evaluation.bm25, bm25_engine(self._experiment)) if searches_words else None
        identity = Identity(
            experiment=self._experiment.name,
            base_model=retriever.base_identity if encodes else None,
            checkpoint=retriever.checkpoint.which if encodes and retriever.checkpoint else "none",
            split=data.test.split,
            first_stage=first_stage,
            depth=None,
            pool=data.pool,
            prompt=retriever.prompt if encodes else None,
            max_queries=self._dataset.max_queries,
        )
        hashes = {"collection": data.test.content_hash, "settings": hash_json(settings)}
        trained = retriever.checkpoint if encodes else None
        return ArmOnDataset(
            arm=name,
            seed=trained.seed if trained else None,
            dataset=self._dataset.name,
            main_metric=self._dataset.main_metric,
            identity=identity,
            hashes=hashes | (retriever.hashes if encodes else {}),
            device=retriever.device if encodes else "cpu",
            dtype=retriever.dtype if encodes else None,
            token_budget=evaluation.token_budget if encodes else None,
            caveats=[*self._experiment.caveats, *data.caveats],
            training=trained.training if trained else None,
            config=self._experiment.model_dump() | ({"checkpoint": trained.config} if trained else {}),
        )

    def _bm25(self, advance: Advance) -> RetrievalOutcome:
        start = time.perf_counter()
        return self._scored(self._words(advance), start)

    def _encoder(self, advance: Advance) -> RetrievalOutcome:
        outcome, depth = self._embedded(advance), self._config.depth
        if depth == self._depth:
            return outcome
        run = cut_run(outcome.run, depth)
        scores = score_retrieval(self.data.test, run, self._config)
        return replace(outcome, run=run, scores=scores, notes=retrieval_notes(self.data.test, depth))

    def _fusion(self, advance: Advance) -> RetrievalOutcome:
        runs = [self._words(), self._embedded(advance).run]
        start = time.perf_counter()
        joined = [cut_run(run, self._config.fuse_depth or self._depth) for run in runs]
        return self._scored(reciprocal_rank_fusion(joined, depth=self._config.depth, k=self._config.fuse_k), start)

    def _words(self, advance: Advance | None = None) -> Run:
        """BM25 over the very same documents and queries, made once and then read from the cache."""
        return cached_bm25_run(
            self.data.test,
            self._depth,
            self._experiment.evaluation.bm25,
            engine=bm25_engine(self._experiment),
            exclude_self=self._dataset.exclude_self,
            progress=(lambda done, total: advance(1)) if advance else None,
        )

    def _embedded(self, advance: Advance) -> RetrievalOutcome:
        """Embedded and searched once for the encoder and the fusion; not at all where both results are kept."""
        if self._outcome is None:
            evaluation = self._experiment.evaluation
            self._outcome = evaluate_retrieval(
                self._retriever.load(),
                self.data.test,
                self._config.model_copy(update={"depth": self._depth}),
                store_dir=Path(self._experiment.output_dir) / "vectors",
                weights=self._retriever.hashes.get("checkpoint"),
                exclude_self=self._dataset.exclude_self,
                token_budget=evaluation.token_budget,
                batch_size=evaluation.batch_size,
                advance=advance,
            )
        return self._outcome

    def _scored(self, run: Run, start: float) -> RetrievalOutcome:
        run = cut_run(run, self._config.depth)
        scores = score_retrieval(self.data.test, run, self._config)
        return RetrievalOutcome(run, scores, 0, time.perf_counter() - start, [])
