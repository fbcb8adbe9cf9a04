"""Which collections a tier holds, and how much of each is scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from unimoe.config import BM25Config, Experiment
from unimoe.data.catalog import BEIR_NAMES, load_collection
from unimoe.data.collection import Collection
from unimoe.io import hash_json
from unimoe.retrieval.bm25 import cached_bm25_run, first_stage_name
from unimoe.trec import Run, ranked

TierName = Literal["bundled", "fast", "full"]

FAST_TIER = ("scifact", "nfcorpus", "fiqa")

_OWN_IDS = frozenset({"arguana", "quora"})
"""Collections whose queries are documents too: the document named like the query is no answer."""

_SCORED_SPLIT = {"msmarco": "dev"}
"""Where the split that is reported is not called test."""

_POOL_SEED = 0
_FULL_DEPTH = 100


@dataclass(frozen=True)
class Dataset:
    """One collection of a tier, and how much of it is scored.

    Attributes:
        collection: its name in the catalogue, and in results.
        split: the split scored.
        depth: first-stage candidates reranked per query.
        queries: judged queries scored, a fixed sample; null for all.
        pool: documents of dense retrieval, a fixed sample that holds every relevant one; null for the whole corpus.
        bm25: the first stage's parameters.
        max_queries: the cut asked for by hand; null without one.
    """

    collection: str
    split: str
    depth: int
    queries: int | None
    pool: int | None
    bm25: BM25Config
    max_queries: int | None = None

    @property
    def exclude_self(self) -> bool:
        """Whether a document named like the query is left out."""
        return self.collection in _OWN_IDS


def tier_datasets(experiment: Experiment, tier: TierName, max_queries: int | None = None) -> list[Dataset]:
    """The datasets of a tier.

    Args:
        experiment: its ``evaluation`` section sets the bundled tier, depth and BM25.
        tier: ``bundled``, ``fast`` or ``full``.
        max_queries: score at most this many queries of each.
    """
    evaluation = experiment.evaluation
    if tier == "bundled":
        spec = evaluation.bundled
        datasets = [Dataset(spec.collection, spec.split, spec.depth, spec.queries, spec.pool, evaluation.bm25)]
    else:
        datasets = [
            Dataset(name, _SCORED_SPLIT.get(name, "test"), evaluation.depth, None, None, evaluation.bm25)
            for name in (FAST_TIER if tier == "fast" else BEIR_NAMES)
        ]
    if max_queries is None:
        return datasets
    return [replace(dataset, max_queries=max_queries) for dataset in datasets]


class LoadedDataset:
    """A dataset in memory: what is scored, and the first stage's candidates.

    Raises:
        UnavailableError: the collection cannot be had here.
        DataError: it is malformed.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._whole = load_collection(dataset.collection, dataset.split)

    @property
    def whole_size(self) -> int:
        """Documents of the whole corpus."""
        return len(self._whole.corpus)

    @property
    def problems(self) -> str:
        """What is odd about the collection, in one line; empty when nothing is."""
        return self._whole.problems.summary()

    @cached_property
    def collection(self) -> Collection:
        """The queries scored, over the whole corpus."""
        limits = [n for n in (self.dataset.queries, self.dataset.max_queries) if n is not None]
        return self._whole.sample_queries(min(limits)) if limits else self._whole

    @cached_property
    def pooled(self) -> Collection:
        """The queries scored, over the documents of dense retrieval."""
        pool = self.dataset.pool
        return self.collection if pool is None or pool >= self.whole_size else self.collection.pool(pool, _POOL_SEED)

    @cached_property
    def first_stage_run(self) -> Run:
        """BM25's best of the whole corpus, at the depth that recall is reported at or deeper."""
        depth = max(self.dataset.depth, _FULL_DEPTH)
        run = cached_bm25_run(self._whole, depth, self.dataset.bm25, exclude_self=self.dataset.exclude_self)
        return {query_id: run[query_id] for query_id in self.collection.queries}

    @cached_property
    def candidates(self) -> Run:
        """What is reranked: BM25's best ``depth`` of every query."""
        return {
            query_id: {document_id: scores[document_id] for document_id in ranked(scores)[: self.dataset.depth]}
            for query_id, scores in self.first_stage_run.items()
        }

    @property
    def first_stage(self) -> str:
        """The first stage by name, with its parameters."""
        return first_stage_name(self.dataset.bm25)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Content hashes of what is scored."""
        return {
            "collection": self.collection.content_hash,
            "pool": self.pooled.corpus_hash,
            "candidates": hash_json(self.candidates),
        }

    @property
    def caveats(self) -> list[str]:
        """Why scores on this dataset are unfit for decisions; empty when they are fit."""
        if self.dataset.max_queries is None or len(self._whole.qrels) <= len(self.collection.qrels):
            return []
        return [f"--max-queries {self.dataset.max_queries}: {len(self._whole.qrels)} queries are judged"]
