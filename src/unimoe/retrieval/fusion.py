"""Fuses BM25 with a model's exact search, as a first stage; each of the two rankings is kept in the user's cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from unimoe.config import FUSION, BM25Config, FusionConfig
from unimoe.core.trec import Run, head, ranked
from unimoe.data.collection import Collection
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.retrieval.model_search import ModelSearch


def reciprocal_rank_fusion(runs: Sequence[Mapping[str, Mapping[str, float]]], *, depth: int, k: int = 60) -> Run:
    """Fuse runs by reciprocal rank: a document's score is the sum of ``1 / (k + rank)`` over the runs that found it.

    Ranks count from 1, in trec_eval's order: by score, ties by document id descending. The order of the runs does not
    matter. From Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual rank
    learning methods", SIGIR 2009, whose k is 60.

    Args:
        runs: at least one.
        depth: documents kept per query, at most; the runs are read whole.
        k: the larger, the less the first ranks count; at least 0.
    """
    fused: Run = {}
    for query_id in dict.fromkeys(query_id for run in runs for query_id in run):
        shares: dict[str, list[float]] = {}
        for run in runs:
            for rank, document_id in enumerate(ranked(run.get(query_id, {})), start=1):
                shares.setdefault(document_id, []).append(1 / (k + rank))
        # fsum rounds once, so that the order of the runs cannot change the last bit.
        fused[query_id] = head({document_id: math.fsum(parts) for document_id, parts in shares.items()}, depth)
    return fused


@dataclass(frozen=True)
class Hybrid:
    """A first stage of two rankings; the encoder computes on ``device``, by default the best of this machine."""

    config: FusionConfig
    bm25: BM25Config
    device: torch.device | None = None

    @cached_property
    def search(self) -> ModelSearch:
        """The encoder's ranking."""
        return ModelSearch(self.config.encoder, f"evaluation.{FUSION}.encoder", self.device)

    def each(self, depth: int) -> int:
        """Return how deep both rankings are: as the fusion is cut, at least."""
        return max(self.config.depth, depth)

    def name(self, depth: int) -> str:
        """Return its name in results, for at least ``depth`` candidates of each query."""
        parts = [first_stage_name(self.bm25), self.search.name, f"depth={self.each(depth)}", f"k={self.config.k}"]
        return f"{FUSION}({','.join(parts)})"

    def run(self, collection: Collection, depth: int, *, exclude_self: bool) -> Run:
        """Rank a collection's documents for each of its queries, and keep the first ``depth``."""
        each = self.each(depth)
        words = bm25_run(collection, each, self.bm25, exclude_self=exclude_self, cached=True)
        vectors = self.search.run(collection, each, exclude_self=exclude_self)
        return reciprocal_rank_fusion([words, vectors], depth=depth, k=self.config.k)
