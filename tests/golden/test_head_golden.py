"""Losses of heads by hand, their scores and first weights; other losses are in test_listwise_golden."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.methods import head_loss
from unimoe.studies.heads.model import head_scores, initial_weight

E, L2 = math.exp, math.log2


def loss_of(name: str, scores: Tensor, grades: Tensor, temperature: float, k: int = 10) -> float:
    config, valid = TrainConfig(temperature=temperature, ndcg_k=k), torch.ones_like(scores, dtype=torch.bool)
    return float(head_loss(name, scores, grades, valid, config, torch.Generator().manual_seed(0)))


def test_infonce_by_hand() -> None:
    """Two positives: each against the one negative and itself, never against the other."""
    first, second = -math.log(E(2) / (E(2) + E(1))), -math.log(E(3) / (E(3) + E(1)))
    found = loss_of("infonce", torch.tensor([[0.2, 0.1, 0.3]]), torch.tensor([[1.0, 0.0, 2.0]]), 0.1)
    assert found == pytest.approx((first + second) / 2, rel=1e-6)


def test_approxndcg_by_hand() -> None:
    """Rank of document i: 1 + the sum over the others of sigmoid((s_j - s_i) / temperature)."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + E(-x))

    first, third = 1 + sigmoid(2) + sigmoid(4), 1 + sigmoid(-4) + sigmoid(-2)
    value = (2 / L2(1 + first) + 1 / L2(1 + third)) / (2 / L2(2) + 1 / L2(3))
    found = loss_of("approxndcg", torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 1.0]]), 0.5)
    assert found == pytest.approx(1 - value, rel=1e-6)
    sharp = loss_of("approxndcg", torch.tensor([[0.3, 0.1, 0.2]]), torch.tensor([[0.0, 1.0, 2.0]]), 1e-3)
    assert 1 - sharp == pytest.approx((1 / L2(4) + 2 / L2(3)) / (2 + 1 / L2(3)), abs=1e-5), "nDCG itself"


def test_lambdaloss_by_hand_counts_only_pairs_that_touch_the_first_k() -> None:
    """One pair, the negative ahead: weight (10 delta + swap) times the gain, cost log2(1 + e^difference)."""
    delta = swap = 1 - 1 / L2(3)
    found = loss_of("lambdaloss", torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]]), 1.0)
    assert found == pytest.approx((10 * delta + swap) * L2(1 + E(1)), rel=1e-6)
    scores, grades = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    moved = scores - torch.tensor([[0.0, 0.0, 0.0, 0.5]])
    assert loss_of("lambdaloss", moved, grades, 1.0, k=1) == loss_of("lambdaloss", scores, grades, 1.0, k=1)
    assert loss_of("lambdaloss", moved, grades, 1.0, k=4) != loss_of("lambdaloss", scores, grades, 1.0, k=4)


def test_scores_of_a_head_by_hand() -> None:
    weight = torch.tensor([[1.0, 0.0, 2.0]])
    queries, documents = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[[1.0, 5.0, 0.0], [0.0, 1.0, -1.0]]])
    assert head_scores(weight, queries, documents, "dot").tolist() == [[3.0, -6.0]]
    assert head_scores(weight, queries, documents, "cosine").tolist() == [[1.0, -1.0]]


def test_the_first_weights_by_pca_keep_what_documents_differ_in() -> None:
    """Documents in a plane: two outputs keep every dot product."""
    generator = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(6, 2, generator=generator)).Q
    documents = torch.randn(20, 2, generator=generator) @ plane.T
    weight = initial_weight("pca", documents, 2, seed=0)
    assert torch.allclose((documents @ weight.T) @ (documents @ weight.T).T, documents @ documents.T, atol=1e-5)
    assert torch.allclose(weight @ weight.T, torch.eye(2), atol=1e-6)
