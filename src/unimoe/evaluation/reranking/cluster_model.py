"""Models that the workers of a cluster hold: the driver loads no weights, and assembles scores and vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from unimoe.cluster.cluster import ClusterWorkers
from unimoe.cluster.worker import Part
from unimoe.core.errors import InputError
from unimoe.data.collection import Collection
from unimoe.evaluation.reranking.shards import Cut, Reranker, Shards, ShardScores, ShardStore, named_pairs, pair_texts
from unimoe.models.embedder import Advance, Vectors
from unimoe.retrieval.embeddings import Encode, Spread, cut_units

ENCODED_CHARACTERS = 2**18
"""Text of a part of ``encode_texts``: a few forward passes of a GPU, seconds of a small model on two cores."""


class ClusterModel:
    """A model that workers hold; the driver sees the ``facts`` that describe it, and lets them encode and score."""

    device = torch.device("cpu")  # of what the driver does with vectors

    def __init__(self, workers: ClusterWorkers, facts: Mapping[str, Any]) -> None:
        self.workers, self.place = workers, facts["place"]
        self.budget: int | None = facts["token_budget"]
        self.logits: bool = facts["logits"]
        self.cut_by: Cut = facts["cut_by"]
        for name in ("base_identity", "prompt_name"):
            if name in facts:
                setattr(self, name, facts[name])
        if "dtype" in facts:
            self.dtype = getattr(torch, facts["dtype"])

    def encode(self, texts: Sequence[str], *, advance: Advance | None = None, **options: Any) -> Vectors:
        """Embed texts; see ``Embedder``. Workers report no batches."""
        vectors: Vectors = self.workers.ask("encode", {"texts": list(texts), "options": options})
        return vectors


class ClusterReranker(Reranker):
    """Scores pairs by a model that workers hold; ``options`` are the arguments of ``reranker_of`` there."""

    def __init__(self, model: ClusterModel, **options: Any) -> None:
        self._model, self.options = model, options

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass."""
        return self._model.budget

    @property
    def cut_by(self) -> Cut:
        """How the model's reranker cuts pairs."""
        return self._model.cut_by

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document."""
        found: list[str] = self._model.workers.ask("truncated", {"queries": dict(queries), "options": self.options})
        return found

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> Sequence[float]:
        """Score pairs of texts as one shard."""
        (reply,) = self._model.workers.compute("rerank", [self._part(prepared)])
        scores: list[float] = reply.tolist()[:-2]
        return scores

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score the shards that ``cut`` made, each as a unit of the cluster's store."""

        def parts() -> Iterator[Part]:
            for number, shard in enumerate(shards, start=1):
                label = f"shard {number} of {len(shards)} (query {shard[0][0]!r}, document {shard[0][1]!r}, and on)"
                yield {**self._part(pair_texts(collection, shard)), "items": len(shard), "label": label}

        scores: list[float] = []
        times, budgets = [0.0], [self.token_budget or 0]
        replies = self._model.workers.compute("rerank", parts())
        for shard in shards:
            with named_pairs(collection, shard):
                *found, seconds, budget = next(replies).tolist()
            if advance:
                advance(len(found))
            scores += found
            times.append(seconds)
            budgets.append(int(budget))
        wall_time = math.fsum(times) / self._model.workers.size
        return ShardScores(scores, wall_time, min(filter(None, budgets), default=None))

    def _part(self, pairs: Sequence[tuple[str, str]]) -> Part:
        """Return a part with each text of some pairs once, as a shard repeats a query or a document."""
        texts = {text: number for number, text in enumerate(dict.fromkeys(chain.from_iterable(pairs)))}
        numbers = [[texts[query], texts[document]] for query, document in pairs]
        return {"options": self.options, "texts": list(texts), "pairs": numbers}


def spread_over(model: Any, **options: Any) -> Spread:
    """Return what embeds units of texts: the workers that hold a model, where they do, or the function of this process.

    ``options`` are the arguments of ``Embedder.encode`` there, which the function has too.
    """
    if not isinstance(model, ClusterModel):
        return map
    workers = model.workers
    return lambda _, units: workers.compute("encode", ({"texts": list(unit), "options": options} for unit in units))


def encode_texts(encode: Encode, texts: Sequence[str], spread: Spread, advance: Advance | None = None) -> Vectors:
    """Embed N texts in memory, ``(N, D)``, in units that depend on the texts alone; report every unit.

    An ``InputError`` carries the index in ``texts`` of one that cannot be embedded.
    """
    units = [np.sort(unit) for unit in cut_units([len(text) for text in texts], ENCODED_CHARACTERS)]
    found: list[Vectors] = []
    try:
        for vectors in spread(encode, ([texts[row] for row in unit] for unit in units)):
            if advance:
                advance(len(vectors))
            found.append(vectors)
    except InputError as error:
        raise InputError(int(units[len(found)][error.index]), error.reason) from None
    if len(found) < 2:
        return found[0] if found else encode([])
    whole = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
    whole[np.concatenate(units)] = np.concatenate(found)
    return whole
