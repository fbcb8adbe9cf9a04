"""Weights in four bits: NVFP4, packed two to a byte, with stochastic rounding.

A value is ``code x block scale x tensor scale``. Codes are E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. A
block is 16 neighbours along the input dimension, its scale an FP8 number (E4M3). The tensor's scale is one float32.
That makes 4.5 bits a weight.

The tensor's scale is a power of two: it seldom changes while weights are trained, and when it does, the block scales
lose no digit. Source of the format: NVIDIA, "Introducing NVFP4", 2025; rounding to nearest even as in the OCP's
Microscaling Formats 1.0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from unimoe.core.errors import DataError
from unimoe.studies.heads.eggroll.noise import generator
from unimoe.studies.heads.methods import Method
from unimoe.studies.heads.pools import PoolBatch

BLOCK = 16
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1, by their three bits; the fourth is the sign."""

_TOP, _TOP_SCALE = MAGNITUDES[-1], 448.0


class Packed(NamedTuple):
    """Matrices ``(..., R, C)`` in NVFP4.

    Attributes:
        codes: ``(..., R, ceil(C / 16) x 8)`` uint8; of two neighbours the first is in the low half of the byte.
        scales: ``(..., R, ceil(C / 16))`` float8_e4m3fn, never negative.
        scale: of each matrix, float32 ``(...)``.
        columns: C; the last block is padded with zeros.
    """

    codes: Tensor
    scales: Tensor
    scale: Tensor
    columns: int

    @property
    def bytes(self) -> int:
        """The size of codes and both kinds of scales."""
        return sum(part.numel() * part.element_size() for part in self[:3])

    def state(self) -> dict[str, Tensor]:
        """Return the fields as tensors by name, for a file."""
        return self._asdict() | {"columns": torch.tensor(self.columns)}

    @classmethod
    def of_state(cls, state: dict[str, Tensor]) -> Packed | None:
        """Restore what ``state`` returned; None where it is not there."""
        if "codes" not in state:
            return None
        return cls(state["codes"], state["scales"], state["scale"], int(state["columns"]))


def quantize(weights: Tensor, uniform: tuple[Tensor, Tensor] | None = None) -> Packed:
    """Encode matrices ``(..., R, C)`` in four bits, each by itself.

    Args:
        weights: the matrices, floating point.
        uniform: numbers of [0, 1) for stochastic rounding, one per weight ``(..., R, C)`` and one per block
            ``(..., R, ceil(C / 16))``; None rounds to the nearest, ties to even. Stochastic rounding of scales and
            codes keeps the expectation of every weight.
    """
    values = weights.detach().float()
    if not bool(values.isfinite().all()):
        raise DataError("a weight is not finite and has no code of four bits; lower learning_rate or sigma")
    blocks = _blocks(values)
    magnitudes = blocks.abs()
    largest = magnitudes.amax(-1)
    scale = _tensor_scale(largest)
    of_block = scale[..., None, None]
    wanted = largest / _TOP / of_block
    if uniform is None:
        scales = _round(wanted, 3, -6).clamp(max=_TOP_SCALE)
    else:
        scales, magnitudes = _chosen_scales(wanted, magnitudes, of_block, uniform[1])
    steps = (scales * of_block).unsqueeze(-1)
    magnitudes = torch.where(steps > 0, magnitudes / steps, 0.0).clamp(max=_TOP)
    codes = _round(magnitudes, 1, 0, None if uniform is None else _blocks(uniform[0]))
    bits = torch.bucketize(codes, torch.tensor(MAGNITUDES, device=weights.device)) + 8 * (blocks < 0)
    halves = bits.view(*bits.shape[:-2], -1, 2).to(torch.uint8)
    return Packed(halves[..., 0] | halves[..., 1] << 4, scales.to(torch.float8_e4m3fn), scale, weights.shape[-1])


def dequantize(packed: Packed) -> Tensor:
    """Decode the matrices ``(..., R, C)`` into float32; every value is exact."""
    halves = torch.stack([packed.codes & 15, packed.codes >> 4], dim=-1).view(*packed.scales.shape, BLOCK).long()
    values = torch.tensor([*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)], device=packed.codes.device)[halves]
    scaled = values * (packed.scales.float() * packed.scale[..., None, None]).unsqueeze(-1)
    return scaled.flatten(-2)[..., : packed.columns].contiguous()


class FourBit:
    """Holds the weights of another method in four bits between its steps.

    A step decodes them, lets the method work in float32, and encodes what it returns with stochastic rounding: most
    steps are smaller than half the distance of two codes, so that rounding to the nearest would undo them all, while
    stochastic rounding keeps them on average. The method's state, such as Adam's moments, stays in float32.

    Args:
        method: changes the weights.
        seed: of the rounding.
    """

    def __init__(self, method: Method, seed: int) -> None:
        self._method, self._seed = method, seed
        self._packed: Packed | None = None

    def step(self, weight: Tensor, batch: PoolBatch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Take the method's step; see ``Method``. A weight that is not the one held is encoded to the nearest."""
        held = None if self._packed is None else dequantize(self._packed)
        if held is None or not torch.equal(held, weight):
            held = dequantize(quantize(weight))
        moved, facts = self._method.step(held, batch, step)
        self._packed = quantize(moved, rounding_chances("four bits", self._seed, step, moved))
        kept = sum(value.numel() * value.element_size() for value in self._method.state().values())
        facts |= {"weight_bytes": float(self._packed.bytes), "method_bytes": float(kept)}
        return dequantize(self._packed), facts

    def state(self) -> dict[str, Tensor]:
        """Return the packed weights, and the method's state."""
        inner = {f"inner.{name}": value for name, value in self._method.state().items()}
        return inner | (self._packed.state() if self._packed else {})

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._packed = Packed.of_state(state)
        self._method.load_state({n.removeprefix("inner."): t for n, t in state.items() if n.startswith("inner.")})


def rounding_chances(stream: str, seed: int, step: int, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the numbers by which ``quantize`` rounds matrices ``(..., R, C)``: one per weight and one per block."""
    *others, columns = weights.shape
    chance, sizes = generator(stream, seed, step), (columns, math.ceil(columns / BLOCK))
    drawn = [torch.from_numpy(chance.random((*others, size), dtype=np.float32)) for size in sizes]
    return drawn[0].to(weights.device), drawn[1].to(weights.device)


def _chosen_scales(wanted: Tensor, magnitudes: Tensor, scale: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Round block scales ``(..., R, blocks)`` up or down by chance; return them and the magnitudes to encode with them.

    With the lower scale, magnitudes beyond its reach are cut, which lowers their mean. So with the upper scale those,
    and only those, are stretched until the largest is at the end of its reach, which compensates exactly.
    """
    spacing = _spacing(wanted, 3, -6)
    lower = (wanted / spacing).floor() * spacing
    up = uniform < (wanted - lower) / spacing
    reach, largest = (_TOP * scale * lower).unsqueeze(-1), (_TOP * scale * wanted).unsqueeze(-1)
    stretch = (_TOP * scale * spacing).unsqueeze(-1) / (largest - reach)
    beyond = up.unsqueeze(-1) & (magnitudes > reach)
    return lower + up * spacing, torch.where(beyond, reach + (magnitudes - reach) * stretch, magnitudes)


def _round(values: Tensor, mantissa: int, least: int, uniform: Tensor | None = None) -> Tensor:
    """Round values of at least 0 to floating-point numbers of few bits, kept in float32.

    Args:
        values: to be rounded.
        mantissa: bits of the mantissa.
        least: exponent of the smallest normal number; smaller numbers share its spacing.
        uniform: numbers of [0, 1): a value goes up where they are below its share of the way; None rounds to even.
    """
    spacing = _spacing(values, mantissa, least)
    places = values / spacing
    if uniform is None:
        return places.round() * spacing
    below = places.floor()
    return (below + (uniform < places - below)) * spacing


def _spacing(values: Tensor, mantissa: int, least: int) -> Tensor:
    """Return the distance of the floating-point numbers of few bits around each value."""
    exponents = (torch.frexp(values).exponent - 1).clamp(min=least)
    return torch.ldexp(torch.ones_like(values), exponents - mantissa)


def _blocks(matrices: Tensor) -> Tensor:
    """``(..., R, C)`` as ``(..., R, ceil(C / 16), 16)``, padded with zeros."""
    return pad(matrices, (0, -matrices.shape[-1] % BLOCK)).reshape(*matrices.shape[:-1], -1, BLOCK)


def _tensor_scale(largest: Tensor) -> Tensor:
    """Return the smallest power of two, from 2^-126, for which no block's scale exceeds E4M3's largest."""
    ratio = (largest.amax((-2, -1)) / (_TOP * _TOP_SCALE)).clamp(min=2.0**-126)
    mantissa, exponent = torch.frexp(ratio)
    return torch.ldexp(torch.ones_like(ratio), exponent - (mantissa == 0.5).int())
