"""Ranking losses against numbers by hand, and against sentence-transformers where it is right."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import pytest
import torch
from sentence_transformers.cross_encoder import losses as theirs
from torch import Tensor

from unimoe.config.training import LossConfig
from unimoe.core.errors import InputError
from unimoe.training.losses.built_in import softmax_loss
from unimoe.training.losses.from_sentence_transformers import GivenScores, PositionWeights
from unimoe.training.losses.listwise import ListwiseLoss

E = math.e


def loss_of(scores: list[float], labels: list[float], **options: Any) -> float:
    return float(ListwiseLoss(LossConfig(**options))([torch.tensor(scores)], [torch.tensor(labels)]))


class TestByHand:
    """Scores 1, 0 and -1 in the right order. Plackett-Luce: first 1 among {1, 0, -1}, then 0 among {0, -1}."""

    scores, labels = [1.0, 0.0, -1.0], [2.0, 1.0, 0.0]
    first = math.log(E + 1 + 1 / E) - 1
    second = math.log(1 + 1 / E)

    def test_listmle(self) -> None:
        assert loss_of(self.scores, self.labels, name="listmle") == pytest.approx(self.first + self.second, rel=1e-6)
        assert self.first + self.second == pytest.approx(0.7208676519)  # 0.4076059644 + 0.3132616875

    def test_plistmle(self) -> None:
        """Weights 2^(3-i) - 1 = 3, 1, 0."""
        assert loss_of(self.scores, self.labels) == pytest.approx((3 * self.first + self.second) / 4, rel=1e-6)
        unnormalized = loss_of(self.scores, self.labels, normalize_weights=False)
        assert unnormalized == pytest.approx(3 * self.first + self.second, rel=1e-6)
        assert loss_of(self.scores, self.labels, normalization_method="none") == unnormalized

    @pytest.mark.parametrize(
        ("options", "weights"),
        [
            ({"normalization_method": "softmax"}, [E**3, E, 1]),
            ({"normalization_method": "minmax"}, [1, 1 / 3, 0]),
            ({"normalization_method": "log"}, [math.log(4), math.log(2), 0]),
            ({"normalization_method": "temperature", "temperature": 0.5}, [9, 1, 0]),
            ({"normalization_method": "temperature", "temperature": 2.0}, [math.sqrt(3), 1, 0]),
            ({"normalization_method": "temperature", "temperature": 1.0}, [3, 1, 0]),
            ({"rank_discount": "exponential_plus_1"}, [7, 3, 1]),
            ({"rank_discount": "identity"}, [1, 1, 1]),
            ({"rank_discount": "identity", "normalization_method": "minmax"}, [1, 1, 1]),
            ({"rank_discount": "reciprocal"}, [1, 1 / 2, 1 / 3]),
            ({"rank_discount": "log1p"}, [1 / math.log(2), 1 / math.log(3), 1 / math.log(4)]),
            ({"rank_discount": "log2"}, [1, 1 / math.log2(3), 1 / 2]),
        ],
    )
    def test_weights(self, options: dict[str, Any], weights: list[float]) -> None:
        expected = (weights[0] * self.first + weights[1] * self.second) / sum(weights)
        assert loss_of(self.scores, self.labels, **options) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(
        ("options", "scores", "labels", "expected"),
        [
            # -1 is to be picked before 1: log(e^-1 + e^1) - -1 = log(1 + e^2).
            ({"name": "listmle"}, [-1.0, 1.0], [1.0, 0.0], math.log(1 + E**2)),
            ({"name": "softmax"}, [-1.0, 1.0], [1.0, 0.0], math.log(1 + E**2)),
            ({"name": "ranknet"}, [-1.0, 1.0], [1.0, 0.0], math.log2(1 + E**2)),
            # Activations come first.
            ({"name": "listmle", "activation": "Tanh"}, [-1.0, 1.0], [1.0, 0.0], math.log(1 + E ** (2 * math.tanh(1)))),
            # Labels 1 and 0 as a distribution: e / (e + 1) and 1 / (e + 1); at a label temperature of .1, e^10 : 1.
            ({"name": "listnet"}, [1.0, 0.0], [1.0, 0.0], math.log(1 + E) - E / (E + 1)),
            (
                {"name": "listnet", "label_temperature": 0.1},
                [1.0, 0.0],
                [1.0, 0.0],
                math.log(1 + E) - E**10 / (E**10 + 1),
            ),
            # Approximate ranks 1 + sigmoid(-1) and 1 + sigmoid(1) against 1 and 2, discounts 1 and 1 / log2(3).
            ({"name": "adrmse"}, [1.0, 0.0], [1.0, 0.0], (1 / (1 + E)) ** 2 * (1 + 1 / math.log2(3)) / 2),
            # Margins 1 and 2 against 1 and 1.5; the best document need not be first.
            ({"name": "marginmse"}, [0.0, 1.0, -1.0], [0.5, 1.5, 0.0], 0.125),
            ({"name": "yes_no"}, [1.0, 1.0], [1.0, 0.0], (math.log(1 + 1 / E) + math.log(1 + E)) / 2),
            # One pair whose normalised gains differ by 1: mu times NDCG-Loss2's weight, plus that of the swap of places
            # 1 and 2, which is the same at distance 1.
            ({"name": "lambdaloss"}, [1.0, 0.0], [1.0, 0.0], 11 * (1 - 1 / math.log2(3)) * math.log2(1 + 1 / E)),
            # Each best document against the worse one.
            (
                {"name": "softmax"},
                [2.0, 1.0, 0.0],
                [1.0, 1.0, 0.0],
                (math.log(1 + E**-2) + math.log(1 + E**-1)) / 2,
            ),
        ],
        ids=lambda value: value["name"] if isinstance(value, dict) else "",
    )
    def test_others(self, options: dict[str, Any], scores: list[float], labels: list[float], expected: float) -> None:
        assert loss_of(scores, labels, **options) == pytest.approx(expected, rel=1e-5)


LABELS = [torch.tensor([2.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 2.0, 1.0, 1.0, 0.0])]


def scores() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [(3 * torch.randn(len(row), generator=generator)).requires_grad_() for row in LABELS]


def their_loss(make: Any, rows: list[Tensor], labels: list[Tensor]) -> Tensor:
    """A loss of sentence-transformers, called as its trainer calls it."""
    given = GivenScores(torch.cat(rows))
    ends = torch.tensor([len(row) for row in rows]).cumsum(0).tolist()
    documents = [[*range(end - len(row), end)] for row, end in zip(rows, ends, strict=True)]
    return cast(Tensor, make(given)([["query"] * len(rows), documents], labels))


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({"name": "listmle"}, theirs.ListMLELoss),
        ({"name": "plistmle"}, theirs.PListMLELoss),
        ({"name": "plistmle", "activation": "Tanh"}, lambda m: theirs.PListMLELoss(m, activation_fn=torch.nn.Tanh())),
        (
            {"name": "plistmle", "rank_discount": "log1p"},
            lambda m: theirs.PListMLELoss(
                m,
                lambda_weight=theirs.PListMLELambdaWeight(
                    lambda mask: (1.0 / torch.log1p(mask.cumsum(dim=-1))).masked_fill(~mask, 0)
                ),
            ),
        ),
        ({"name": "listnet"}, theirs.ListNetLoss),
        ({"name": "lambdaloss"}, theirs.LambdaLoss),
        ({"name": "lambdaloss", "k": 2}, lambda m: theirs.LambdaLoss(m, k=2)),
        ({"name": "ranknet"}, theirs.RankNetLoss),
        ({"name": "adrmse", "alpha": 2.0}, lambda m: theirs.ADRMSELoss(m, alpha=2.0)),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)  # fmt: skip
def test_equals_sentence_transformers(options: dict[str, Any], make: Any) -> None:
    ours_at, theirs_at = scores(), scores()
    ours = ListwiseLoss(LossConfig(**options))(ours_at, LABELS)
    expected = their_loss(make, theirs_at, LABELS)
    assert float(ours) == pytest.approx(float(expected), rel=1e-6)
    ours.backward()
    expected.backward()  # type: ignore[no-untyped-call]
    for row, other in zip(ours_at, theirs_at, strict=True):
        assert row.grad is not None
        torch.testing.assert_close(row.grad, other.grad)


def test_the_shipped_softmax_is_a_special_case() -> None:
    gaps = 2 * torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(4, 5)
    labels[:, 0] = 1
    ours = ListwiseLoss(LossConfig(name="softmax"))(list(gaps), list(labels))
    torch.testing.assert_close(ours, softmax_loss(gaps))


@pytest.mark.parametrize("length", [1, 2, 10, 127, 128, 300])
@pytest.mark.parametrize("method", ["sum", "softmax", "minmax", "log", "temperature"])
def test_weights_of_a_list_sum_to_one(length: int, method: Any) -> None:
    mask = torch.zeros(2, 300, dtype=torch.bool)
    mask[0, :length] = True
    mask[1, : length // 2] = True
    weights = PositionWeights(LossConfig(normalization_method=method))(mask)
    assert not weights[~mask].any()
    for row, size in zip(weights, (length, length // 2), strict=True):
        # The weight of a single document is 0 before the softmax and the minimum, so there is nothing to divide by.
        something = size > 1 or (size == 1 and method in ("softmax", "minmax"))
        assert float(row.sum()) == pytest.approx(1.0 if something else 0.0, abs=1e-5)


def exact_weights(length: int, method: str, last: int) -> list[float]:
    """The weights of a list in whole numbers and fractions, whatever their size."""
    weights = [Fraction(2 ** (length - place + last) - 1) for place in range(1, length + 1)]
    if method == "log":
        return [(length - place + last) * math.log(2) for place in range(1, length + 1)]
    if method == "minmax":
        return [float((weight - weights[-1]) / (weights[0] - weights[-1])) for weight in weights]
    if method == "temperature":
        return [math.sqrt(float(weight / weights[0])) for weight in weights]
    return [float(weight / weights[0]) for weight in weights]


@pytest.mark.parametrize("length", [5, 126, 127, 128, 200, 1500])
@pytest.mark.parametrize("method", ["sum", "minmax", "log", "temperature"])
@pytest.mark.parametrize(("discount", "last"), [("exponential", 0), ("exponential_plus_1", 1)])
def test_weights_of_long_lists_are_exact(length: int, method: Any, discount: Any, last: int) -> None:
    options = LossConfig(rank_discount=discount, normalization_method=method, temperature=2.0)
    found = PositionWeights(options)(torch.ones(1, length, dtype=torch.bool))[0]
    expected = exact_weights(length, method, last)
    assert found.tolist() == pytest.approx([weight / math.fsum(expected) for weight in expected], rel=1e-5, abs=1e-37)
    if method == "log" and length == 200 and not last:
        assert float(found[0]) == pytest.approx(0.0100, abs=1e-6)


def test_the_softmax_of_long_lists_is_all_on_the_first_place() -> None:
    found = PositionWeights(LossConfig(normalization_method="softmax"))(torch.ones(1, 1500, dtype=torch.bool))[0]
    assert found[0] == 1
    assert not found[1:].any()


def test_weights_as_they_are_end_where_float32_does() -> None:
    """Equal scores: the document at place i is one of n - i + 1."""

    def loss(length: int) -> float:
        labels = torch.linspace(1, 0, length).tolist()
        return loss_of([0.0] * length, labels, normalization_method="none")

    expected = math.fsum((2 ** (120 - place) - 1) * math.log(121 - place) for place in range(1, 121))
    assert loss(120) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match=r"weights of 200 documents that are not normalised are beyond float32"):
        loss(200)
    assert loss_of([0.0] * 200, torch.linspace(1, 0, 200).tolist()) < 10
