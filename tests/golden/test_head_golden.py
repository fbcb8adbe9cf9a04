"""Losses of heads against hand computation and against sentence-transformers' on the same logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from unimoe.studies.heads.initial_weight import initial_weight
from unimoe.studies.heads.losses import head_loss
from unimoe.studies.heads.model import head_scores

E, L2 = math.exp, math.log2


def loss_of(name: str, scores: Tensor, grades: Tensor, valid: Tensor, temperature: float, k: int) -> Tensor:
    return head_loss(name, scores, grades, valid, temperature, k, torch.Generator().manual_seed(0))


def valid(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


def test_infonce_by_hand() -> None:
    """Two positives: each against the one negative and itself, never against the other."""
    scores, grades = torch.tensor([[0.2, 0.1, 0.3]]), torch.tensor([[1.0, 0.0, 2.0]])
    first = -math.log(E(2) / (E(2) + E(1)))
    second = -math.log(E(3) / (E(3) + E(1)))
    assert loss_of("infonce", scores, grades, valid(scores), 0.1, 10).item() == pytest.approx(
        (first + second) / 2, rel=1e-6
    )


def test_listnet_by_hand() -> None:
    scores, grades = torch.tensor([[0.1, 0.2]]), torch.tensor([[1.0, 0.0]])
    target, found = E(1) / (E(1) + 1), E(1) / (E(1) + E(2))
    expected = -target * math.log(found) - (1 - target) * math.log(1 - found)
    assert loss_of("listnet", scores, grades, valid(scores), 0.1, 10).item() == pytest.approx(expected, rel=1e-6)


def test_approxndcg_by_hand() -> None:
    """Rank of document i: 1 + the sum over the others of sigmoid((s_j - s_i) / temperature)."""
    scores, grades = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 1.0]])

    def sigmoid(x: float) -> float:
        return 1 / (1 + E(-x))

    ranks = [1 + sigmoid(2) + sigmoid(4), 0.0, 1 + sigmoid(-4) + sigmoid(-2)]
    value = (2 / L2(1 + ranks[0]) + 1 / L2(1 + ranks[2])) / (2 / L2(2) + 1 / L2(3))
    assert loss_of("approxndcg", scores, grades, valid(scores), 0.5, 10).item() == pytest.approx(1 - value, rel=1e-6)


def test_approxndcg_becomes_ndcg_as_the_temperature_falls() -> None:
    scores, grades = torch.tensor([[0.3, 0.1, 0.2]]), torch.tensor([[0.0, 1.0, 2.0]])
    ndcg = (1 / L2(4) + 2 / L2(3)) / (2 + 1 / L2(3))
    assert 1 - loss_of("approxndcg", scores, grades, valid(scores), 1e-3, 10).item() == pytest.approx(ndcg, abs=1e-5)


def test_lambdaloss_by_hand() -> None:
    """One pair, the negative ahead: weight (10 delta + swap) times the gain, cost log2(1 + e^difference)."""
    scores, grades = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    delta, swap = 1 - 1 / L2(3), 1 - 1 / L2(3)
    expected = (10 * delta + swap) * L2(1 + E(1))
    assert loss_of("lambdaloss", scores, grades, valid(scores), 1.0, 10).item() == pytest.approx(expected, rel=1e-6)


class Logits:
    """Stands where sentence-transformers' losses expect a cross-encoder: it returns given logits."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def preprocess(self, pairs: list[Any], **_: Any) -> dict[str, Tensor]:
        return {"place": torch.arange(len(pairs))}

    def __call__(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": self._logits.flatten()[tokens["place"]]}


def theirs(loss: Any, logits: Tensor, grades: Tensor) -> Tensor:
    """A loss of sentence-transformers on ``(B, P)`` logits."""
    queries, documents = logits.shape
    inputs = [["q"] * queries, [["d"] * documents] * queries]
    value: Tensor = loss.forward(inputs, list(grades))
    return value


def binary(queries: int = 5, documents: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    grades = (torch.rand(queries, documents, generator=generator) < 0.3).float()
    grades[:, 0] = 1.0
    return torch.randn(queries, documents, generator=generator), grades


@pytest.mark.parametrize("k", [3, 12])
def test_lambdaloss_is_that_of_sentence_transformers(k: int) -> None:
    from sentence_transformers.cross_encoder.losses import LambdaLoss, NDCGLoss2PPScheme

    logits, grades = binary()
    grades = grades * 2
    ours_at, theirs_at = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = LambdaLoss.__new__(LambdaLoss)
    torch.nn.Module.__init__(loss)
    loss.__dict__ |= {"model": Logits(theirs_at), "k": k, "sigma": 1.0, "eps": 1e-10, "reduction_log": "binary"}
    loss.__dict__ |= {"mini_batch_size": -1}
    loss.activation_fn, loss.weighting_scheme = torch.nn.Identity(), NDCGLoss2PPScheme()
    ours, reference = loss_of("lambdaloss", ours_at / 2, grades, valid(logits), 0.5, k), theirs(loss, logits, grades)
    ours.backward()  # type: ignore[no-untyped-call]
    theirs(loss, theirs_at, grades).backward()  # type: ignore[no-untyped-call]
    assert ours.item() == pytest.approx(reference.item(), rel=1e-6)
    assert ours_at.grad is not None
    assert theirs_at.grad is not None
    assert torch.allclose(ours_at.grad, theirs_at.grad, atol=1e-6)


def test_listnet_is_that_of_sentence_transformers() -> None:
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    logits, grades = binary()
    loss = ListNetLoss.__new__(ListNetLoss)
    torch.nn.Module.__init__(loss)
    loss.__dict__ |= {"model": Logits(logits), "mini_batch_size": -1}
    loss.activation_fn, loss.cross_entropy_loss = torch.nn.Identity(), torch.nn.CrossEntropyLoss()
    ours = loss_of("listnet", logits / 20, grades * 3, valid(logits), 0.05, 10)
    assert ours.item() == pytest.approx(theirs(loss, logits, grades * 3).item(), rel=1e-5)


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
