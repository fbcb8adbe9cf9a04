"""The loss of one batch, and its backward pass: at once, or in chunks with the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unimoe.studies.biencoder.config import ContrastiveConfig
from unimoe.training.losses.built_in import info_nce
from unimoe.training.steps import backward_in_parts


def batch_backward(
    embed: Callable[[Sequence[Any]], Tensor],
    queries: Sequence[Any],
    documents: Sequence[Any],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    weight: float,
    chunk_size: int | None,
    seed: int,
) -> float:
    """Add the gradient of ``weight`` x the loss of query vectors ``(Q, D)`` and document vectors ``(N, D)``.

    Without a chunk size there are two forward passes, of queries and of documents. With it, every chunk of so many
    texts runs twice (gradient caching, Gao et al. 2021): without gradients, to get the loss and its gradient at the
    vectors, then with gradients. Both runs draw the same dropout, by the seed.

    Returns:
        The unweighted loss.
    """
    inputs = [*queries, *documents]
    parts = _parts(queries, 0, chunk_size) + _parts(documents, len(queries), chunk_size)
    order = torch.tensor([place for part in parts for place in part]).argsort()

    def vectors(number: int) -> Tensor:
        torch.manual_seed(seed + number)
        return embed([inputs[place] for place in parts[number]])

    def joined(found: Sequence[Tensor]) -> Tensor:
        seen = torch.cat([*found])
        return seen[order.to(seen.device)]

    def loss(seen: Tensor) -> Tensor:
        return loss_of(seen[: len(queries)], seen[len(queries) :])

    return backward_in_parts(vectors, joined, parts, loss, weight, once=chunk_size is None)


def _parts(inputs: Sequence[Any], first: int, chunk_size: int | None) -> list[list[int]]:
    """Return the places of the inputs in chunks of similar length, longest first."""
    order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
    size = chunk_size or max(1, len(inputs))
    return [[first + place for place in order[begin : begin + size]] for begin in range(0, len(order), size)]


def contrastive_loss(
    queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, config: ContrastiveConfig
) -> Tensor:
    """Return InfoNCE of ``(cosine - margin * positive) / temperature``, the mean over the queries.

    Queries and documents are unit vectors ``(Q, D)`` and ``(N, D)``. Each row of ``positives (Q, N)`` has a target at
    least; ``excluded`` are documents that are neither. Symmetric: the mean with the loss over the documents that are a
    positive.

    Source: van den Oord et al. 2018; the margin is that of LaBSE (Feng et al. 2022, section 3.2).
    """
    cosines = queries @ documents.T
    logits = ((cosines - config.margin * positives) / config.temperature).masked_fill(excluded, -torch.inf)
    forward = info_nce(logits, positives)
    if not config.symmetric:
        return forward
    anchors = positives.any(dim=0)  # a hard negative belongs to no query
    return (forward + info_nce(logits.T[anchors], positives.T[anchors])) / 2
