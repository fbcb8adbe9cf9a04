"""The data of a head's training: three splits of a collection as pools of embeddings, and the documents' dates."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import torch
from torch import Tensor

from unimoe.checks import Check
from unimoe.core.errors import DataError, first_few
from unimoe.core.io import hash_json, hash_parts
from unimoe.core.trec import Run, text_lines
from unimoe.data.catalog import available
from unimoe.data.sources.beir_sets import folder_of
from unimoe.models.embedder import Advance, Embedder
from unimoe.retrieval.bm25 import first_stage_name
from unimoe.retrieval.embeddings import cached_embeddings
from unimoe.studies.common.splits import Splits, load_splits, task_collection, with_checks
from unimoe.studies.heads.config import SoftLabelConfig, TrainConfig
from unimoe.studies.heads.pools import PoolSet, candidates_of, pool_set
from unimoe.training.splits import SHARED


@dataclass(frozen=True)
class HeadData:
    """Pools of the three splits.

    Attributes:
        config: from which they were made.
        splits: the collections.
        train, dev, test: their pools.
        candidates: the pools of the test queries, as a run of their source.
        encoder: identity of the frozen encoder.
        prompt: name and hash of its prefixes and lengths.
        first_stage: the source of the pools, as results name it.
        content_hash: of embeddings, pools and labels.
        soft_labels: the number of training candidates that a vote made half relevant.
    """

    config: TrainConfig
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
    _by_votes: dict[str, HeadData] = field(default_factory=dict, repr=False, compare=False)

    @property
    def sizes(self) -> str:
        """The numbers of queries, for progress."""
        return f"{len(self.train):,} queries to train on, {len(self.dev):,} dev, {len(self.test):,} test"

    @property
    def notes(self) -> list[str]:
        """Facts about the pools that a reader of results should know, a line each."""
        lines = []
        for pools in (self.train, self.dev, self.test):
            if lacking := pools.without_positive:
                fate = "left out" if pools is self.train else "count 0 whatever the head"
                lines.append(f"{pools.name}: {len(lacking)} queries without a relevant document in the pool, {fate}")
                lines[-1] += f" ({first_few(lacking)})"
        if self.soft_labels:
            lines.append(f"train: {self.soft_labels} unjudged candidates are half relevant by vote")
        return lines

    def with_votes(self, settings: SoftLabelConfig | None) -> HeadData:
        """Return the data of a training with these soft labels; voters are asked once, on the device of ``config``."""
        if settings is None:
            return self
        key = settings.model_dump_json()
        if key not in self._by_votes:
            from unimoe.studies.heads.eggroll.soft_labels import soften

            config = self.config.model_copy(update={"soft_labels": settings})
            train, changed = soften(self.train, self.splits, config)
            content_hash = hash_parts([self.content_hash, train.grades.numpy().tobytes()])
            self._by_votes[key] = replace(self, train=train, soft_labels=changed, content_hash=content_hash)
        return self._by_votes[key]


def load_head_data(config: TrainConfig, embedder: Embedder, advance: Advance | None = None) -> HeadData:
    """Load, embed and pool a collection, without soft labels; embeddings and BM25 runs are kept in the user's cache.

    Of the config, ``task``, ``splits``, ``drop_shared`` and ``pools`` are used. ``advance`` is called with numbers of
    texts embedded.
    """
    splits = load_splits(config.task, config.splits, drop_shared=config.drop_shared)
    said = embedder.caveats_on(splits.test.judged_queries)
    known = [Check(SHARED, "caveat", f"the encoder: {line}") for line in said]
    splits = with_checks(splits, known)
    corpus = {key: document.full_text for key, document in splits.train.corpus.items()}
    judged = {key: text for part in splits for key, text in part.queries.items() if key in part.qrels}
    documents = cached_embeddings(embedder, corpus, "document", advance=advance)
    queries = cached_embeddings(embedder, judged, "query", advance=advance)
    pools, runs = {}, {}
    for name, collection in splits._asdict().items():
        runs[name] = candidates_of(collection, config.pools, queries, documents, inject=name == "train")
        pools[name] = pool_set(name, collection, runs[name], queries, documents, training=name == "train")
    embedded = hash_parts(v.vectors.tobytes() for v in (queries, documents))
    by_words = first_stage_name(config.pools.bm25.in_language(splits.test.language))
    return HeadData(
        config=config,
        splits=splits,
        train=pools["train"],
        dev=pools["dev"],
        test=pools["test"],
        candidates=runs["test"],
        encoder=embedder.base_identity,
        prompt=embedder.prompt_name,
        first_stage=by_words if config.pools.source == "bm25" else f"dense({embedder.base_identity})",
        content_hash=hash_json([[part.content_hash for part in splits], runs, embedded]),
    )


def to_device(pools: PoolSet, device: torch.device) -> PoolSet:
    """Move the tensors of pools to a device."""
    tensors: dict[str, Any] = {name: part.to(device) for name, part in vars(pools).items() if isinstance(part, Tensor)}
    return replace(pools, judged=[grades.to(device) for grades in pools.judged], **tensors)


def recency_of(pools: PoolSet, task: str) -> Tensor:
    """Return ``PoolSet.recency`` by the dates in the collection's ``corpus.jsonl``, for the objective ``freshness``.

    A date is ``"metadata": {"date": "2020-05-31"}`` in a document's line. A time behind it is ignored; a year or a
    month alone is its first day.
    """
    name = task_collection(task)
    place = available(name)
    if place is None or place.is_file():
        place = None if ":" in name else folder_of(name)
    corpus = [] if place is None else [place / "corpus.jsonl", place / "corpus.jsonl.gz"]
    days: dict[str, int] = {}
    for file in [file for file in corpus if file.is_file()][:1]:
        for number, line in text_lines(file):
            record = json.loads(line)
            metadata = record.get("metadata")
            text = str(metadata.get("date") or "").strip() if isinstance(metadata, dict) else ""
            try:
                if text:
                    days.setdefault(str(record["_id"]), date.fromisoformat(f"{text[:10]}-01-01"[:10]).toordinal())
            except ValueError:
                raise DataError(
                    f"{file}:{number}: date {text!r} is no date such as 2020-05-31, 2020-05 or 2020; fix or remove it"
                ) from None
    undated = {key for pool in pools.document_ids for key in pool} - days.keys()
    if undated:
        raise DataError(
            f"{name}: objectives.freshness needs dates, and {len(undated):,} documents of the pools have none "
            f"({first_few(sorted(undated))}); leave it out, or write "
            '"metadata": {"date": "2020-05-31"} in the lines of corpus.jsonl'
        )
    found = torch.zeros(pools.rows.shape)
    for row, ids in enumerate(pools.document_ids):
        found[row, : len(ids)] = torch.tensor([float(days[key]) for key in ids])
    oldest, newest = found[pools.valid].aminmax()
    return (found - oldest) / (newest - oldest).clamp(min=1)
