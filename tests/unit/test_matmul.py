"""Products by either library, on any processor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unimoe.models import matmul
from unimoe.models.matmul import matmul_nt, takes_onednn

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda matrix: matrix,
    "transposed": lambda matrix: matrix.T.contiguous().T,
    "with gaps": lambda matrix: torch.cat([matrix, matrix], dim=1)[:, : matrix.shape[1]],
    "expanded": lambda matrix: matrix[:1].expand(matrix.shape),
}


@pytest.mark.parametrize("rows", LAYOUTS)
@pytest.mark.parametrize("columns", LAYOUTS)
@pytest.mark.parametrize("sizes", [(33, 17, 40), (1, 1, 1), (0, 3, 5), (3, 0, 5)])
def test_a_product_in_any_layout(rows: str, columns: str, sizes: tuple[int, int, int], library: str) -> None:
    n, m, k = sizes
    draw = torch.Generator().manual_seed(n)
    left = LAYOUTS[rows](torch.randn(n, k, generator=draw))
    right = LAYOUTS[columns](torch.randn(m, k, generator=draw))
    found = matmul_nt(left, right)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), left.double() @ right.double().T, rtol=0, atol=1e-4)


def test_memory_is_used_where_the_library_can(library: str) -> None:
    left, right, out = torch.randn(5, 8), torch.randn(4, 8), torch.empty(5, 4)
    found = matmul_nt(left, right, out=out)
    assert (found is out) == (library == "MKL")
    torch.testing.assert_close(found, left @ right.T)


def test_what_is_not_finite_stays_so(library: str) -> None:
    left = torch.ones(3, 8)
    left[1, 2], left[2, 2] = torch.nan, torch.inf
    found = matmul_nt(left, torch.ones(4, 8))
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
    assert found[2].isinf().all()


def test_gradients_flow_through_either(library: str) -> None:
    left, right = torch.randn(3, 8, requires_grad=True), torch.randn(4, 8)
    (gradient,) = torch.autograd.grad(matmul_nt(left, right).sum(), left)
    torch.testing.assert_close(gradient, right.sum(dim=0).expand(3, 8))
    with torch.no_grad():
        assert takes_onednn(left, right) == (library == "oneDNN")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_torchs(dtype: torch.dtype, library: str) -> None:
    left, right = torch.randn(3, 8).to(dtype), torch.randn(4, 8).to(dtype)
    assert not takes_onednn(left, right)
    assert torch.equal(matmul_nt(left, right), left @ right.T)


@pytest.mark.parametrize(
    ("processor", "capability", "expected"),
    [
        ("AMD EPYC 9B45", "AVX512", True),
        ("AMD EPYC 7B13", "AVX2", False),
        ("Intel(R) Xeon(R) CPU @ 2.50GHz", "AVX512", False),
        ("aarch64", "DEFAULT", False),
    ],
)
def test_onednn_is_for_amds_with_avx512(
    processor: str, capability: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "processor_name", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert matmul._onednn_is_faster.__wrapped__() is expected
