"""Models that the workers of a cluster hold: the driver loads no weights, and assembles the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import torch

from unimoe.cluster.cluster import ClusterWorkers
from unimoe.cluster.work import Part, nowhere
from unimoe.data.collection import Collection
from unimoe.evaluation.reranking.shards import (
    Candidates,
    Pair,
    ShardScores,
    ShardWork,
    candidate_pairs,
    cut_shards,
    shard_characters,
)
from unimoe.models.embedder import Advance, Vectors


class ClusterModel:
    """A model that workers hold; the driver sees what describes it, and lets them encode and score.

    Args:
        workers: those that hold it.
        facts: as ``model_facts`` returns them.
    """

    device = torch.device("cpu")  # of what the driver does with vectors

    def __init__(self, workers: ClusterWorkers, facts: Mapping[str, Any]) -> None:
        self.workers, self.place = workers, facts["place"]
        self.budget: int | None = facts["token_budget"]
        self.logits: bool = facts["logits"]
        self.order: str | None = facts.get("order")
        """What the prompts of a model of token ids begin with; None for models of other kinds."""
        for name in ("base_identity", "prompt_name"):
            if name in facts:
                setattr(self, name, facts[name])
        if "dtype" in facts:
            self.dtype = getattr(torch, facts["dtype"])

    def encode(self, texts: Sequence[str], *, advance: Advance | None = None, **options: Any) -> Vectors:
        """Embed texts; see ``Embedder``. Workers report no batches."""
        vectors: Vectors = self.workers.ask("encode", {"texts": list(texts), "options": options})
        return vectors

    def reranker(self, **options: Any) -> ClusterReranker:
        """Return what scores pairs, with the arguments of ``reranker_of``."""
        return ClusterReranker(self, options)


class ClusterReranker:
    """Scores pairs by a model that workers hold; see ``Reranker``."""

    def __init__(self, model: ClusterModel, options: Mapping[str, Any]) -> None:
        self._model, self._workers, self.options = model, model.workers, dict(options)

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass."""
        return self._model.budget

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Cut the pairs as the model's reranker does: here where it is one of token ids, else by a worker."""
        if self._model.order is not None:
            return cut_shards(collection, candidates, self._model.order, shard_characters(self._model.place))
        asked = {query: list(candidates.get(query, ())) for query in collection.queries}
        part = self._part(collection, [*candidate_pairs(collection, candidates)]) | {"candidates": asked}
        shards = self._workers.ask("cut", part | {"queries": dict(collection.queries)})
        return [[(query, document) for query, document in shard] for shard in shards]

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document."""
        found: list[str] = self._workers.ask("truncated", {"queries": dict(queries), "options": self.options})
        return found

    def prepare(self, pairs: Sequence[Any]) -> Sequence[Any]:
        """Return the pairs: workers tokenise them."""
        return pairs

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> Sequence[float]:
        """Let a worker score pairs of texts."""
        found: list[float] = self._workers.ask("score", {"pairs": list(prepared), "options": self.options})
        return found

    def score_shards(
        self, collection: Collection, shards: Sequence[Sequence[Pair]], **work: Unpack[ShardWork]
    ) -> ShardScores:
        """Score the shards that ``cut`` made, each as a unit of the cluster's store."""
        advance = work.get("advance")

        def parts() -> Iterator[Part]:
            for number, shard in enumerate(shards, start=1):
                label = f"shard {number} of {len(shards)} (query {shard[0][0]!r}, document {shard[0][1]!r}, and on)"
                content = {"shards": [list(map(list, shard))], "items": len(shard), "label": label}
                yield self._part(collection, shard) | content

        scores: list[float] = []
        times, budgets = [0.0], [self.token_budget or 0]
        for *found, seconds, budget in (reply.tolist() for reply in self._workers.compute("rerank", parts(), nowhere)):
            if advance:
                advance(len(found))
            scores += found
            times.append(seconds)
            budgets.append(int(budget))
        return ShardScores(scores, math.fsum(times), min(filter(None, budgets), default=None))

    def _part(self, collection: Collection, pairs: Sequence[Pair]) -> Part:
        """Return a part with the texts of some pairs."""
        return {
            "name": collection.name,
            "options": self.options,
            "queries": {query: collection.queries[query] for query, _ in pairs},
            "corpus": {document: collection.corpus[document].full_text for _, document in pairs},
        }
