"""What losses share that estimate the gradient of a measure from sampled rankings."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
"""Lists whose rankings are sampled at a time, which bounds the memory."""


@dataclass(frozen=True)
class Chance:
    """What a loss draws from.

    Attributes:
        generator: on the CPU, where draws are the same for every device; None for torch's own.
        progress: of the training, 0 at its first step and 1 at its last.
    """

    generator: torch.Generator | None
    progress: float


def generator_of(seed: int, step: int) -> torch.Generator:
    """Make the generator of a step; no two pairs of seed and step share random numbers."""
    key = hashlib.blake2b(f"loss\n{seed}\n{step}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)


def with_gradient(scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return a scalar of a given value and of a given gradient with respect to the scores."""
    return value + (gradient * (scores - scores.detach())).sum()


def spread_of(scores: Tensor, valid: Tensor) -> float:
    """Return the standard deviation of the scores in a list, averaged over the lists as variances are.

    Args:
        scores: ``(B, P)``.
        valid: which places hold a document, ``(B, P)``.
    """
    count = valid.sum(1, keepdim=True).clamp(min=1)
    inside = scores.masked_fill(~valid, 0)
    apart = (inside - inside.sum(1, keepdim=True) / count).masked_fill(~valid, 0)
    return math.sqrt(float((apart.square().sum(1, keepdim=True) / count).mean()))


def group_scale(found: Tensor) -> Tensor:
    """Return what the measures ``(B, N)`` of each list's rankings are divided by, ``(B, 1)``: 1 where all are equal."""
    spread = found.std(dim=1, correction=0, keepdim=True)
    return spread.where(spread > 0, 1.0)
