"""Fuses BM25 with an encoder's exact search, as a first stage; both rankings and the vectors are kept in the cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from unimoe.config import FUSION, BM25Config, DenseConfig, FusionConfig
from unimoe.core.console import Steps
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import cache_dir, hash_json
from unimoe.core.trec import Run, head, ranked
from unimoe.data.collection import Collection
from unimoe.models.device import choose_device, choose_dtype, release_memory
from unimoe.models.encoder import META, SentenceEncoder, load_encoder
from unimoe.retrieval.bm25 import bm25_run, cached_run, first_stage_name
from unimoe.retrieval.dense import dense_run
from unimoe.retrieval.embeddings import is_kept, kept_folder


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

    def name(self, depth: int) -> str:
        """Return its name in results, for at least ``depth`` candidates of each query."""
        each = max(self.config.depth, depth)  # each ranking is searched as deep as the fusion is cut, at least
        parts = [first_stage_name(self.bm25), self._encoder, f"depth={each}", f"k={self.config.k}"]
        return f"{FUSION}({','.join(parts)})"

    def run(self, collection: Collection, depth: int, *, exclude_self: bool) -> Run:
        """Rank a collection's documents for each of its queries, and keep the first ``depth``."""
        each = max(self.config.depth, depth)
        words = bm25_run(collection, each, self.bm25, exclude_self=exclude_self, cached=True)
        path = self.path(collection, depth, exclude_self=exclude_self)

        def search() -> Run:
            texts = len(collection.queries) + len(collection.corpus)
            with Steps(1).step(f"first stage {collection.name}: {self.config.encoder.base}", texts) as step:
                found = dense_run(
                    self.load(),
                    collection,
                    DenseConfig(depth=each, cutoffs=[each]),
                    exclude_self=exclude_self,
                    advance=step.advance,
                )
                step.outcome = f"{texts:,} texts embedded"
            release_memory()
            return found

        vectors = cached_run(path, collection, self._encoder, search)
        return reciprocal_rank_fusion([words, vectors], depth=depth, k=self.config.k)

    def path(self, collection: Collection, depth: int, *, exclude_self: bool) -> Path:
        """Return where ``run`` keeps the encoder's ranking; where it exists, nothing has to be embedded."""
        data = [collection.corpus_hash, collection.queries_hash, max(self.config.depth, depth), exclude_self]
        return cache_dir("dense") / f"{hash_json([self._encoder, data])}.trec"

    def holds_vectors(self, collection: Collection) -> bool:
        """Return whether an evaluation has kept the vectors of a collection's documents."""
        return is_kept(kept_folder(self._without_weights, collection.corpus, "document", dtype=self._place[1]))

    def load(self) -> SentenceEncoder:
        """Load the encoder."""
        return load_encoder(self.config.encoder, *self._place)

    @cached_property
    def _place(self) -> tuple[torch.device, torch.dtype]:
        device = self.device or choose_device()
        return device, choose_dtype(device, self.config.encoder.dtype)

    @cached_property
    def _without_weights(self) -> SentenceEncoder:
        try:
            return load_encoder(self.config.encoder, META, torch.float32)
        except (DataError, UsageError) as error:
            raise type(error)(f"evaluation.fusion: {error}") from None

    @cached_property
    def _encoder(self) -> str:
        """Name, hash and dtype of the encoder; the hash is of all that vectors depend on besides texts and dtype."""
        encoder = self._without_weights
        name, _, _ = encoder.base_identity.rpartition("@")
        content = hash_json([encoder.base_identity, encoder.prompt_name])
        return f"{name}@{content},{str(self._place[1]).removeprefix('torch.')}"
