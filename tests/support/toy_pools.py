"""Pools whose best head is known: the first inputs tell relevant documents, all others are louder noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from unimoe.studies.heads.eggroll.noise import Perturbations
from unimoe.studies.heads.pools import PoolSet

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
    documents = torch.randn(queries * size, INPUTS, generator=generator)
    rows = torch.arange(queries * size).view(queries, size)
    valid, grades = torch.ones(queries, size, dtype=torch.bool), torch.zeros(queries, size)
    ranks = torch.zeros(queries, size, dtype=torch.long)
    for place in range(queries):
        length = size - 2 if padded and place % 3 == 0 else size
        order = torch.randperm(length, generator=generator)
        valid[place, length:] = False
        grades[place, order[:relevant]] = 1
        ranks[place, :length] = torch.randperm(length, generator=generator) + 1
        blur = 0.3 * torch.randn(relevant, SIGNALS, generator=generator)
        documents[rows[place, order[:relevant]], :SIGNALS] = asked[place, :SIGNALS] + blur
    asked[:, SIGNALS:] *= noise
    documents[:, SIGNALS:] *= noise
    rows[~valid] = 0
    ids = [[f"d{place:03}-{size - number:03}" for number in range(int(valid[place].sum()))] for place in range(queries)]
    query_ids = [f"q{place:03}" for place in range(queries)]
    relevance = [
        {document_id: 1 for document_id, grade in zip(pool, row, strict=False) if grade > 0}
        for pool, row in zip(ids, grades.tolist(), strict=True)
    ]
    return PoolSet(
        name="train",
        query_ids=query_ids,
        document_ids=ids,
        queries=torch.nn.functional.normalize(asked, dim=1),
        documents=torch.nn.functional.normalize(documents, dim=1),
        rows=rows,
        valid=valid,
        grades=grades,
        judged=[row[row > 0] for row in grades],
        ranks=ranks,
        qrels=dict(zip(query_ids, relevance, strict=True)),
        without_positive=[],
    )


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
