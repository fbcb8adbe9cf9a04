"""Pools whose best head is known: the first inputs tell relevant documents, all others are louder noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from unimoe.data.collection import Collection
from unimoe.retrieval.embeddings import Embedded
from unimoe.studies.heads.eggroll.noise import Perturbations
from unimoe.studies.heads.pools import PoolSet, pool_set

SIGNALS, INPUTS = 4, 24
P = TypeVar("P", bound=Perturbations)


def toy_pools(
    queries: int = 16, size: int = 12, *, seed: int = 0, padded: bool = True, noise: float = 1.5, relevant: int = 1
) -> PoolSet:
    """Pools in which the first documents of a shuffled order share the query's signal.

    With ``padded``, every third pool is two documents shorter. ``noise`` is the deviation of the inputs that say
    nothing; the signal's is 1.
    """
    generator = torch.Generator().manual_seed(seed)
    asked = torch.randn(queries, INPUTS, generator=generator)
    documents = torch.randn(queries, size, INPUTS, generator=generator)
    qrels: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    vectors: dict[str, Tensor] = {}
    for place in range(queries):
        length = size - 2 if padded and place % 3 == 0 else size
        order, ranks = (torch.randperm(length, generator=generator) for _ in range(2))
        blur = 0.3 * torch.randn(relevant, SIGNALS, generator=generator)
        documents[place, order[:relevant], :SIGNALS] = asked[place, :SIGNALS] + blur
        ids = [f"d{place:03}-{size - number:03}" for number in range(length)]
        qrels[f"q{place:03}"] = {ids[number]: 1 for number in order[:relevant].tolist()}
        run[f"q{place:03}"] = dict(zip(ids, (-ranks.float()).tolist(), strict=True))
        vectors |= zip(ids, documents[place], strict=False)
    for part in (asked, documents):
        part[..., SIGNALS:] *= noise
    collection = Collection("toy", "train", {}, dict.fromkeys(run, ""), qrels)
    of_queries, of_documents = (
        Embedded([*ids], torch.nn.functional.normalize(torch.stack([*ids.values()]), dim=1).numpy())
        for ids in (dict(zip(run, asked, strict=True)), dict(sorted(vectors.items())))
    )
    return pool_set("train", collection, run, of_queries, of_documents, training=True)


def best_head(outputs: int = 8) -> Tensor:
    """The head that sees the signal alone, ``(outputs, INPUTS)``."""
    weight = torch.zeros(outputs, INPUTS)
    weight[:SIGNALS, :SIGNALS] = torch.eye(SIGNALS)
    return weight


def random_head(outputs: int = 8, seed: int = 0) -> Tensor:
    """A head that knows nothing, ``(outputs, INPUTS)``."""
    return torch.randn(outputs, INPUTS, generator=torch.Generator().manual_seed(seed)) / math.sqrt(INPUTS)


def doubled(noise: P) -> P:
    """The same directions in float64."""
    return replace(noise, a=noise.a.double(), b=noise.b.double())
