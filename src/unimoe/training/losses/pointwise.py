"""Losses over margins of a yes/no reranker: each pair alone, and one positive among the documents of its query."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def yes_no_loss(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the answers ``yes`` and ``no``, per pair.

    Equals ``-log_softmax([logit_no, logit_yes])[label]``, the loss that Qwen3-Reranker is fine-tuned with.

    Args:
        margins: logit of yes minus logit of no, float32 ``(N,)``.
        labels: 1 where the document is relevant, else 0, float32 ``(N,)``.

    Returns:
        ``(N,)``.
    """
    return functional.binary_cross_entropy_with_logits(margins, labels, reduction="none")


def softmax_loss(margins: Tensor) -> Tensor:
    """Return the cross-entropy of picking each query's positive among its documents.

    Args:
        margins: logit of yes minus logit of no, float32 ``(Q, K)``; the positive is in column 0.

    Returns:
        The mean over the queries, a scalar.

    Source: the listwise softmax of ListNet's top-one model (Cao et al. 2007) with one relevant document.
    """
    return functional.cross_entropy(margins, torch.zeros(len(margins), dtype=torch.long, device=margins.device))
