"""Lists of different lengths as the rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def padded(scores: Sequence[Tensor], labels: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores and labels ``(B, P)``, 0 where padded, and which places hold a document."""
    valid = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in scores], batch_first=True)
    return pad_sequence(list(scores), batch_first=True), pad_sequence(list(labels), batch_first=True), valid
