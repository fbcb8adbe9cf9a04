"""The candidates of every query, with embeddings and labels, for training, choice and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.core.io import hash_parts
from unimoe.core.trec import Run, head, ranked
from unimoe.data.collection import Collection
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import search
from unimoe.retrieval.embeddings import Embedded
from unimoe.studies.heads.config import PoolConfig


@dataclass(frozen=True)
class Pools:
    """Queries ``(B, D)`` and the documents to rank for each ``(B, P, D)``, as the frozen encoder embeds them.

    Each pool is in descending order of document ids, so that ties break as the evaluator breaks them. ``valid``
    ``(B, P)`` is False where a pool is padded; None where none is.
    """

    queries: Tensor
    documents: Tensor
    valid: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class PoolBatch(Pools):
    """Some queries of a ``PoolSet``: their indices in it, and its fields for them."""

    places: list[int]
    valid: Tensor
    grades: Tensor
    ranks: Tensor


@dataclass(frozen=True)
class PoolSet:
    """The pools of Q queries, padded to P documents; a pool is ordered by document id, descending.

    That is how ties break in trec_eval: of two documents with equal scores the first is ranked higher.

    Attributes:
        name: ``train``, ``dev`` or ``test``, for messages.
        query_ids: Q ids.
        document_ids: for each query the ids of its pool.
        queries: embeddings ``(Q, D)`` float32.
        documents: embeddings ``(N, D)`` float32 of all documents of any pool.
        rows: row of ``documents`` at each place ``(Q, P)``; 0 where padded.
        valid: whether a place is a document, ``(Q, P)``.
        grades: its grade ``(Q, P)`` float32; 0 for unjudged documents and padding.
        judged: for each query all judged grades above 0, in the pool or not: they make the ideal ranking.
        ranks: rank of each document in the pool's source, from 1, ``(Q, P)``; 0 where padded. Injected positives come
            last.
        qrels: the judgments.
        without_positive: queries with no relevant document in their pool, sorted. They count in dev and test, where no
            head can help them; training leaves them out.
        relevance_level: the lowest grade that binary metrics count as relevant.
        recency: of each document ``(Q, P)``, 0 for the oldest of all pools, 1 for the newest; None without dates.
    """

    name: str
    query_ids: list[str]
    document_ids: list[list[str]]
    queries: Tensor
    documents: Tensor
    rows: Tensor
    valid: Tensor
    grades: Tensor
    judged: list[Tensor]
    ranks: Tensor
    qrels: Mapping[str, Mapping[str, int]]
    without_positive: list[str]
    relevance_level: int = 1
    recency: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.query_ids)

    def batch(self, places: Sequence[int]) -> PoolBatch:
        """Return the queries at these indices."""
        chosen = torch.as_tensor(places, device=self.rows.device)
        return PoolBatch(
            places=list(places),
            queries=self.queries[chosen],
            documents=self.documents[self.rows[chosen]],
            valid=self.valid[chosen],
            grades=self.grades[chosen],
            ranks=self.ranks[chosen],
        )

    def run(self, scores: Tensor) -> Run:
        """Return scores ``(Q, P)`` as a run: query id to ``{document id: score}``."""
        values = scores.detach().float().cpu().tolist()
        return {
            query_id: dict(zip(ids, row[: len(ids)], strict=True))
            for query_id, ids, row in zip(self.query_ids, self.document_ids, values, strict=True)
        }


def candidates_of(
    collection: Collection,
    config: PoolConfig,
    queries: Embedded,
    documents: Embedded,
    *,
    inject: bool,
) -> Run:
    """Return the pool of every judged query of a collection, as a run of its source.

    ``inject`` adds positives that the source did not find, for training alone: dev and test pools are those of a real
    first stage.
    """
    if config.source == "bm25":
        found = bm25_run(collection, config.depth, config.bm25, cached=True)
        run = {query_id: found[query_id] for query_id in collection.qrels}
    else:
        ids = list(collection.qrels)
        left_out = {query_id: collection.left_out(query_id) for query_id in ids}
        run = search(queries.of(ids), ids, documents.vectors, documents.ids, config.depth, excluded=left_out)
    if not inject:
        return run
    return {query_id: _with_positives(scores, collection, query_id) for query_id, scores in run.items()}


def pool_set(
    name: str, collection: Collection, candidates: Run, queries: Embedded, documents: Embedded, *, training: bool
) -> PoolSet:
    """Return the pools of the judged queries as tensors; ``name`` is the split's, for messages.

    ``training`` leaves out queries with no relevant document in their pool. In dev and test they stay, and count 0.
    """
    lacking = sorted(
        query_id
        for query_id, grades in collection.qrels.items()
        if not any(grade > 0 and document_id in candidates[query_id] for document_id, grade in grades.items())
    )
    left_out = {*lacking} if training else set[str]()
    kept = [query_id for query_id in sorted(collection.qrels) if query_id not in left_out]
    if len(lacking) == len(collection.qrels) and name != "test":
        raise DataError(
            f"{collection.name}, {name}: no query has a relevant document in its pool; raise pools.depth, "
            "or take another pools.source"
        )
    pools = [sorted(candidates[query_id], reverse=True) for query_id in kept]
    used = sorted({document_id for pool in pools for document_id in pool})
    row_of = {document_id: row for row, document_id in enumerate(used)}
    width = max(1, *map(len, pools))
    rows, valid = torch.zeros(len(kept), width, dtype=torch.long), torch.zeros(len(kept), width, dtype=torch.bool)
    grades, ranks = torch.zeros(len(kept), width), torch.zeros(len(kept), width, dtype=torch.long)
    for place, (query_id, pool) in enumerate(zip(kept, pools, strict=True)):
        judged, rank_of = collection.qrels[query_id], {d: r for r, d in enumerate(ranked(candidates[query_id]), 1)}
        rows[place, : len(pool)] = torch.tensor([row_of[document_id] for document_id in pool], dtype=torch.long)
        valid[place, : len(pool)] = True
        grades[place, : len(pool)] = torch.tensor([max(0, judged.get(d, 0)) for d in pool], dtype=torch.float32)
        ranks[place, : len(pool)] = torch.tensor([rank_of[document_id] for document_id in pool], dtype=torch.long)
    return PoolSet(
        name=name,
        query_ids=kept,
        document_ids=pools,
        queries=torch.from_numpy(queries.of(kept)),
        documents=torch.from_numpy(documents.of(used)) if used else torch.zeros(1, documents.vectors.shape[1]),
        rows=rows,
        valid=valid,
        grades=grades,
        judged=[torch.tensor([g for g in collection.qrels[q].values() if g > 0], dtype=torch.float32) for q in kept],
        ranks=ranks,
        qrels={query_id: collection.qrels[query_id] for query_id in kept},
        without_positive=lacking,
        relevance_level=collection.relevance_level,
    )


def _with_positives(scores: Mapping[str, float], collection: Collection, query_id: str) -> dict[str, float]:
    """Put positives of the corpus in place of the pool's last negatives, until half of it is positive.

    Its size does not change. A query with more positives keeps those that the source found, then gets others by a hash
    of both ids: a pool without negatives teaches nothing.
    """
    positives = {d for d, g in collection.qrels[query_id].items() if g > 0 and d in collection.corpus}
    found = positives & scores.keys()
    room = (len(scores) + 1) // 2 - len(found)
    added = sorted(positives - found, key=lambda d: hash_parts([query_id, d]))[: max(0, room)]
    negatives = {d: s for d, s in scores.items() if d not in positives}
    kept = head(negatives, max(0, len(scores) - len(found) - len(added)))
    last = min(scores.values(), default=0.0) - 1.0
    return {d: s for d, s in scores.items() if d in kept or d in found} | dict.fromkeys(added, last)
