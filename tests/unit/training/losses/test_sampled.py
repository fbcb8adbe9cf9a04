"""What the losses that sample rankings share: draws by generator, annealing, padding, and the baseline by group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unimoe.config.files import parse_config
from unimoe.config.training import LossConfig
from unimoe.training.losses.built_in import padded
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import generator_of, spread_of

SCORES = [torch.tensor([0.2, 1.0, -0.4, 0.1]), torch.tensor([0.3, 0.1])]
LABELS = [torch.tensor([1.0, 0, 0, 2]), torch.tensor([1.0, 0])]
NAMES = ("score_es", "pg_rank")


def gradient(name: str, seed: int = 0, progress: float = 0.0, **options: Any) -> tuple[float, list[Tensor]]:
    """The loss and the gradients of the rows."""
    rows = [row.clone().requires_grad_() for row in SCORES]
    config = parse_config(LossConfig, {"name": name, **options}, source="test")
    loss = ListwiseLoss(config, generator=generator_of(7, seed))(rows, LABELS, progress)
    loss.backward()
    return float(loss.detach()), [row.grad for row in rows if row.grad is not None]


@pytest.mark.parametrize("name", NAMES)
class TestBoth:
    def test_seed_and_step_decide_every_bit(self, name: str) -> None:
        (first, rows), (again, same), (other, _) = gradient(name), gradient(name), gradient(name, seed=1)
        assert first == again
        assert all(torch.equal(a, b) for a, b in zip(rows, same, strict=True))
        assert first != other

    def test_padding_and_the_order_of_documents_change_nothing_but_the_draws(self, name: str) -> None:
        _, (row, _) = gradient(name, directions=20_000)
        config = LossConfig(name=name, directions=20_000)
        turned = SCORES[0].flip(0).requires_grad_()
        spread = spread_of(*padded(SCORES, LABELS)[::2])
        longer = torch.tensor([spread, -spread] * 20)  # leaves the spread of the batch as it is
        rows, labels = [turned, SCORES[1], longer], [LABELS[0].flip(0), LABELS[1], torch.zeros(40)]
        ListwiseLoss(config, generator=generator_of(1, 1))(rows, labels).backward()
        assert turned.grad is not None
        assert float(torch.cosine_similarity(turned.grad.flip(0), row, dim=0)) > 0.99


def test_noise_is_relative_to_the_spread() -> None:
    """Scores ten times as large have the same loss, and a tenth of the gradient."""
    loss = ListwiseLoss(LossConfig(name="score_es"), generator=generator_of(0, 0))
    row = SCORES[0].clone().requires_grad_()
    value = loss([row], LABELS[:1])
    value.backward()
    wide = (10 * SCORES[0]).requires_grad_()
    again = ListwiseLoss(LossConfig(name="score_es"), generator=generator_of(0, 0))([wide], LABELS[:1])
    again.backward()
    assert value.item() == pytest.approx(again.item(), rel=1e-6)
    assert row.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(10 * wide.grad, row.grad)
