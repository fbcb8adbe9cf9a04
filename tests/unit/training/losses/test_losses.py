from __future__ import annotations

import math

import pytest
import torch

from unimoe.training.losses.built_in import info_nce, softmax_loss, yes_no_loss


class TestYesNo:
    def test_it_is_the_cross_entropy_of_the_two_answers(self) -> None:
        torch.manual_seed(0)
        logits = 5 * torch.randn(64, 2)  # no, yes
        labels = torch.arange(64) % 2
        expected = -torch.log_softmax(logits, dim=1)[torch.arange(64), labels]
        found = yes_no_loss(logits[:, 1] - logits[:, 0], labels.float())
        torch.testing.assert_close(found, expected)


class TestSoftmax:
    def test_by_hand(self) -> None:
        gaps = torch.tensor([[1.0, 0.0, 2.0], [3.0, 3.0, 3.0]])
        first = -math.log(math.e / (math.e + 1 + math.exp(2)))
        assert float(softmax_loss(gaps)) == pytest.approx((first + math.log(3)) / 2, rel=1e-6)


class TestInfoNCE:
    # Cosines: the first query 1 and 0 and 0.6, the second 0 and 1 and 0.8.
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    documents = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    positives = torch.tensor([0, 1])
    scores = queries @ documents.T / 0.5
    nothing = torch.zeros(2, 3, dtype=torch.bool)

    def test_by_hand(self) -> None:
        first = -math.log(math.exp(2) / (math.exp(2) + math.exp(0) + math.exp(1.2)))
        second = -math.log(math.exp(2) / (math.exp(0) + math.exp(2) + math.exp(1.6)))
        loss = info_nce(self.scores, self.positives, self.nothing)
        assert float(loss) == pytest.approx((first + second) / 2, rel=1e-6)

    def test_a_false_negative_is_no_negative(self) -> None:
        excluded = self.nothing.clone()
        excluded[0, 2] = True
        first = -math.log(math.exp(2) / (math.exp(2) + math.exp(0)))
        second = -math.log(math.exp(2) / (math.exp(0) + math.exp(2) + math.exp(1.6)))
        loss = info_nce(self.scores, self.positives, excluded)
        assert float(loss) == pytest.approx((first + second) / 2, rel=1e-6)
