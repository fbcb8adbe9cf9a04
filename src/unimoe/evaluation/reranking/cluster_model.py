"""Models that the workers of a cluster hold: the driver cuts no text, loads no weights, and assembles the scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch

from unimoe.cluster.cluster import ClusterWorkers, Handle
from unimoe.cluster.texts import PairTexts, TextTable
from unimoe.cluster.work import nowhere
from unimoe.core.io import hash_json, hash_parts
from unimoe.data.collection import Collection
from unimoe.evaluation.reranking.shards import Candidates, Pair, ShardScores, ShardWork, candidate_pairs
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
        self.tokens: str | None = facts.get("tokens")
        """Tells token ids of pairs from those that another tokenizer or prompt makes; None where there are none."""
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
        self._texts: Handle | None = None

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass."""
        return self._model.budget

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Give the texts of the pairs to the cluster, and let a worker cut the pairs into shards."""
        found = {key for _, key in candidate_pairs(collection, candidates)}
        documents = {key: collection.corpus[key].full_text for key in sorted(found)}
        texts = PairTexts(TextTable.of(collection.queries), TextTable.of(documents))
        self._texts = self._workers.share(texts)
        asked = {query: list(candidates.get(query, ())) for query in collection.queries}
        shards = self._workers.ask("cut", self._part(collection, candidates=asked))
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
        parts = [
            self._part(
                collection,
                shards=[list(map(list, shard))],
                **self._named(_content(collection, shard)),
                items=len(shard),
                label=f"shard {number} of {len(shards)} (query {shard[0][0]!r}, document {shard[0][1]!r}, and on)",
            )
            for number, shard in enumerate(shards, start=1)
        ]
        scores: list[float] = []
        times, budgets = [0.0], [self.token_budget or 0]
        for *found, seconds, budget in (reply.tolist() for reply in self._workers.compute("rerank", parts, nowhere)):
            if advance:
                advance(len(found))
            scores += found
            times.append(seconds)
            budgets.append(int(budget))
        return ShardScores(scores, math.fsum(times), min(filter(None, budgets), default=None))

    def _named(self, content: str) -> dict[str, str]:
        """Return the hash of a shard's texts, and that of its token ids."""
        tokens = self._model.tokens
        return {"content": content} | ({"tokens": hash_json([tokens, content, self.options])} if tokens else {})

    def _part(self, collection: Collection, **content: Any) -> dict[str, Any]:
        return {"name": collection.name, "options": self.options, "shared": self._texts, **content}


def _content(collection: Collection, shard: Sequence[Pair]) -> str:
    texts = ((collection.queries[query], collection.corpus[document].full_text) for query, document in shard)
    return hash_parts(text for pair in texts for text in pair)
