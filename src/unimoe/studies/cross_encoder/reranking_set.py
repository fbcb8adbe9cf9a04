"""Candidates of a first stage, and the classic cross-encoder that reranks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from unimoe.data.catalog import result_name
from unimoe.data.collection import Collection
from unimoe.evaluation.shards import Candidates, Pair, candidate_pairs, pair_texts
from unimoe.io import hash_json
from unimoe.models.embedder import Advance
from unimoe.models.pair_model import TextPair
from unimoe.studies.cross_encoder.model import score_pairs
from unimoe.trec import Run

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_SHARD_BATCHES = 64
"""Batches of a shard; a multiple of the 16 that ``score_pairs`` sorts at a time, so that shards change no batch."""


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

    @cached_property
    def content_hash(self) -> str:
        """Content hash of collection and candidates."""
        return hash_json([self.collection.content_hash, self.candidates])


class CrossEncoderReranker:
    """Scores pairs by a cross-encoder's logit; a ``Reranker``.

    Args:
        model: a cross-encoder of one label.
        batch_size: pairs of one forward pass.
    """

    token_budget = None

    def __init__(self, model: CrossEncoder, batch_size: int) -> None:
        self._model, self._batch_size = model, batch_size

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Cut by falling length, so that pairs of similar length share a batch."""
        pairs = list(candidate_pairs(collection, candidates))
        lengths = [sum(map(len, texts)) for texts in pair_texts(collection, pairs)]
        order = sorted(range(len(pairs)), key=lambda index: -lengths[index])
        size = _SHARD_BATCHES * self._batch_size
        return [[pairs[index] for index in order[begin : begin + size]] for begin in range(0, len(order), size)]

    def prepare(self, pairs: Sequence[TextPair]) -> Sequence[TextPair]:
        """Return the pairs unchanged: sentence-transformers tokenises them batch by batch."""
        return pairs

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return no id: sentence-transformers cuts the longer side of a pair."""
        return []

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the logit of each pair."""
        return score_pairs(self._model, prepared, self._batch_size, advance)
