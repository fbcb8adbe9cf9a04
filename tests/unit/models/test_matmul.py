"""Products by either library, on any processor."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from unimoe.models import matmul
from unimoe.models.matmul import QuickLinear, matmul_nt, quicken, takes_onednn

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda matrix: matrix,
    "transposed": lambda matrix: matrix.T.contiguous().T,
    "with gaps": lambda matrix: torch.cat([matrix, matrix], dim=1)[:, : matrix.shape[1]],
    "expanded": lambda matrix: matrix[:1].expand(matrix.shape),
}


@pytest.mark.parametrize("rows", LAYOUTS)
@pytest.mark.parametrize("columns", LAYOUTS)
@pytest.mark.parametrize("sizes", [(33, 17, 40), (1, 1, 1), (0, 3, 5), (3, 0, 5), (3, 4, 0)])
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


def test_gradients_are_those_of_float64(library: str) -> None:
    draw = torch.Generator().manual_seed(0)
    left, right, upstream = (torch.randn(*shape, generator=draw) for shape in ((5, 8), (4, 8), (5, 4)))
    doubles = [factor.double().requires_grad_() for factor in (left, right)]
    expected = torch.autograd.grad(doubles[0] @ doubles[1].T, doubles, upstream.double())
    singles = [factor.clone().requires_grad_() for factor in (left, right)]
    found = torch.autograd.grad(matmul_nt(singles[0], singles[1]), singles, upstream)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8), (1, 0, 8)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_quick_layer_is_the_layer(shape: tuple[int, ...], bias: bool, frozen: bool, library: str) -> None:
    plain = nn.Linear(8, 4, bias=bias)
    quick = nn.Sequential(deepcopy(plain), nn.GELU())
    quicken(quick)
    assert (type(quick[0]) is QuickLinear) == (library == "oneDNN")
    assert list(quick.state_dict()) == [f"0.{name}" for name in plain.state_dict()]
    plain.requires_grad_(not frozen)
    quick.requires_grad_(not frozen)
    inputs = [torch.linspace(-1, 1, 8).expand(shape).clone().requires_grad_() for _ in range(2)]
    expected, found = plain(inputs[0]), quick[0](inputs[1])
    torch.testing.assert_close(found, expected)
    wanted = [[inputs[0], *plain.parameters()], [inputs[1], *quick.parameters()]]
    wanted = [list(filter(lambda tensor: tensor.requires_grad, tensors)) for tensors in wanted]
    gradients = zip(
        torch.autograd.grad(found.square().sum(), wanted[1]),
        torch.autograd.grad(expected.square().sum(), wanted[0]),
        strict=True,
    )
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs)


def test_autocast_keeps_its_say(library: str) -> None:
    layer = nn.Sequential(nn.Linear(8, 4))
    quicken(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(2, 8)).dtype == torch.bfloat16


def test_layers_of_other_kinds_are_left_alone(library: str) -> None:
    class Own(nn.Linear):
        pass

    model = nn.ModuleList([Own(2, 2), nn.Embedding(2, 2)])
    quicken(model)
    assert [type(module) for module in model] == [Own, nn.Embedding]


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
