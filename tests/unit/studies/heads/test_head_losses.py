"""What every loss of a head has in common: padding, queries without a positive, gradients that point the right way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from unimoe.studies.heads.config import TrainConfig, gradient_methods
from unimoe.studies.heads.methods import head_loss

OVER_POOLS = ["infonce", "supcon", "lambdaloss", "approxndcg", "listnet"]


def loss_of(name: str, scores: Tensor, grades: Tensor, valid: Tensor | None = None, temperature: float = 0.5) -> Tensor:
    valid = torch.ones_like(scores, dtype=torch.bool) if valid is None else valid
    config = TrainConfig(temperature=temperature, ndcg_k=4)
    return head_loss(name, scores, grades, valid, config, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", gradient_methods())
def test_padding_and_queries_without_a_positive_change_nothing(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 6, generator=generator)
    grades = (torch.rand(3, 6, generator=generator) < 0.4).float()
    grades[:, 1] = 2.0
    expected = loss_of(name, scores, grades).item()
    valid = pad(torch.ones(3, 6, dtype=torch.bool), (0, 4), value=False)
    padded = loss_of(name, pad(scores, (0, 4), value=9.0), pad(grades, (0, 4), value=9.0), valid)
    assert padded.item() == pytest.approx(expected, rel=1e-6)
    more = loss_of(name, torch.cat([scores, torch.randn(1, 6)]), torch.cat([grades, torch.zeros(1, 6)]))
    assert more.item() == pytest.approx(expected, rel=1e-6)
    assert loss_of(name, scores, torch.zeros_like(grades)).item() == 0.0
    if name in OVER_POOLS:
        order = torch.tensor([5, 2, 0, 1, 4, 3])
        assert loss_of(name, scores[:, order], grades[:, order]).item() == pytest.approx(expected)


@pytest.mark.parametrize("name", gradient_methods())
def test_the_gradient_raises_the_positive_and_lowers_the_negative(name: str) -> None:
    scores = torch.tensor([[0.1, 0.3, 0.2]], requires_grad=True)
    (gradient,) = torch.autograd.grad(loss_of(name, scores, torch.tensor([[1.0, 0.0, 0.0]])), scores)
    assert gradient[0, 0] < 0
    if name in OVER_POOLS:  # others estimate it from samples
        assert min(gradient[0, 1:]) > 0


@pytest.mark.parametrize("name", OVER_POOLS)
def test_a_pair_far_out_of_order_still_has_a_gradient(name: str) -> None:
    """At temperature .01 the positive lies 100 below: a sigmoid of that underflows in float32."""
    scores = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss = loss_of(name, scores, torch.tensor([[1.0, 0.0]]), temperature=0.01)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert bool(gradient.isfinite().all())
    if name != "approxndcg":  # whose sigmoids are flat there, as nDCG is
        assert gradient[0, 0] < -1.0
