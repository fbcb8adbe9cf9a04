"""Ranking losses by hand, and against sentence-transformers and pytorch-metric-learning."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import pytest
import torch
from pytorch_metric_learning import distances, losses
from sentence_transformers.cross_encoder import losses as theirs
from torch import Tensor

from unimoe.config.losses import LOSSES
from unimoe.core.errors import InputError
from unimoe.training.losses.formulas import info_nce, nt_xent
from unimoe.training.losses.from_sentence_transformers import GivenScores
from unimoe.training.losses.in_order import PListMLE
from unimoe.training.losses.listwise import ListwiseLoss

E = math.e


def loss_named(name: str = "plistmle", **keys: Any) -> ListwiseLoss:
    return ListwiseLoss(LOSSES[name].model_validate(keys))


def loss_of(scores: list[float], labels: list[float], **options: Any) -> float:
    return float(loss_named(**options)([torch.tensor(scores)], [torch.tensor(labels)]))


# Scores 1, 0 and -1 in the right order, by Plackett-Luce: first 1 among {1, 0, -1}, then 0 among {0, -1}.
SCORES, IN_ORDER = [1.0, 0.0, -1.0], [2.0, 1.0, 0.0]
FIRST, SECOND = math.log(E + 1 + 1 / E) - 1, math.log(1 + 1 / E)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [3, 1, 0]),
        ({"normalization_method": "softmax"}, [E**3, E, 1]),
        ({"normalization_method": "minmax"}, [1, 1 / 3, 0]),
        ({"normalization_method": "log"}, [math.log(4), math.log(2), 0]),
        ({"normalization_method": "temperature", "temperature": 0.5}, [9, 1, 0]),
        ({"normalization_method": "temperature", "temperature": 2.0}, [math.sqrt(3), 1, 0]),
        ({"discount": "exponential_plus_1"}, [7, 3, 1]),
        ({"discount": "identity"}, [1, 1, 1]),
        ({"discount": "identity", "normalization_method": "minmax"}, [1, 1, 1]),
        ({"discount": "reciprocal"}, [1, 1 / 2, 1 / 3]),
        ({"discount": "log1p"}, [1 / math.log(2), 1 / math.log(3), 1 / math.log(4)]),
        ({"discount": "log2"}, [1, 1 / math.log2(3), 1 / 2]),
    ],
)
def test_weights_of_places_by_hand(options: dict[str, Any], weights: list[float]) -> None:
    expected = (weights[0] * FIRST + weights[1] * SECOND) / sum(weights)
    assert loss_of(SCORES, IN_ORDER, **options) == pytest.approx(expected, rel=1e-5)
    if not options:
        for unnormalized in ({"normalize_weights": False}, {"normalization_method": "none"}):
            assert loss_of(SCORES, IN_ORDER, **unnormalized) == pytest.approx(3 * FIRST + SECOND, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "scores", "labels", "expected"),
    [
        # At a label temperature of .1, labels 1 and 0 are a distribution of e^10 : 1.
        ("listnet", {"label_temperature": 0.1}, [1.0, 0.0], [1.0, 0.0], math.log(1 + E) - E**10 / (E**10 + 1)),
        # Margins 1 and 2 against 1 and 1.5; the best document need not be first.
        ("marginmse", {}, [0.0, 1.0, -1.0], [0.5, 1.5, 0.0], 0.125),
        ("yes_no", {}, [1.0, 1.0], [1.0, 0.0], (math.log(1 + 1 / E) + math.log(1 + E)) / 2),
        ("softmax", {}, [-1.0, 1.0], [1.0, 0.0], math.log(1 + E**2)),
        # Each best document against the worse one.
        ("softmax", {}, [2.0, 1.0, 0.0], [1.0, 1.0, 0.0], (math.log(1 + E**-2) + math.log(1 + E**-1)) / 2),
    ],
)
def test_losses_by_hand(
    name: str, options: dict[str, Any], scores: list[float], labels: list[float], expected: float
) -> None:
    assert loss_of(scores, labels, name=name, **options) == pytest.approx(expected, rel=1e-5)


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
    ours = loss_named(**options)(ours_at, LABELS)
    expected = their_loss(make, theirs_at, LABELS)
    assert float(ours) == pytest.approx(float(expected), rel=1e-6)
    ours.backward()
    expected.backward()  # type: ignore[no-untyped-call]
    for row, other in zip(ours_at, theirs_at, strict=True):
        assert row.grad is not None
        torch.testing.assert_close(row.grad, other.grad)


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


@pytest.mark.parametrize("length", [5, 127, 128, 1500])
@pytest.mark.parametrize("method", ["sum", "minmax", "log", "temperature"])
@pytest.mark.parametrize(("discount", "last"), [("exponential", 0), ("exponential_plus_1", 1)])
def test_weights_of_long_lists_are_exact(length: int, method: Any, discount: Any, last: int) -> None:
    loss = PListMLE(discount=discount, normalization_method=method, temperature=2.0)
    mask = torch.arange(length).expand(2, -1) < torch.tensor([[length], [length // 2]])
    found = loss.weights(mask)
    assert not found[~mask].any()
    for row, size in zip(found, (length, length // 2), strict=True):
        expected = exact_weights(size, method, last)
        weights = [weight / math.fsum(expected) for weight in expected]
        assert row[:size].tolist() == pytest.approx(weights, rel=1e-5, abs=1e-37)


def test_the_softmax_of_long_lists_is_all_on_the_first_place() -> None:
    found = PListMLE(normalization_method="softmax").weights(torch.ones(1, 1500, dtype=torch.bool))[0]
    assert (float(found[0]), bool(found[1:].any())) == (1.0, False)


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


TEMPERATURE = 0.2


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Six queries of three classes against ten documents: unit vectors, then classes."""
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (torch.nn.functional.normalize(torch.randn(n, 8, generator=generator)) for n in (6, 10))
    return queries, documents, torch.tensor([0, 1, 2] * 2), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 2])


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
    by_name = loss_named("supcon")(list(scores), list(positives.float()))
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
    by_name = loss_named("infonce")
    torch.testing.assert_close(by_name(list(scores), list(positives.float())), torch.stack(expected).mean())
    assert by_name.citation.startswith("@misc{oord2018representation,")


def test_a_false_negative_is_no_negative() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.2], [0.0, 2.0, 1.6]])
    excluded = torch.tensor([[False, False, True], [False, False, False]])
    first, second = math.log(1 + math.exp(-2)), math.log(1 + math.exp(-2) + math.exp(-0.4))
    loss = info_nce(scores, torch.tensor([0, 1]), excluded)
    assert float(loss) == pytest.approx((first + second) / 2, rel=1e-6)
