"""Float32 products on a CPU, by the faster of torch's two libraries.

torch uses MKL for float32 and oneDNN for bfloat16. MKL does not use the AVX-512 units of AMD's processors; oneDNN does,
and takes about half the time there. The choice depends on the processor and not on a probe, because the two differ in
the last bits: on one machine, equal inputs give equal products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unimoe.results.provenance import processor_name


def matmul_nt(rows: Tensor, columns: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return ``rows @ columns.T``.

    Args:
        rows: ``(n, k)``.
        columns: ``(m, k)``, of the same dtype and device.
        out: ``(n, m)``, memory that may hold the product; its content afterwards is undefined.

    Returns:
        ``(n, m)``: ``out``, or new memory if the library takes none.
    """
    if takes_onednn(rows, columns):
        return _with_gradient(rows, columns, None)
    return torch.mm(rows, columns.T, out=out)


def takes_onednn(*factors: Tensor) -> bool:
    """Return whether oneDNN computes a product of these factors."""
    return _onednn_is_faster() and all(
        factor.dtype == torch.float32 and factor.device.type == "cpu" for factor in factors
    )


def uses_onednn(dtype: torch.dtype) -> bool:
    """Return whether oneDNN computes products of this dtype on a CPU."""
    return dtype != torch.float32 or _onednn_is_faster()


class QuickLinear(nn.Linear):
    """A linear layer that uses the faster library."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what ``nn.Linear`` does."""
        if not takes_onednn(input, self.weight) or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        rows = _with_gradient(input.flatten(0, -2) if input.ndim > 1 else input[None], self.weight, self.bias)
        return rows.view(*input.shape[:-1], len(self.weight))


def quicken(model: nn.Module) -> None:
    """Make the linear layers of a model use the faster library; their weights and names do not change."""
    if not _onednn_is_faster():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = QuickLinear


class _Product(torch.autograd.Function):
    """``rows @ columns.T + bias`` and its gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, columns)
        return _by_onednn(rows, columns, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (rows, columns), (for_rows, for_columns, for_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            _by_onednn(upstream, columns.T) if for_rows else None,
            _by_onednn(upstream.T, rows.T) if for_columns else None,
            upstream.sum(dim=0) if for_bias else None,
        )


def _with_gradient(rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    wanted = rows.requires_grad or columns.requires_grad or (bias is not None and bias.requires_grad)
    if not (wanted and torch.is_grad_enabled()):
        return _by_onednn(rows, columns, bias)
    product: Tensor = _Product.apply(rows, columns, bias)
    return product


def _by_onednn(rows: Tensor, columns: Tensor, bias: Tensor | None = None) -> Tensor:
    if not (rows.numel() and columns.numel()):
        return nn.functional.linear(rows, columns, bias)  # oneDNN has no empty products
    if not (columns.is_contiguous() or columns.T.is_contiguous()):
        columns = columns.contiguous()  # with space between its rows the product takes a thousand times as long
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), columns, bias, "none", [], "")
    return product


@cache
def _onednn_is_faster() -> bool:
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return has_avx512 and processor_name().startswith("AMD") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
