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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from unimoe.core.errors import DataError
from unimoe.studies.heads.eggroll.chance import generator
from unimoe.studies.heads.methods import Method
from unimoe.studies.heads.pools import Batch

BLOCK = 16
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1, by their three bits; the fourth is the sign."""

_TOP, _TOP_SCALE = MAGNITUDES[-1], 448.0


@dataclass(frozen=True)
class Packed:
    """A matrix ``(R, C)`` in NVFP4.

    Attributes:
        codes: ``(R, ceil(C / 16) x 8)`` uint8; of two neighbours the first is in the low half of the byte.
        scales: ``(R, ceil(C / 16))`` float8_e4m3fn, never negative.
        scale: the tensor's, float32 without dimensions.
        columns: C; the last block is padded with zeros.
    """

    codes: Tensor
    scales: Tensor
    scale: Tensor
    columns: int

    @property
    def bytes(self) -> int:
        """The size of codes and both kinds of scales."""
        return sum(part.numel() * part.element_size() for part in (self.codes, self.scales, self.scale))


def quantize(weight: Tensor, uniform: tuple[Tensor, Tensor] | None = None) -> Packed:
    """Encode a matrix ``(R, C)`` in four bits.

    Args:
        weight: the matrix, floating point.
        uniform: numbers of [0, 1) for stochastic rounding, one per weight ``(R, C)`` and one per block
            ``(R, ceil(C / 16))``; None rounds to the nearest, ties to even. Stochastic rounding of scales and codes
            keeps the expectation of every weight.

    Raises:
        DataError: a weight is not finite.
    """
    values = weight.detach().float()
    if not bool(values.isfinite().all()):
        raise DataError("a weight is not finite and has no code of four bits; lower learning_rate or sigma")
    rows, columns = values.shape
    blocks = _blocks(values)
    largest = blocks.abs().amax(2)
    scale = _tensor_scale(largest)
    magnitudes, wanted = blocks.abs(), largest / _TOP / scale
    if uniform is None:
        scales = _round(wanted, 3, -6).clamp(max=_TOP_SCALE)
    else:
        scales, magnitudes = _chosen_scales(wanted, magnitudes, scale, uniform[1])
    steps = (scales * scale).unsqueeze(2)
    magnitudes = torch.where(steps > 0, magnitudes / steps, 0.0).clamp(max=_TOP)
    codes = _round(magnitudes, 1, 0, None if uniform is None else _blocks(uniform[0]))
    bits = torch.bucketize(codes, torch.tensor(MAGNITUDES, device=weight.device)) + 8 * (blocks < 0)
    halves = bits.reshape(rows, -1, 2).to(torch.uint8)
    return Packed(halves[..., 0] | halves[..., 1] << 4, scales.to(torch.float8_e4m3fn), scale, columns)


def dequantize(packed: Packed) -> Tensor:
    """Decode the matrix ``(R, C)`` into float32; every value is exact."""
    rows, blocks = packed.scales.shape
    halves = torch.stack([packed.codes & 15, packed.codes >> 4], dim=2).reshape(rows, blocks, BLOCK).long()
    values = torch.tensor([*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)], device=packed.codes.device)[halves]
    scaled = values * (packed.scales.float() * packed.scale).unsqueeze(2)
    return scaled.reshape(rows, -1)[:, : packed.columns].contiguous()


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

    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
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
        if self._packed is None:
            return inner
        packed = self._packed
        columns = torch.tensor(packed.columns)
        return inner | {"codes": packed.codes, "scales": packed.scales, "scale": packed.scale, "columns": columns}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._packed = None
        if "codes" in state:
            self._packed = Packed(state["codes"], state["scales"], state["scale"], int(state["columns"]))
        self._method.load_state({n.removeprefix("inner."): t for n, t in state.items() if n.startswith("inner.")})


def rounding_chances(stream: str, seed: int, step: int, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the numbers by which ``quantize`` rounds matrices ``(..., R, C)``: one per weight and one per block."""
    *others, columns = weights.shape
    chance, sizes = generator(stream, seed, step), (columns, math.ceil(columns / BLOCK))
    drawn = [torch.from_numpy(chance.random((*others, size), dtype=np.float32)) for size in sizes]
    return drawn[0].to(weights.device), drawn[1].to(weights.device)


def _chosen_scales(wanted: Tensor, magnitudes: Tensor, scale: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Round block scales ``(R, blocks)`` up or down by chance; return them and the magnitudes to encode with them.

    With the lower scale, magnitudes beyond its reach are cut, which lowers their mean. So with the upper scale those,
    and only those, are stretched until the largest is at the end of its reach, which compensates exactly.
    """
    spacing = _spacing(wanted, 3, -6)
    lower = (wanted / spacing).floor() * spacing
    up = uniform < (wanted - lower) / spacing
    reach, largest = (_TOP * scale * lower).unsqueeze(2), (_TOP * scale * wanted).unsqueeze(2)
    stretch = _TOP * scale * spacing.unsqueeze(2) / (largest - reach)
    beyond = up.unsqueeze(2) & (magnitudes > reach)
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


def _blocks(matrix: Tensor) -> Tensor:
    """``(R, C)`` as ``(R, ceil(C / 16), 16)``, padded with zeros."""
    rows, columns = matrix.shape
    return pad(matrix, (0, -columns % BLOCK)).view(rows, -1, BLOCK)


def _tensor_scale(largest: Tensor) -> Tensor:
    """Return the smallest power of two for which no block's scale exceeds E4M3's largest; 1 for a matrix of zeros."""
    ratio = float(largest.max()) / (_TOP * _TOP_SCALE) if largest.numel() else 0.0
    mantissa, exponent = math.frexp(ratio)
    power = 1.0 if ratio == 0 else math.ldexp(1.0, max(exponent - (mantissa == 0.5), -126))
    return torch.tensor(power, dtype=torch.float32, device=largest.device)
