"""InfoNCE with several positives, a margin and masks: by hand, against a loop, and in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimoe.studies.biencoder.config import ContrastiveConfig
from unimoe.studies.biencoder.steps import batch_backward, contrastive_loss
from unimoe.training.losses.built_in import label_matrix


def by_loop(queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, c: ContrastiveConfig) -> float:
    """The definition, number by number."""

    def one_way(rows: Tensor, columns: Tensor, targets: Tensor, left_out: Tensor) -> float:
        losses = []
        for i in range(len(rows)):
            if not targets[i].any():
                continue
            logits = {
                j: (float(rows[i] @ columns[j]) - (c.margin if targets[i, j] else 0.0)) / c.temperature
                for j in range(len(columns))
                if not left_out[i, j]
            }
            log_sum = math.log(sum(math.exp(value) for value in logits.values()))
            mine = [j for j in logits if targets[i, j]]
            losses.append(-sum(logits[j] - log_sum for j in mine) / len(mine))
        return sum(losses) / len(losses)

    forward = one_way(queries, documents, positives, excluded)
    return (forward + one_way(documents, queries, positives.T, excluded.T)) / 2 if c.symmetric else forward


def test_queries_of_one_text_share_their_positives() -> None:
    texts = ["a", "b", "a", "c"]
    same = torch.tensor([[one == other for other in texts] for one in texts])
    assert label_matrix(same).tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]


def test_the_margin_is_taken_before_the_temperature() -> None:
    vectors, positives = torch.eye(2), torch.eye(2, dtype=torch.bool)
    config = ContrastiveConfig(temperature=0.5, margin=0.1, symmetric=False)
    loss = contrastive_loss(vectors, vectors, positives, torch.zeros_like(positives), config)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-(1 - 0.1) / 0.5)))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_as_the_loop_has_it(symmetric: bool, margin: float) -> None:
    torch.manual_seed(0)
    queries, documents = (nn.functional.normalize(torch.randn(n, 6), dim=1) for n in (5, 9))
    positives = torch.zeros(5, 9, dtype=torch.bool)
    positives[range(5), [0, 1, 2, 3, 3]] = True
    positives[0, 1] = True  # and columns 4 to 8 are hard negatives
    excluded = (torch.rand(5, 9) < 0.2) & ~positives
    config = ContrastiveConfig(temperature=0.3, margin=margin, symmetric=symmetric)
    loss = contrastive_loss(queries, documents, positives, excluded, config)
    assert float(loss) == pytest.approx(by_loop(queries, documents, positives, excluded, config), abs=1e-6)


def test_gradients_stay_finite_under_masks() -> None:
    queries = torch.randn(3, 4, requires_grad=True)
    positives = torch.eye(3, dtype=torch.bool)
    contrastive_loss(queries, torch.randn(3, 4), positives, ~positives, ContrastiveConfig()).backward()  # type: ignore[no-untyped-call]
    assert queries.grad is not None
    assert bool(queries.grad.isfinite().all())


class TestChunks:
    def gradient(self, chunk_size: int | None, dropout: float = 0.0) -> tuple[float, Tensor]:
        """The loss and gradient of texts that are vectors of different lengths, summed up and projected."""
        torch.manual_seed(1)
        layer = nn.Linear(1, 4).double()
        generator = torch.Generator().manual_seed(3)
        texts = [torch.randn(1 + place % 4, generator=generator).double() for place in range(13)]
        positives = torch.eye(5, 8, dtype=torch.bool)

        def embed(inputs: Sequence[Any]) -> Tensor:
            summed = torch.stack([values.sum() for values in inputs])[:, None]
            hidden = nn.functional.dropout(torch.tanh(layer(summed)), dropout)
            return nn.functional.normalize(hidden + 0.1, dim=1)

        def loss_of(queries: Tensor, documents: Tensor) -> Tensor:
            return contrastive_loss(queries, documents, positives, torch.zeros_like(positives), ContrastiveConfig())

        loss = batch_backward(embed, texts[:5], texts[5:], loss_of, weight=0.5, chunk_size=chunk_size, seed=7)
        assert layer.weight.grad is not None
        return loss, layer.weight.grad

    @pytest.mark.parametrize(
        ("chunk_size", "dropout"),
        [(1, 0.0), (2, 0.0), (3, 0.0), (8, 0.0), (8, 0.3)],  # of 8, queries are one part, documents another, as of all
    )
    def test_the_gradient_is_that_of_the_whole_batch(self, chunk_size: int, dropout: float) -> None:
        loss, gradient = self.gradient(None, dropout)
        again, chunked = self.gradient(chunk_size, dropout)
        assert again == pytest.approx(loss, abs=1e-12)
        assert torch.allclose(gradient, chunked, atol=1e-10)
        assert float(gradient.abs().max()) > 1e-4
