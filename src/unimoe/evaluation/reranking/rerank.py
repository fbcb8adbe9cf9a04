"""Reranks a run: a score for every candidate, in shards of this process, of others, or of a server."""

from __future__ import annotations

from typing import Unpack

from unimoe.core.errors import DataError
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.evaluation.reranking.shards import (
    Candidates,
    Reranker,
    ShardScores,
    ShardWork,
    candidate_pairs,
    score_shards,
)


def rerank_run(
    reranker: Reranker, collection: Collection, candidates: Candidates, **work: Unpack[ShardWork]
) -> tuple[Run, ShardScores]:
    """Rerank the candidates of every query of a collection.

    Args:
        reranker: scores pairs of texts.
        collection: queries and documents.
        candidates: a run: query id to ``{document id: first-stage score}``.
        work: see ``ShardWork``.

    Returns:
        The new run; and the scores shard by shard, with seconds.

    Raises:
        DataError: a candidate is no document of the collection, or a score is not finite.
    """
    _refuse_unknown(collection, candidates)
    shards = reranker.cut(collection, candidates)
    found = score_shards(reranker, collection, shards, **work)
    scores = dict(zip((pair for shard in shards for pair in shard), found.scores, strict=True))
    run: Run = {query: {} for query in collection.queries}
    for query, document in candidate_pairs(collection, candidates):
        if (query, document) not in scores:
            raise DataError(
                f"query {query!r}, document {document!r}: in no shard of the reranker's cut(); return every pair once"
            )
        run[query][document] = scores[query, document]
    return run, found


def _refuse_unknown(collection: Collection, candidates: Candidates) -> None:
    for query_id, document_id in candidate_pairs(collection, candidates):
        if document_id not in collection.corpus:
            raise DataError(
                f"candidate {document_id!r} of query {query_id!r} is no document of {collection.name}; "
                "give a run made on this corpus"
            )
