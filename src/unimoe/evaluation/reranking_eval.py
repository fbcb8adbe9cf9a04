"""Reranking: the model's yes/no judgement of every first-stage candidate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from unimoe.data.collection import Collection
from unimoe.errors import DataError
from unimoe.metrics import Scores, score_run
from unimoe.models.unimodel import Advance, UnimodelForExp1
from unimoe.trec import Run


@dataclass(frozen=True)
class RerankingOutcome:
    """What reranking found on one collection.

    Attributes:
        run: query id to ``{document id: logit gap}``.
        scores: the measures of the reranked run.
        pairs: pairs scored.
        seconds: time of tokenising and scoring.
    """

    run: Run
    scores: Scores
    pairs: int
    seconds: float


def rerank_collection(
    model: UnimodelForExp1,
    collection: Collection,
    candidates: Mapping[str, Mapping[str, float]],
    *,
    token_budget: int | None = None,
    batch_size: int | None = None,
    advance: Advance | None = None,
) -> RerankingOutcome:
    """Rerank the candidates of every query of a collection.

    Args:
        model: the reranker.
        collection: queries, documents and judgments.
        candidates: a run: query id to ``{document id: first-stage score}``.
        token_budget: padded tokens of one forward pass; by default what suits the device.
        batch_size: pairs of one forward pass, instead of the budget.
        advance: called with the number of pairs done, after each batch.

    Raises:
        DataError: a candidate is no document of the collection, or a score is not finite.
    """
    keys = [(query_id, document_id) for query_id in collection.queries for document_id in candidates.get(query_id, {})]
    _refuse_unknown(collection, keys)
    start = time.perf_counter()
    gaps = model.rerank(
        [(collection.queries[query_id], collection.corpus[document_id].full_text) for query_id, document_id in keys],
        output="gap",
        token_budget=token_budget,
        batch_size=batch_size,
        advance=advance,
    )
    run: Run = {query_id: {} for query_id in collection.queries}
    for (query_id, document_id), gap in zip(keys, gaps.tolist(), strict=True):
        run[query_id][document_id] = gap
    return RerankingOutcome(run, score_run(collection.qrels, run), len(keys), time.perf_counter() - start)


def _refuse_unknown(collection: Collection, keys: list[tuple[str, str]]) -> None:
    for query_id, document_id in keys:
        if document_id not in collection.corpus:
            raise DataError(
                f"candidate {document_id!r} of query {query_id!r} is no document of {collection.name}; "
                "give a run made on this corpus"
            )
