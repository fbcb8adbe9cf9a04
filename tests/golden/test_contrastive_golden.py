"""Contrastive losses against pytorch-metric-learning and numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import distances, losses
from torch import Tensor

from unimoe.config.training import LossConfig
from unimoe.training.losses.built_in import info_nce, nt_xent
from unimoe.training.losses.listwise import ListwiseLoss

TEMPERATURE = 0.2


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Six queries of three classes against ten documents: unit vectors, then classes."""
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (torch.randn(n, 8, generator=generator) for n in (6, 10))
    unit = torch.nn.functional.normalize
    return (
        unit(queries),
        unit(documents),
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 2]),
    )


def test_one_positive_is_cross_entropy_whichever_way_it_is_computed() -> None:
    scores = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    positives = torch.tensor([3, 0, 8, 3, 1])
    mask = torch.nn.functional.one_hot(positives, 9).bool()
    expected = torch.nn.functional.cross_entropy(scores, positives)
    assert info_nce(scores, positives) == expected
    torch.testing.assert_close(info_nce(scores, mask), expected)
    torch.testing.assert_close(nt_xent(scores, mask, torch.ones_like(mask)).mean(), expected)


def test_several_positives_in_one_softmax_are_supcon() -> None:
    queries, documents, of_queries, of_documents = batch()
    scores = queries @ documents.T / TEMPERATURE
    positives = of_queries[:, None] == of_documents
    peer = losses.SupConLoss(temperature=TEMPERATURE, distance=distances.CosineSimilarity())
    expected = peer(queries, of_queries, ref_emb=documents, ref_labels=of_documents)
    torch.testing.assert_close(info_nce(scores, positives), expected)
    by_name = ListwiseLoss(LossConfig(name="supcon"))(list(scores), list(positives.float()))
    torch.testing.assert_close(by_name, expected)


def test_each_positive_against_the_negatives_is_nt_xent() -> None:
    """Theirs is the mean over pairs; every query has as many positives as another of its class."""
    queries, documents, of_queries, of_documents = batch()
    positives = of_queries[:, None] == of_documents
    scores = queries @ documents.T / TEMPERATURE
    peer = losses.NTXentLoss(temperature=TEMPERATURE, distance=distances.CosineSimilarity())
    expected = [
        peer(queries[i : i + 1], of_queries[i : i + 1], ref_emb=documents, ref_labels=of_documents) for i in range(6)
    ]
    found = nt_xent(scores, positives, torch.ones_like(positives))
    torch.testing.assert_close(found, torch.stack(expected))
    by_name = ListwiseLoss(LossConfig(name="infonce"))(list(scores), list(positives.float()))
    torch.testing.assert_close(by_name, torch.stack(expected).mean())


def test_both_by_hand_where_they_differ() -> None:
    """Scores 2 and 1 of positives, 0 of the negative."""
    scores, labels = [torch.tensor([2.0, 1.0, 0.0])], [torch.tensor([1.0, 1.0, 0.0])]
    e = math.e
    apart = (math.log(1 + e**-2) + math.log(1 + e**-1)) / 2
    together = math.log(e**2 + e + 1) - 1.5
    assert float(ListwiseLoss(LossConfig(name="infonce"))(scores, labels)) == pytest.approx(apart, rel=1e-6)
    assert float(ListwiseLoss(LossConfig(name="supcon"))(scores, labels)) == pytest.approx(together, rel=1e-6)


def test_a_false_negative_is_no_negative() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.2], [0.0, 2.0, 1.6]])
    excluded = torch.tensor([[False, False, True], [False, False, False]])
    first, second = math.log(1 + math.exp(-2)), math.log(1 + math.exp(-2) + math.exp(-0.4))
    loss = info_nce(scores, torch.tensor([0, 1]), excluded)
    assert float(loss) == pytest.approx((first + second) / 2, rel=1e-6)
