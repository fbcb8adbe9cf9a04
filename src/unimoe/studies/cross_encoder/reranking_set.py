"""Candidates of a first stage, and their reranking by a cross-encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from unimoe.data.catalog import result_name
from unimoe.data.collection import Collection
from unimoe.errors import DataError, InputError
from unimoe.io import hash_json
from unimoe.studies.cross_encoder.model import score_pairs
from unimoe.trec import Run

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


@dataclass(frozen=True)
class RerankingSet:
    """A collection with the candidates to be reranked.

    Attributes:
        name: in the catalogue.
        collection: queries, judgments and corpus.
        candidates: query id to ``{document id: first-stage score}``.
        first_stage: where they come from, with parameters.
    """

    name: str
    collection: Collection
    candidates: Run
    first_stage: str

    @cached_property
    def dataset(self) -> str:
        """What results call it."""
        return result_name(self.name)

    @property
    def pairs(self) -> int:
        """Pairs of query and document."""
        return sum(map(len, self.candidates.values()))

    @cached_property
    def content_hash(self) -> str:
        """Content hash of collection and candidates."""
        return hash_json([self.collection.content_hash, self.candidates])


def rerank(
    model: CrossEncoder, data: RerankingSet, batch_size: int, advance: Callable[[int], None] | None = None
) -> Run:
    """The candidates of every query with the model's logits.

    Args:
        model: a cross-encoder of one label.
        data: what is reranked.
        batch_size: pairs of one forward pass.
        advance: called with the number of pairs done.

    Raises:
        DataError: a score is not finite; names query and document.
    """
    places = [(query, document) for query in data.collection.queries for document in data.candidates.get(query, {})]
    pairs = [(data.collection.queries[q], data.collection.corpus[d].full_text) for q, d in places]
    try:
        scores = score_pairs(model, pairs, batch_size, advance)
    except InputError as error:
        query, document = places[error.index]
        raise DataError(f"{data.name}, query {query!r}, document {document!r}: {error.reason}") from None
    run: Run = {query: {} for query in data.collection.queries}
    for (query, document), score in zip(places, scores, strict=True):
        run[query][document] = score
    return run
