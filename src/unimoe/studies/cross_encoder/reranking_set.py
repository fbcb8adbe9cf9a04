"""Candidates of a first stage that a cross-encoder reranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.catalog import result_name
from unimoe.data.collection import Collection


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
        """Its name in results."""
        return result_name(self.name)

    @property
    def pairs(self) -> int:
        """Pairs of query and document."""
        return sum(map(len, self.candidates.values()))

    @property
    def can_be_ranked(self) -> bool:
        """Whether any query has a relevant document among its candidates."""
        qrels, found = self.collection.qrels, self.candidates
        return any(grade > 0 and key in found.get(q, {}) for q in qrels for key, grade in qrels[q].items())

    @cached_property
    def content_hash(self) -> str:
        """Content hash of collection and candidates."""
        return hash_json([self.collection.content_hash, self.candidates])
