"""The translator's losses against pytorch-metric-learning, against torch's own, and against numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from unimoe.studies.translator.training.objective import (
    agreement_loss,
    contrastive_loss,
    cosine_loss,
    moment_loss,
)

Sides = tuple[Tensor, Tensor, Tensor, Tensor]


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)


@pytest.fixture
def sides() -> Sides:
    """Anchors and candidates of ten images; every image is there once at least, some several times."""
    generator = torch.Generator().manual_seed(1)
    anchor_ids = torch.randint(0, 10, (12,), generator=generator)
    candidate_ids = torch.cat([torch.arange(10), torch.randint(0, 10, (30,), generator=generator)])
    return units(12, 8).requires_grad_(), anchor_ids, units(40, 8, seed=2).requires_grad_(), candidate_ids


@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
def test_several_positives_are_supcon(sides: Sides, temperature: float) -> None:
    anchors, anchor_ids, candidates, candidate_ids = sides
    oracle = SupConLoss(temperature, distance=DotProductSimilarity(normalize_embeddings=False), reducer=MeanReducer())
    expected = oracle(anchors, anchor_ids, ref_emb=candidates, ref_labels=candidate_ids)
    found = contrastive_loss(anchors, anchor_ids, candidates, candidate_ids, temperature)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(found, (anchors, candidates)),
        torch.autograd.grad(expected, (anchors, candidates)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_one_positive_over_the_full_bank_is_cross_entropy() -> None:
    anchors, bank, ids = units(12, 8).requires_grad_(), units(40, 8, seed=2), torch.arange(12) * 3
    expected = cross_entropy(anchors @ bank.T / 0.07, ids)
    found = contrastive_loss(anchors, ids, bank, None, 0.07)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(3.0 * found, anchors), torch.autograd.grad(3.0 * expected, anchors), rtol=1e-10, atol=1e-12
    )


def test_further_positives_are_candidates_of_their_anchor_alone() -> None:
    anchors, ids, bank = units(3, 4).requires_grad_(), torch.arange(3), units(6, 4, seed=2)
    vectors, valid = units(3, 2, 4, seed=3), torch.tensor([[True, True], [True, False], [False, False]])
    rows = []
    for row in range(3):
        own = vectors[row][valid[row]]
        labels = torch.cat([torch.arange(6), torch.full((len(own),), row)])
        rows.append(contrastive_loss(anchors[row : row + 1], ids[row : row + 1], torch.cat([bank, own]), labels, 0.2))
    expected = torch.stack(rows).mean()
    found = contrastive_loss(anchors, ids, bank, None, 0.2, extra=(vectors, valid))
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, anchors), torch.autograd.grad(expected, anchors))


def chuang(scores: Tensor, temperature: float, prior: float) -> Tensor:
    """One positive, column 0: N * max((mean negative - prior * positive) / (1 - prior), e^(-1/t))."""
    exponentials = (scores / temperature).exp()
    positive, negative = exponentials[:, 0], exponentials[:, 1:]
    estimate = (negative.mean(1) - prior * positive) / (1 - prior)
    total = negative.shape[1] * torch.clamp(estimate, min=math.exp(-1 / temperature))
    return -(positive / (positive + total)).log().mean()


@pytest.mark.parametrize("prior", [0.0, 0.01, 0.1, 0.6])
def test_the_debiased_loss_is_chuangs(prior: float) -> None:
    bank = units(30, 4, seed=5)
    ids = torch.arange(0, 30, 3)
    anchors = normalize(bank[ids] + 0.5 * units(10, 4, seed=6), dim=1).requires_grad_()
    scores = anchors @ bank.T
    others = torch.stack([torch.tensor([i, *(j for j in range(30) if j != i)]) for i in ids.tolist()])
    expected = chuang(scores.gather(1, others), 0.5, prior)
    found = contrastive_loss(anchors, ids, bank, None, 0.5, prior=prior)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(torch.autograd.grad(found, anchors), torch.autograd.grad(expected, anchors))


def test_a_small_temperature_overflows_nothing() -> None:
    bank, ids = units(40, 8).float(), torch.arange(12)
    anchors = units(12, 8, seed=2).float().requires_grad_()
    loss = contrastive_loss(anchors, ids, bank, None, 1e-3)
    assert loss.item() == pytest.approx(cross_entropy(anchors @ bank.T / 1e-3, ids).item(), rel=1e-5)
    assert torch.autograd.grad(loss, anchors)[0].isfinite().all()


def test_the_other_terms_by_hand() -> None:
    predicted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])
    assert cosine_loss(predicted, targets).item() == pytest.approx(1 - (1 + 0 + 0.96) / 3)
    # Means (.5333, .6) and (.9333, .2): .16 + .16. Deviations .41096, .43205 and .09428, .28284: .10029 + .02226.
    assert moment_loss(predicted, targets).item() == pytest.approx(0.32 + 0.12255, abs=1e-4)
    # Images 7, 7, 9: the mean of the first two is (.5, .5), each .5 away in square; the third has nobody to agree with.
    value, pairs = agreement_loss(predicted, torch.tensor([7, 7, 9]))
    assert value.item() == pytest.approx(0.5)
    assert pairs == 1
    assert agreement_loss(predicted, torch.tensor([1, 2, 3]))[0].item() == 0.0
