"""The two losses: yes/no judgements of pairs, and contrast within a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def yes_no_loss(gaps: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the answers ``yes`` and ``no``, per pair.

    Equals ``-log_softmax([logit_no, logit_yes])[label]``, the loss Qwen3-Reranker is fine-tuned with.

    Args:
        gaps: logit of yes minus logit of no, float32 ``(N,)``.
        labels: 1 where the document is relevant, else 0, float32 ``(N,)``.

    Returns:
        ``(N,)``.
    """
    return functional.binary_cross_entropy_with_logits(gaps, labels, reduction="none")


def softmax_loss(gaps: Tensor) -> Tensor:
    """Cross-entropy of picking each query's positive among its documents.

    Args:
        gaps: logit of yes minus logit of no, float32 ``(Q, K)``; the positive stands in column 0.

    Returns:
        The mean over the queries, a scalar.

    Source: the listwise softmax of ListNet's top-one model (Cao et al. 2007) with one relevant document.
    """
    return functional.cross_entropy(gaps, torch.zeros(len(gaps), dtype=torch.long, device=gaps.device))


def info_nce(queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """InfoNCE over the batch's documents: in-batch and hard negatives in one softmax.

    Args:
        queries: unit vectors ``(Q, D)``.
        documents: unit vectors ``(N, D)``, each document of the batch once.
        positives: for each query, the row of its positive in ``documents``, ``(Q,)``.
        excluded: ``(Q, N)`` bool, documents that are relevant to a query without being its positive here: they are no
            negatives.
        temperature: cosines are divided by it.

    Returns:
        The mean over the queries, a scalar.

    Source: van den Oord et al. 2018, with false negatives masked.
    """
    logits = queries @ documents.T / temperature
    return functional.cross_entropy(logits.masked_fill(excluded, -torch.inf), positives)
