"""Forward and backward pass of one batch, at once or in chunks with the same gradient, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unimoe.studies.biencoder.config import ContrastiveConfig
from unimoe.studies.biencoder.training.sources import Source
from unimoe.training.losses.built_in import info_nce

Loss = Callable[[Tensor, Tensor], Tensor]
"""Takes query vectors ``(Q, D)`` and document vectors ``(N, D)``."""


def batch_backward(
    source: Source,
    queries: Sequence[Any],
    documents: Sequence[Any],
    loss_of: Loss,
    *,
    weight: float,
    chunk_size: int | None,
    seed: int,
) -> float:
    """Add the gradient of ``weight`` x the loss of a batch.

    Without a chunk size there are two forward passes, of queries and of documents. With it, every chunk of so many
    texts runs twice (gradient caching, Gao et al. 2021): without gradients, to get the loss and its gradient at the
    vectors, then with gradients. Both runs draw the same dropout, by the seed.

    Returns:
        The unweighted loss.
    """
    inputs = [*queries, *documents]
    parts = _parts(queries, 0, chunk_size) + _parts(documents, len(queries), chunk_size)

    def vectors(number: int) -> Tensor:
        torch.manual_seed(seed + number)
        return source.embed([inputs[place] for place in parts[number]])

    back = torch.tensor([place for part in parts for place in part]).argsort()
    if chunk_size is None:
        together = torch.cat([vectors(number) for number in range(len(parts))])
        loss = loss_of(*_split(together[back.to(together.device)], len(queries)))
        (weight * loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())
    with torch.no_grad():
        seen = torch.cat([vectors(number) for number in range(len(parts))])
    seen = seen[back.to(seen.device)].requires_grad_()
    loss = loss_of(*_split(seen, len(queries)))
    (weight * loss).backward()  # type: ignore[no-untyped-call]
    assert seen.grad is not None  # noqa: S101 - for the type checker: the loss depends on the vectors
    for number, part in enumerate(parts):
        vectors(number).backward(seen.grad[part])  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _parts(inputs: Sequence[Any], first: int, chunk_size: int | None) -> list[list[int]]:
    """Return the places of the inputs in chunks of similar length, longest first."""
    order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
    size = chunk_size or max(1, len(inputs))
    return [[first + place for place in order[begin : begin + size]] for begin in range(0, len(order), size)]


def _split(vectors: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    return vectors[:queries], vectors[queries:]


def contrastive_loss(
    queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, config: ContrastiveConfig
) -> Tensor:
    """Return InfoNCE of ``(cosine - margin * positive) / temperature``.

    Args:
        queries: unit vectors ``(Q, D)``.
        documents: unit vectors ``(N, D)``, each document of the batch once.
        positives: ``(Q, N)`` bool, the targets of each query, at least one.
        excluded: ``(Q, N)`` bool, documents that are neither.
        config: temperature, margin, and whether documents are contrasted over the queries too.

    Returns:
        The mean over the queries, a scalar; symmetric: its mean with that over the documents that are a positive.

    Source: van den Oord et al. 2018; the margin is that of LaBSE (Feng et al. 2022, section 3.2).
    """
    cosines = queries @ documents.T
    logits = ((cosines - config.margin * positives) / config.temperature).masked_fill(excluded, -torch.inf)
    forward = info_nce(logits, positives)
    if not config.symmetric:
        return forward
    anchors = positives.any(dim=0)  # a hard negative belongs to no query
    return (forward + info_nce(logits.T[anchors], positives.T[anchors])) / 2
