"""Float32 products on a CPU, by the library that is fast there.

torch comes with two: MKL, which it takes for float32, and oneDNN, which it takes for bfloat16. MKL keeps its AVX-512
code for Intel's processors; on AMD's that have AVX-512 oneDNN takes about half as long. Which one is asked hangs on the
processor alone and not on a probe, since they differ in the last bits: on one machine the same numbers give the same.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from unimoe.models.device import processor_name


def matmul_nt(rows: Tensor, columns: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``rows @ columns.T``.

    Args:
        rows: ``(n, k)``.
        columns: ``(m, k)``, of the same dtype and device.
        out: ``(n, m)``, memory that the product may be written to; what it holds afterwards is not specified.

    Returns:
        ``(n, m)``: ``out``, or new memory where the library takes none.
    """
    if not takes_onednn(rows, columns):
        return torch.mm(rows, columns.T, out=out)
    if not (columns.is_contiguous() or columns.T.is_contiguous()):
        columns = columns.contiguous()  # with gaps between its rows it would take a thousand times as long
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), columns, None, "none", [], "")
    return product


def takes_onednn(*factors: Tensor) -> bool:
    """Whether a product of these is given to oneDNN, whose has no gradient."""
    on_cpu = all(factor.dtype == torch.float32 and factor.device.type == "cpu" for factor in factors)
    has_gradient = torch.is_grad_enabled() and any(factor.requires_grad for factor in factors)
    return on_cpu and not has_gradient and _onednn_is_faster()


@cache
def _onednn_is_faster() -> bool:
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return has_avx512 and processor_name().startswith("AMD") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
