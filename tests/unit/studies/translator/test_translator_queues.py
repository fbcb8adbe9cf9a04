"""Queues: no copy of a caption's own image is ever its negative, and past predictions are of other captions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from unimoe.studies.translator.training.losses import Negatives, contrastive_loss
from unimoe.studies.translator.training.objective import ImageQueue, PredictionQueue

CPU = torch.device("cpu")


class TestImages:
    def test_an_image_stands_once_at_its_newest_place(self) -> None:
        queue = ImageQueue(10, CPU)
        queue.push(torch.tensor([1, 2, 3, 3]))
        queue.push(torch.tensor([2, 4]))
        assert queue.ids.tolist() == [1, 3, 2, 4]

    def test_the_oldest_are_dropped(self) -> None:
        queue = ImageQueue(3, CPU)
        for start in (0, 2, 4):
            queue.push(torch.tensor([start, start + 1]))
        assert queue.ids.tolist() == [3, 4, 5]

    def test_recent_are_the_newest_without_those_of_the_batch(self) -> None:
        queue = ImageQueue(10, CPU)
        queue.push(torch.arange(4))
        queue.push(torch.arange(4, 8))
        assert queue.recent(5, without=torch.tensor([5, 0])).tolist() == [3, 4, 6, 7]
        assert queue.recent(0, without=torch.tensor([5])).tolist() == []
        assert queue.recent(99, without=torch.tensor([9])).tolist() == [*range(8)]


class TestPredictions:
    @pytest.fixture
    def queue(self) -> PredictionQueue:
        """Captions 0 to 5, two of each of the images 0, 1, 2; the prediction of caption c is (c, c)."""
        queue = PredictionQueue(8, 2, CPU)
        for captions in (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])):
            queue.push(captions[:, None].expand(-1, 2).float(), captions // 2, captions)
        return queue

    def test_positives_are_of_the_same_image_and_another_caption(self, queue: PredictionQueue) -> None:
        found = queue.positives(torch.tensor([0, 2, 7]), torch.tensor([0, 9, 3]), per_image=3)
        held = [sorted(row[valid][:, 0].tolist()) for row, valid in zip(found.vectors, found.valid, strict=True)]
        assert held == [[1.0], [4.0, 5.0], []]

    def test_the_newest_come_first_and_no_more_than_asked(self, queue: PredictionQueue) -> None:
        found = queue.positives(torch.tensor([1]), torch.tensor([8]), per_image=1)
        assert found.vectors[found.valid].tolist() == [[3.0, 3.0]]

    def test_a_newer_prediction_drops_the_older_one_of_its_caption(self, queue: PredictionQueue) -> None:
        queue.push(torch.tensor([[9.0, 9.0]]), torch.tensor([0]), torch.tensor([0]))
        found = queue.positives(torch.tensor([0]), torch.tensor([1]), per_image=4)
        assert found.vectors[found.valid].tolist() == [[9.0, 9.0]]

    def test_the_oldest_give_way(self, queue: PredictionQueue) -> None:
        captions = torch.arange(6, 12)
        queue.push(captions[:, None].expand(-1, 2).float(), captions // 2, captions)
        vectors, images = queue.others(torch.tensor([11]))
        assert sorted(vectors[:, 0].tolist()) == [3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
        assert len(images) == 7

    def test_what_is_kept_has_no_gradient(self) -> None:
        queue = PredictionQueue(4, 2, CPU)
        queue.push(torch.ones(1, 2, requires_grad=True), torch.tensor([0]), torch.tensor([0]))
        assert not queue.positives(torch.tensor([0]), torch.tensor([1]), 1).vectors.requires_grad


class TestMining:
    @pytest.fixture
    def bank(self) -> torch.Tensor:
        return normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)

    def test_the_target_is_never_mined_though_it_is_nearest(self, bank: torch.Tensor) -> None:
        ids = torch.arange(5)
        anchors = bank[ids].clone().requires_grad_()  # nothing is nearer than its own image
        found = contrastive_loss(anchors, ids, bank, None, 0.1, negatives=Negatives(hardest=3))
        scores = (bank[ids] @ bank.T) / 0.1
        scores[ids, ids] = -torch.inf
        hardest = scores.topk(3, dim=1).values
        own = torch.full((5, 1), 10.0, dtype=torch.float64)
        expected = (torch.cat([own, hardest], dim=1).logsumexp(1) - 10.0).mean()
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)

    def test_copies_of_the_target_are_not_mined_either(self, bank: torch.Tensor) -> None:
        ids, doubled = torch.arange(5), torch.cat([bank, bank[:5]])
        labels = torch.cat([torch.arange(40), ids])
        anchors = bank[ids].clone()
        found = contrastive_loss(anchors, ids, doubled, labels, 0.1, negatives=Negatives(hardest=3))
        scores = ((anchors @ doubled.T) / 0.1).masked_fill(ids[:, None] == labels, -torch.inf)
        own = torch.full((5, 2), 10.0, dtype=torch.float64)
        expected = (torch.cat([own, scores.topk(3, dim=1).values], dim=1).logsumexp(1) - 10.0).mean()
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)

    def test_what_stands_before_the_start_always_counts(self, bank: torch.Tensor) -> None:
        ids, anchors = torch.arange(5), normalize(bank[:5] + bank[5:10], dim=1)
        found = contrastive_loss(anchors, ids, bank, None, 0.1, negatives=Negatives(hardest=4, start=10))
        scores = (anchors @ bank.T) / 0.1
        kept = torch.cat([scores[:, :10], scores[:, 10:].topk(4, dim=1).values], dim=1)
        assert found.item() == pytest.approx((kept.logsumexp(1) - scores[ids, ids]).mean().item(), rel=1e-12)

    def test_asking_for_all_is_plain_infonce(self, bank: torch.Tensor) -> None:
        ids, anchors = torch.arange(5), normalize(bank[:5] + bank[5:10], dim=1)
        plain = contrastive_loss(anchors, ids, bank, None, 0.1)
        for hardest in (39, 40, 99):
            mined = contrastive_loss(anchors, ids, bank, None, 0.1, negatives=Negatives(hardest=hardest))
            assert mined.item() == pytest.approx(plain.item(), rel=1e-12)
