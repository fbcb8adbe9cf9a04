"""Heads: their losses, scores and first weights by hand; estimates of evolution against analytic gradients.

The nDCG of every perturbation is compared with pytrec_eval's in tests/property.
"""

from __future__ import annotations

import math

import pytest
import torch
from support.heads import doubled
from torch import Tensor

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.noise import directions, product_directions
from unimoe.studies.heads.eggroll.update import estimate
from unimoe.studies.heads.methods import head_loss
from unimoe.studies.heads.model import head_scores, initial_weight

pytestmark = pytest.mark.usefixtures("one_thread")

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


F64 = torch.float64


@pytest.mark.parametrize("rank", [1, 4])
def test_the_estimate_of_a_linear_objective_is_its_gradient_in_the_mean(rank: int) -> None:
    """With ``f(W) = <G, W>`` the mean is G, at every sigma; entries err by at most ``sqrt(2.. 6) |G| / sqrt(M)``."""
    count, truth = 60_000, torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    noise = doubled(directions(5, 0, count, 3, 4, rank=rank))
    change = torch.einsum("mko,od,mkd->m", noise.a, truth, noise.b) / rank**0.5
    for sigma in (0.01, 3.0):
        found = estimate(noise, torch.cat([sigma * change, -sigma * change]), sigma)
        torch.testing.assert_close(found, truth, rtol=0, atol=5 * math.sqrt(6 / count) * float(truth.norm()))


def test_the_squared_error_of_product_directions_is_the_stated_one() -> None:
    """On a linear objective, over 3,000 sets of 6 x 5 directions."""
    d_out, d_in, inputs, outputs = 4, 7, 6, 5
    truth = torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(0), dtype=F64)
    errors = []
    for step in range(3000):
        noise = doubled(product_directions(0, step, inputs, outputs, d_out, d_in))
        change = (noise.b @ truth.T @ noise.a.T).flatten()
        errors.append(
            (estimate(noise, torch.cat([change, -change]), 1.0) - truth).square().sum() / truth.square().sum()
        )
    expected = (1 + (d_out + 1) / outputs) * (1 + (d_in + 1) / inputs) - 1
    assert float(torch.stack(errors).mean()) == pytest.approx(expected, rel=0.06)
