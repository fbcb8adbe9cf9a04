"""What every loss of a head has in common: padding, queries without a positive, gradients that point the right way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unimoe.studies.heads.config import gradient_methods
from unimoe.studies.heads.losses import head_loss

OVER_POOLS = pytest.mark.parametrize("name", ["infonce", "supcon", "lambdaloss", "approxndcg", "listnet"])
ALL = pytest.mark.parametrize("name", gradient_methods())


def loss_of(name: str, scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, k: int) -> Tensor:
    return head_loss(name, scores, grades, valid, temperature, k, torch.Generator().manual_seed(0))


def some(queries: int = 3, documents: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(queries, documents, generator=generator)
    grades = (torch.rand(queries, documents, generator=generator) < 0.4).float()
    grades[:, 1] = 2.0
    return scores, grades, torch.ones_like(scores, dtype=torch.bool)


@ALL
def test_padded_places_change_nothing(name: str) -> None:
    scores, grades, valid = some()
    more, labels = (torch.nn.functional.pad(part, (0, 4), value=9.0) for part in (scores, grades))
    mask = torch.nn.functional.pad(valid, (0, 4), value=False)
    expected = loss_of(name, scores, grades, valid, 0.5, 4)
    assert loss_of(name, more, labels, mask, 0.5, 4).item() == pytest.approx(expected.item(), rel=1e-6)


@ALL
def test_a_query_without_a_positive_adds_nothing(name: str) -> None:
    scores, grades, valid = some()
    without = torch.cat([grades, torch.zeros(1, 6)])
    more, mask = torch.cat([scores, torch.randn(1, 6)]), torch.cat([valid, valid[:1]])
    expected = loss_of(name, scores, grades, valid, 0.5, 4)
    assert loss_of(name, more, without, mask, 0.5, 4).item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss_of(name, scores, torch.zeros_like(grades), valid, 0.5, 4).item() == 0.0


@ALL
def test_the_gradient_raises_the_positive_and_lowers_the_negative(name: str) -> None:
    scores = torch.tensor([[0.1, 0.3, 0.2]], requires_grad=True)
    grades, valid = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    loss_of(name, scores, grades, valid, 0.5, 10).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad[0, 0] < 0
    if name in OVER_POOLS.args[1]:  # others estimate it from samples
        assert min(scores.grad[0, 1], scores.grad[0, 2]) > 0


@OVER_POOLS
def test_the_order_of_documents_does_not_matter(name: str) -> None:
    scores, grades, valid = some()
    order = torch.tensor([5, 2, 0, 1, 4, 3])
    expected = loss_of(name, scores, grades, valid, 0.5, 4)
    assert loss_of(name, scores[:, order], grades[:, order], valid, 0.5, 4).item() == pytest.approx(expected.item())


@OVER_POOLS
def test_a_pair_far_out_of_order_still_has_a_gradient(name: str) -> None:
    """At temperature .01 the positive lies 100 below: a sigmoid of that underflows in float32."""
    scores = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss = loss_of(name, scores, torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool), 0.01, 10)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())
    if name != "approxndcg":  # whose sigmoids are flat there, as nDCG is
        assert scores.grad[0, 0] < -1.0


def test_lambdaloss_looks_only_at_pairs_that_touch_the_first_k() -> None:
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]], requires_grad=True)
    loss_of(
        "lambdaloss", scores, torch.tensor([[1.0, 0.0, 0.0, 1.0]]), torch.ones(1, 4, dtype=torch.bool), 1.0, 1
    ).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad[0, 3] == 0.0
    assert scores.grad[0, 0] != 0.0
