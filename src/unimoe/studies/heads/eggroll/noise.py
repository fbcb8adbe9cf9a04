"""Random directions for a weight ``(D_out, D_in)``, drawn by counter: a draw depends on seed, step and place alone.

Philox (Salmon et al. 2011) is keyed by a hash of stream, seed and step, and every row of factors has a fixed range of
its counter. So row j is the same alone or among others, on any device and in any process, and no two pairs of seed and
step share noise, as they would if the generator's seed were ``seed + step``.

Normal variates come from a table: the means of the standard normal over 65,536 equally likely intervals, scaled to unit
variance. They need no logarithm or cosine: their last bit differs between machines and between places in a vector;
they end at 4.4, and their fourth moment is 2.9998 in place of 3.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

_INTERVALS = 2**16
_WORDS = 4  # of 64 bits, which one value of Philox's counter gives


@dataclass(frozen=True)
class Directions:
    """Independent directions ``E_j = sum_k a_jk b_jk^T / sqrt(r)``, with ``mean |E_j|^2 = D_out D_in`` at every rank.

    Each is used twice, as ``W + sigma E_j`` and ``W - sigma E_j``.

    Attributes:
        a: output factors ``(M, r, D_out)``.
        b: input factors ``(M, r, D_in)``.
    """

    a: Tensor
    b: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the set; their product is M, the number of directions."""
        return (len(self.a),)

    @property
    def scale(self) -> float:
        """The factor of the sum over ranks."""
        return 1 / math.sqrt(self.a.shape[1])

    @property
    def inputs(self) -> Tensor:
        """All ``b`` as rows, the first rank of all directions first."""
        return self.b.transpose(0, 1).flatten(0, 1)

    @property
    def outputs(self) -> Tensor:
        """All ``a`` as rows, the first rank of all directions first."""
        return self.a.transpose(0, 1).flatten(0, 1)

    def of_inputs(self, products: Tensor) -> list[Tensor]:
        """View products with ``inputs``, ``(..., r M)``, as a tensor per rank that broadcasts over the directions."""
        return list(products.view(*products.shape[:-1], -1, len(self.a)).unbind(-2))

    of_outputs = of_inputs

    def gram(self) -> list[list[Tensor]]:
        """Return ``a_k . a_l`` of every direction, for all pairs of ranks."""
        ranks = self.a.unbind(1)
        return [[(first * second).sum(-1) for second in ranks] for first in ranks]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``sum_j weights_j E_j``, ``(D_out, D_in)``."""
        scaled = (self.scale * weights).to(self.a.dtype).view(-1, 1, 1)
        return (self.a * scaled).flatten(0, 1).T @ self.b.flatten(0, 1)


@dataclass(frozen=True)
class ProductDirections:
    """Every ``b`` with every ``a``: ``m1 m2`` directions of rank 1 for the matrix products of ``m1 + m2``.

    Direction ``i m2 + j`` is ``a_j b_i^T``. They are uncorrelated but not independent: the estimate of a linear
    objective's gradient has the relative squared error ``(1 + (D_out + 1) / m2) (1 + (D_in + 1) / m1) - 1``, where
    ``m1 m2`` independent directions have about ``D_out D_in / (m1 m2)``. The members are those of ``Directions``.

    Attributes:
        a: output factors ``(m2, D_out)``.
        b: input factors ``(m1, D_in)``.
    """

    a: Tensor
    b: Tensor
    scale = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """``(m1, m2)``."""
        return (len(self.b), len(self.a))

    @property
    def inputs(self) -> Tensor:
        """``(m1, D_in)``."""
        return self.b

    @property
    def outputs(self) -> Tensor:
        """``(m2, D_out)``."""
        return self.a

    def of_inputs(self, products: Tensor) -> list[Tensor]:
        """View ``(..., m1)`` as ``(..., m1, 1)``."""
        return [products.unsqueeze(-1)]

    def of_outputs(self, products: Tensor) -> list[Tensor]:
        """View ``(..., m2)`` as ``(..., 1, m2)``."""
        return [products.unsqueeze(-2)]

    def gram(self) -> list[list[Tensor]]:
        """Return ``|a_j|^2``, ``(m2,)``."""
        return [[self.a.square().sum(-1)]]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``A^T F^T B`` with ``F = weights.view(m1, m2)``."""
        return self.a.T @ (weights.to(self.b.dtype).view(self.shape).T @ self.b)


Perturbations = Directions | ProductDirections


def directions(
    seed: int,
    step: int,
    count: int,
    d_out: int,
    d_in: int,
    *,
    rank: int = 1,
    first: int = 0,
    device: torch.device | str = "cpu",
) -> Directions:
    """Draw the independent directions ``first`` to ``first + count - 1`` of a step, on the CPU."""
    rows = factors("directions", seed, step, count, rank * (d_out + d_in), first=first)
    a, b = torch.split(rows.to(device), [rank * d_out, rank * d_in], dim=1)
    return Directions(a.reshape(count, rank, d_out), b.reshape(count, rank, d_in))


def product_directions(
    seed: int, step: int, inputs: int, outputs: int, d_out: int, d_in: int, *, device: torch.device | str = "cpu"
) -> ProductDirections:
    """Draw ``inputs`` b-vectors and ``outputs`` a-vectors of a step, which make as many directions as their product."""
    # The streams keep their first names, on which every draw depends.
    a, b = factors("grid outputs", seed, step, outputs, d_out), factors("grid inputs", seed, step, inputs, d_in)
    return ProductDirections(a.to(device), b.to(device))


def score_noise(seed: int, step: int, count: int, scores: Tensor) -> Tensor:
    """Draw directions in the space of scores ``(B, P)``, ``(count, B, P)``."""
    noise = factors("scores", seed, step, count, scores.numel())
    return noise.view(count, *scores.shape).to(scores.device, scores.dtype)


def factors(stream: str, seed: int, step: int, count: int, entries: int, *, first: int = 0) -> Tensor:
    """Draw rows ``first`` to ``first + count - 1`` of a stream, ``(count, entries)``, possibly a view of longer rows.

    No two streams share random numbers.
    """
    counters = -(-entries * 16 // (64 * _WORDS))  # 16 bits an entry
    philox = np.random.Philox(key=_key(f"{stream}\n{seed}\n{step}"), counter=first * counters)
    words = philox.random_raw(count * counters * _WORDS).astype("<u8")
    return torch.from_numpy(_table()[words.view("<u2")]).view(count, -1)[:, :entries]


def generator(stream: str, seed: int, step: int) -> np.random.Generator:
    """Make a generator for one purpose in one step; no two streams, seeds or steps share random numbers."""
    return np.random.Generator(np.random.Philox(key=_key(f"choices\n{stream}\n{seed}\n{step}")))


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


@cache
def _table() -> NDArray[np.float32]:
    """Return the normal's mean over each of ``_INTERVALS`` equally likely intervals, symmetric about 0."""
    edges = ndtri(np.linspace(0.5, 1, _INTERVALS // 2 + 1))
    densities = np.exp(-(edges**2) / 2)
    upper = densities[:-1] - densities[1:]
    upper /= np.sqrt(np.mean(upper**2))
    return np.concatenate([-upper[::-1], upper]).astype(np.float32)
