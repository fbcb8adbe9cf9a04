"""Random factors by counter: a draw depends on seed, step and place alone.

Philox (Salmon et al. 2011) is keyed by a hash of stream, seed and step, and every row of factors has a fixed range of
its counter. So row j is the same alone or among others, on any device and in any process, and no two pairs of seed and
step share noise, as they would if the generator's seed were ``seed + step``.

Normal variates come from a table: the means of the standard normal over 65,536 equally likely intervals, scaled to unit
variance. They need no logarithm or cosine, whose last bit differs between machines and between places in a vector;
they end at 4.4, and their fourth moment is 2.9998 in place of 3.
"""

from __future__ import annotations

import hashlib
from functools import cache
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from unimoe.core.errors import UsageError
from unimoe.studies.heads.eggroll.kernels import machine_code
from unimoe.studies.heads.eggroll.perturbations import Directions, ProductDirections

Kind = Literal["normal", "rademacher"]
"""Normal entries, or signs (``rademacher``): both have zero mean and unit variance."""

_WORDS = 4
"""64-bit words that one value of Philox's counter gives."""

_INTERVALS = 2**16

_PHILOX, _PHILOX_LOCK = np.random.Philox(key=0), Lock()


def directions(
    seed: int,
    step: int,
    count: int,
    d_out: int,
    d_in: int,
    *,
    rank: int = 1,
    first: int = 0,
    kind: Kind = "normal",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Directions:
    """Draw the independent directions ``first`` to ``first + count - 1`` of a step, for a weight ``(d_out, d_in)``.

    They are drawn on the CPU in float32; a wider dtype holds the same values.

    Raises:
        UsageError: an unknown kind, or a count, size or rank below 1.
    """
    _at_least_one(count=count, d_out=d_out, d_in=d_in, rank=rank)
    rows = factors("directions", seed, step, count, rank * (d_out + d_in), first=first, kind=kind)
    rows = rows.to(device=device, dtype=dtype)
    split = rank * d_out
    return Directions(rows[:, :split].reshape(count, rank, d_out), rows[:, split:].reshape(count, rank, d_in))


def product_directions(
    seed: int,
    step: int,
    inputs: int,
    outputs: int,
    d_out: int,
    d_in: int,
    *,
    kind: Kind = "normal",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> ProductDirections:
    """Draw ``inputs`` b-vectors and ``outputs`` a-vectors of a step, which make as many directions as their product.

    Raises:
        UsageError: an unknown kind, or a count or size below 1.
    """
    _at_least_one(inputs=inputs, outputs=outputs, d_out=d_out, d_in=d_in)
    # The streams keep their first names, on which every draw depends.
    a = factors("grid outputs", seed, step, outputs, d_out, kind=kind)
    b = factors("grid inputs", seed, step, inputs, d_in, kind=kind)
    return ProductDirections(a.to(device=device, dtype=dtype), b.to(device=device, dtype=dtype))


def factors(
    stream: str, seed: int, step: int, count: int, entries: int, *, first: int = 0, kind: Kind = "normal"
) -> Tensor:
    """Draw rows ``first`` to ``first + count - 1`` of a stream; no two streams share random numbers.

    Returns:
        float32 ``(count, entries)`` on the CPU, possibly a view of longer rows.

    Raises:
        UsageError: an unknown kind.
    """
    if kind not in get_args(Kind):
        raise UsageError(f"kind of noise {kind!r}: unknown; use {' or '.join(get_args(Kind))}")
    bits = 16 if kind == "normal" else 1
    counters = -(-entries * bits // (64 * _WORDS))
    key = hashlib.blake2b(f"{stream}\n{seed}\n{step}".encode(), digest_size=16).digest()
    words = _words(key, first * counters, count * counters * _WORDS)
    values = _normals(words) if kind == "normal" else _signs(words)
    return values.view(count, -1)[:, :entries]


def _words(key: bytes, counter: int, count: int) -> NDArray[np.uint64]:
    """``np.random.Philox(key=key, counter=counter).random_raw(count)``, without the entropy that a new one gathers."""
    state: Any = {
        "bit_generator": "Philox",
        "state": {
            "key": np.frombuffer(key, dtype="<u8").astype(np.uint64),
            "counter": np.array([counter >> bits & 2**64 - 1 for bits in (0, 64, 128, 192)], dtype=np.uint64),
        },
        "buffer": np.zeros(_WORDS, dtype=np.uint64),
        "buffer_pos": _WORDS,  # all of it is used up
        "has_uint32": 0,
        "uinteger": 0,
    }
    with _PHILOX_LOCK:
        _PHILOX.state = state
        return np.asarray(_PHILOX.random_raw(count), dtype="<u8")


def _normals(words: NDArray[np.uint64]) -> Tensor:
    values = np.empty(4 * len(words), dtype=np.float32)
    _look_up(words.view("<u2"), _table(), values)
    return torch.from_numpy(values)


@machine_code
def _look_up(numbers: NDArray[np.uint16], table: NDArray[np.float32], values: NDArray[np.float32]) -> None:
    for place in range(len(numbers)):
        values[place] = table[numbers[place]]


def _signs(words: NDArray[np.uint64]) -> Tensor:
    bits = torch.from_numpy(np.unpackbits(words.view(np.uint8), bitorder="little"))
    return bits.float().mul_(2).sub_(1)


@cache
def _table() -> NDArray[np.float32]:
    """Return the normal's mean over each of ``_INTERVALS`` equally likely intervals, symmetric about 0."""
    edges = ndtri(np.linspace(0.5, 1, _INTERVALS // 2 + 1))
    densities = np.exp(-(edges**2) / 2)
    upper = densities[:-1] - densities[1:]
    upper /= np.sqrt(np.mean(upper**2))
    return np.concatenate([-upper[::-1], upper]).astype(np.float32)


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} is {size}; it must be at least 1")
