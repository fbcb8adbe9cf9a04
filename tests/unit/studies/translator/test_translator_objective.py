"""The objective: no copy of a caption's own image is its negative, and each component counts its activity."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.studies.translator.config import BankConfig, LossConfig, PositivesConfig
from unimoe.studies.translator.training.objective import ImageQueue, Objective, PredictionQueue, contrastive_loss

CPU = torch.device("cpu")


def test_the_queue_has_each_image_once_at_its_newest_place() -> None:
    queue = ImageQueue(5, CPU)
    queue.push(torch.tensor([1, 2, 3, 3]))
    queue.push(torch.tensor([2, 4]))
    assert queue.ids.tolist() == [1, 3, 2, 4]
    assert queue.recent(3, without=torch.tensor([4, 1])).tolist() == [3, 2]
    assert queue.recent(0, without=torch.tensor([5])).tolist() == []
    assert queue.recent(99, without=torch.tensor([9])).tolist() == [1, 3, 2, 4]
    queue.push(torch.tensor([7, 8]))
    assert queue.ids.tolist() == [3, 2, 4, 7, 8], "the oldest is dropped"


@pytest.fixture
def predictions() -> PredictionQueue:
    """Captions 0 to 5, two of each of the images 0, 1, 2; the prediction of caption c is (c, c)."""
    queue = PredictionQueue(8, 2, CPU)
    for captions in (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])):
        queue.push(captions[:, None].expand(-1, 2).float(), captions // 2, captions)
    return queue


def test_further_positives_are_of_the_same_image_and_another_caption(predictions: PredictionQueue) -> None:
    vectors, valid = predictions.positives(torch.tensor([0, 2, 7]), torch.tensor([0, 9, 3]), per_image=3)
    assert [sorted(row[own][:, 0].tolist()) for row, own in zip(vectors, valid, strict=True)] == [[1.0], [4.0, 5.0], []]
    vectors, valid = predictions.positives(torch.tensor([1]), torch.tensor([8]), per_image=1)
    assert vectors[valid].tolist() == [[3.0, 3.0]], "the newest come first"
    predictions.push(torch.full((1, 2), 9.0, requires_grad=True), torch.tensor([0]), torch.tensor([0]))
    vectors, valid = predictions.positives(torch.tensor([0]), torch.tensor([1]), per_image=4)
    assert vectors[valid].tolist() == [[9.0, 9.0]], "a newer prediction takes the place of the older of its caption"
    assert not vectors.requires_grad


def test_the_oldest_predictions_give_way(predictions: PredictionQueue) -> None:
    captions = torch.arange(6, 12)
    predictions.push(captions[:, None].expand(-1, 2).float(), captions // 2, captions)
    vectors, images = predictions.others(torch.tensor([11]))
    assert sorted(vectors[:, 0].tolist()) == [3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert len(images) == 7


@pytest.mark.parametrize("copies", [0, 5])
@pytest.mark.parametrize("start", [0, 10])
def test_an_anchors_own_image_is_never_mined_though_it_is_nearest(copies: int, start: int) -> None:
    bank = normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    ids, bank_ids = torch.arange(5), torch.cat([torch.arange(40), torch.arange(copies)])
    bank = bank[bank_ids]
    anchors = bank[:5].clone()
    scores = anchors @ bank.T / 0.1
    own = ids[:, None] == bank_ids
    others = scores.masked_fill(own, -torch.inf)
    kept = [scores.masked_fill(~own, -torch.inf), others[:, :start], others[:, start:].topk(3, dim=1).values]
    expected = (torch.cat(kept, dim=1).logsumexp(1) - 10.0).mean()
    found = contrastive_loss(anchors, ids, bank, bank_ids, 0.1, hardest=3, start=start)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    plain = contrastive_loss(anchors, ids, bank, bank_ids, 0.1)
    for all_of_them in (39 + copies, 99):
        mined = contrastive_loss(anchors, ids, bank, bank_ids, 0.1, hardest=all_of_them)
        assert mined.item() == pytest.approx(plain.item(), rel=1e-12)


def run(config: LossConfig, rounds: int = 3, recent: int = 40) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the terms of the last of some batches of 8 captions of 4 images, and the counts of all."""
    generator = torch.Generator().manual_seed(0)
    objective = Objective(config, normalize(torch.randn(30, 6, generator=generator), dim=1), 60)
    terms: dict[str, Tensor] = {}
    for number in range(rounds):
        captions = torch.arange(8) + 8 * number
        predicted = torch.randn(8, 6, generator=generator).requires_grad_()
        terms = objective(predicted, captions, captions // 2, 0.1, recent)
    return terms, dict(objective.counts)


def test_components_count_how_often_they_are_active() -> None:
    bank = BankConfig(kind="queue", hardest=3, queue=40, recent=[40])
    terms, fired = run(LossConfig(bank=bank, predictions=True, cosine=0.1))
    assert set(terms) == {"infonce", "predictions", "cosine", "moment", "agreement"}
    assert fired == {
        "queue_negatives": 8 * (0 + 4 + 8),
        "mined_negatives": 8 * (0 + 3 + 3),
        "extra_positives": 0,  # a batch holds both captions of its images, and no image comes again
        "past_predictions": 4 * (0 + 8 + 16),
        "same_image_pairs": 3 * 4,
    }  # fmt: skip
    terms, fired = run(LossConfig(positives=PositivesConfig(per_image=0), moment=0.0, agreement=0.0))
    assert (set(terms), fired) == ({"infonce"}, {})
    assert "queue_negatives" not in run(LossConfig(bank=BankConfig(kind="queue")), recent=0)[1]


def test_a_queue_of_everything_is_the_full_bank() -> None:
    full, _ = run(LossConfig(), rounds=1)
    generator = torch.Generator().manual_seed(0)
    bank = normalize(torch.randn(30, 6, generator=generator), dim=1)
    objective = Objective(LossConfig(bank=BankConfig(kind="queue")), bank, 60)
    objective.load_state(objective.state() | {"images.ids": torch.arange(30)})
    captions = torch.arange(8)
    queued = objective(torch.randn(8, 6, generator=generator), captions, captions // 2, 0.1, 40)
    assert queued["infonce"].item() == pytest.approx(full["infonce"].item(), rel=1e-6)
