"""What a head learns from: the three splits of a collection, embedded by a frozen encoder, as pools."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from unimoe.io import hash_json, hash_parts
from unimoe.models.embedder import Advance, Embedder
from unimoe.retrieval.bm25 import first_stage_name
from unimoe.retrieval.embeddings import Embedded, cached_embeddings
from unimoe.studies.common.splits import Splits, load_splits
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.pools import PoolSet, candidates_of, pool_set
from unimoe.trec import Run


@dataclass(frozen=True)
class HeadData:
    """Pools of the three splits.

    Attributes:
        splits: the collections.
        train, dev, test: their pools.
        candidates: the pools of the test queries, as a run of their source.
        encoder: identity of the frozen encoder.
        prompt: name and hash of its prefixes and lengths.
        first_stage: where the pools come from, as results name it.
        content_hash: of embeddings, pools and labels.
        soft_labels: training candidates that a vote made half relevant.
    """

    splits: Splits
    train: PoolSet
    dev: PoolSet
    test: PoolSet
    candidates: Run
    encoder: str
    prompt: str
    first_stage: str
    content_hash: str
    soft_labels: int = 0

    @property
    def notes(self) -> list[str]:
        """What to know about the pools, a line each."""
        lines = []
        for pools in (self.train, self.dev, self.test):
            if lacking := pools.without_positive:
                named = ", ".join(lacking[:3]) + ", ..." * (len(lacking) > 3)
                fate = "left out" if pools is self.train else "count 0 whatever the head"
                lines.append(f"{pools.name}: {len(lacking)} queries without a relevant document in the pool, {fate}")
                lines[-1] += f" ({named})"
        if self.soft_labels:
            lines.append(f"train: {self.soft_labels} unjudged candidates are half relevant by vote")
        return lines


def load_head_data(config: TrainConfig, embedder: Embedder, advance: Advance | None = None) -> HeadData:
    """Load, embed and pool a collection; embeddings and BM25 runs are kept in the user's cache.

    Args:
        config: ``task``, ``splits``, ``encoder`` and ``pools`` are used.
        embedder: the frozen encoder.
        advance: called with the number of texts embedded.

    Raises:
        DataError: a split has no query, no pool holds a positive, or an embedding is not finite or zero.
        UsageError: no such collection or split.
    """
    splits = load_splits(config.task, config.splits)
    corpus = {key: document.full_text for key, document in splits.train.corpus.items()}
    asked = {key: text for part in splits for key, text in part.queries.items() if key in part.qrels}
    documents = cached_embeddings(embedder, corpus, "document", advance=advance)
    queries = cached_embeddings(embedder, asked, "query", advance=advance)
    pools, runs = {}, {}
    for name, collection in splits._asdict().items():
        runs[name] = candidates_of(collection, config.pools, queries, documents, inject=name == "train")
        pools[name] = pool_set(name, collection, runs[name], queries, documents, training=name == "train")
    data = HeadData(
        splits=splits,
        train=pools["train"],
        dev=pools["dev"],
        test=pools["test"],
        candidates=runs["test"],
        encoder=embedder.base_identity,
        prompt=embedder.prompt_name,
        first_stage=_source_name(config, embedder),
        content_hash=_content_hash(splits, runs, queries, documents),
    )
    return data if config.soft_labels is None else with_soft_labels(data, config)


def with_soft_labels(data: HeadData, config: TrainConfig) -> HeadData:
    """The same data with the votes of ``config.soft_labels`` in the labels of its training queries."""
    from unimoe.studies.heads.eggroll.soft_labels import soften

    train, changed = soften(data.train, data.splits, config)
    content_hash = hash_parts([data.content_hash, train.grades.numpy().tobytes()])
    return replace(data, train=train, soft_labels=changed, content_hash=content_hash)


def to_device(pools: PoolSet, device: torch.device) -> PoolSet:
    """The same pools with their tensors on a device."""
    names = ("queries", "documents", "rows", "valid", "grades", "ranks")
    tensors = {name: getattr(pools, name).to(device) for name in names}
    return replace(pools, judged=[grades.to(device) for grades in pools.judged], **tensors)


def _source_name(config: TrainConfig, embedder: Embedder) -> str:
    if config.pools.source == "bm25":
        return first_stage_name(config.pools.bm25)
    return f"dense({embedder.base_identity})"


def _content_hash(splits: Splits, runs: dict[str, Run], queries: Embedded, documents: Embedded) -> str:
    embedded = hash_parts(vectors.vectors.tobytes() for vectors in (queries, documents))
    return hash_json([[part.content_hash for part in splits], runs, embedded])
