"""The heads of a generation, in float32 or each by itself in four bits."""

from __future__ import annotations

import torch
from torch import Tensor

from unimoe.studies.heads.eggroll.fp4 import Packed, dequantize, quantize, rounding_chances

_PARTS = ("codes", "scales", "scale")


class Population:
    """Holds heads ``(n, D_out, D)`` between generations.

    In four bits a child is encoded once, with stochastic rounding, and an elite keeps its codes: encoded again, it
    could get other block scales and change.

    Args:
        four_bits: whether heads are held in NVFP4.
        seed: of the rounding.
    """

    def __init__(self, *, four_bits: bool, seed: int) -> None:
        self._four_bits, self._seed = four_bits, seed
        self._heads: Tensor | None = None
        self._packed: list[Packed] = []

    @property
    def heads(self) -> Tensor | None:
        """All heads, as float32; None before the first generation."""
        if self._packed:
            return torch.stack([dequantize(one) for one in self._packed])
        return self._heads

    def fill(self, heads: Tensor) -> Tensor:
        """Hold the first generation, in four bits rounded to the nearest; return what is held."""
        if not self._four_bits:
            self._heads = heads
            return heads
        self._packed = [quantize(head) for head in heads]
        return torch.stack([dequantize(one) for one in self._packed])

    def replace(self, kept: Tensor, children: Tensor, step: int) -> None:
        """Hold the heads at the places ``kept``, unchanged and first, and children ``(m, D_out, D)``."""
        if not self._four_bits:
            assert self._heads is not None  # noqa: S101 - for the type checker: there was a generation
            self._heads = torch.cat([self._heads[kept], children])
            return
        chances = rounding_chances("four bits of a population", self._seed, step, children)
        encoded = [quantize(*child) for child in zip(children, zip(*chances, strict=True), strict=True)]
        self._packed = [*(self._packed[place] for place in kept.tolist()), *encoded]

    def facts(self) -> dict[str, float]:
        """Return the memory of one head and of all in four bits; nothing in float32."""
        if not self._packed:
            return {}
        return {
            "weight_bytes": float(self._packed[0].bytes),
            "method_bytes": float(sum(one.bytes for one in self._packed)),
        }

    def state(self) -> dict[str, Tensor]:
        """Return what is held, elites first."""
        if not self._packed:
            return {} if self._heads is None else {"population": self._heads}
        parts = {name: torch.stack([getattr(one, name) for one in self._packed]) for name in _PARTS}
        return parts | {"columns": torch.tensor(self._packed[0].columns)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._heads = state.get("population")
        self._packed = []
        if "columns" in state:
            parts = zip(*(state[name] for name in _PARTS), strict=True)
            self._packed = [Packed(codes, scales, scale, int(state["columns"])) for codes, scales, scale in parts]
