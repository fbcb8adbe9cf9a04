"""Ranking losses by name: shapes, orders, ties, bad input, the registry; the numbers are in the golden tests."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from unimoe.config.files import parse_config
from unimoe.config.training import LossConfig
from unimoe.core.errors import InputError, UsageError
from unimoe.training.losses import LOSSES, Loss, register_loss
from unimoe.training.losses.built_in import padded
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import generator_of, spread_of

EXACT = tuple(name for name in LOSSES.names() if not LOSSES[name].samples)
"""Those that draw nothing; ``test_sampled`` has the others' counterparts of the tests of these."""


def config(name: str, **options: object) -> LossConfig:
    return parse_config(LossConfig, {"name": name, **options}, source="test")


def lists(*rows: list[float], grad: bool = False) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float32, requires_grad=grad) for row in rows]


LABELS = lists([1, 1, 0, 0], [1, 0], [1, 0, 0])


def some_scores(seed: int = 0, scale: float = 2.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(scale * torch.randn(len(row), generator=generator)).requires_grad_() for row in LABELS]


@pytest.mark.parametrize("name", LOSSES.names())
class TestEveryLoss:
    def test_lists_of_one_keep_the_graph(self, name: str) -> None:
        scores = lists([0.3], [2.0], grad=True)
        loss = ListwiseLoss(config(name))(scores, lists([1], [1]))
        loss.backward()
        assert loss.requires_grad
        assert all(row.grad is not None and row.grad.isfinite().all() for row in scores)
        if name != "yes_no":
            assert loss == 0

    def test_scores_that_are_not_finite_show(self, name: str) -> None:
        for strange in (math.nan, math.inf):
            loss = ListwiseLoss(config(name))(lists([strange, 0.0, 1.0]), lists([1, 0, 0]))
            assert not loss.isfinite()


@pytest.mark.parametrize("name", EXACT)
def test_does_not_change_with_padding(name: str) -> None:
    """A longer list in the batch pads the others: its own loss apart, theirs must be what they are alone."""
    loss = ListwiseLoss(config(name))
    scores, alone = [row.detach() for row in some_scores()], []
    for row, given in zip(scores, LABELS, strict=True):
        tracked = row.clone().requires_grad_()
        loss([tracked], [given]).backward()
        alone.append(tracked.grad)
    for longest in (5, 40):
        tracked_rows = [row.clone().requires_grad_() for row in scores]
        padding = torch.linspace(3, -3, longest)
        loss([*tracked_rows, padding], [*LABELS, torch.linspace(1, 0, longest)]).backward()
        for row, expected in zip(tracked_rows, alone, strict=True):
            assert row.grad is not None
            assert expected is not None
            cosine = torch.nn.functional.cosine_similarity(row.grad, expected, dim=0)
            assert float(cosine) == pytest.approx(1.0, abs=1e-5)  # the weight of a list in the mean differs


@pytest.mark.parametrize("name", ["listmle", "plistmle"])
def test_labels_that_rise_are_refused_where_the_order_counts(name: str) -> None:
    with pytest.raises(InputError, match="input 1: labels rise along the list"):
        ListwiseLoss(config(name))(lists([1.0, 2.0], [1.0, 2.0, 3.0]), lists([1, 0], [1, 0, 1]))


@pytest.mark.parametrize("name", ["listmle", "plistmle"])
def test_shuffled_ties_differ_between_steps_and_not_between_runs(name: str) -> None:
    def steps(generator: torch.Generator | None) -> list[float]:
        loss = ListwiseLoss(config(name, respect_input_order=False, ties="shuffle"), generator=generator)
        scores, labels = lists([3.0, 1.0, 0.0, -2.0]), lists([1, 0, 0, 0])
        return [float(loss(scores, labels)) for _ in range(8)]

    found = [steps(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert len(set(found[0])) > 1
    torch.manual_seed(3)  # by default they follow the random state that trainers restore
    first = steps(None)
    torch.manual_seed(3)
    assert steps(None) == first


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"name": "listmel"}, "name: there is no loss 'listmel' .did you mean 'listmle'"),
        ({"name": "listnet", "normalization_method": "softmax"}, "the loss listnet does not read it"),
        ({"name": "listmle", "rank_discount": "log1p"}, "rank_discount: the loss listmle does not read it"),
        ({"ties": "shuffle"}, "set respect_input_order: false"),
        ({"normalization_method": "temperature", "temperature": 0.0}, "temperature: must be above 0"),
        ({"name": "score_es", "measure": "ndgc@10"}, "did you mean 'ndcg@10'"),
    ],
)
def test_impossible_options_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_config(LossConfig, raw, source="test")


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("yes_no", [2.0, 0.0], "input 1: the loss yes_no takes labels between 0 and 1"),
        ("lambdaloss", [128.0, 1.0], r"input 1: LambdaLoss' gain 2\^128 is beyond float32; scale the labels"),
        ("lambdaloss", [127.0, 127.0, 127.0], r"input 1: LambdaLoss' gain 2\^127 is beyond float32"),
        ("pg_rank", [9.0, 0.0], "ERR@20 takes labels up to 4, and one is 9"),
    ],
)
def test_labels_that_a_loss_does_not_take_name_their_list(name: str, labels: list[float], message: str) -> None:
    options = {"measure": "ERR@20"} if name == "pg_rank" else {}
    with pytest.raises(InputError, match=message) as caught:
        ListwiseLoss(config(name, **options))(lists([1.0, 0.5], [0.5] * len(labels)), lists([1, 0], labels))
    assert caught.value.index == 1


def test_approxndcg_takes_a_label_below_zero_as_zero() -> None:
    scores = some_scores()
    below, none = ([torch.where(row == 0, lowest, row) for row in LABELS] for lowest in (-3.0, 0.0))
    loss = ListwiseLoss(config("approxndcg"))
    assert torch.equal(loss(scores, below), loss(scores, none))


def test_a_config_is_checked_without_loading_torch() -> None:
    code = "import sys; from unimoe.config.training import LossConfig; LossConfig(name='lambdaloss', k=3); "
    code += "print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "sentence_transformers"} & set(loaded)


def test_a_loss_from_outside_is_named_computed_and_checked_like_any_other() -> None:
    register_loss("toy", Loss(lambda s, y, options: options.sigma * torch.cat(list(s)).square().mean(), ("sigma",)))
    try:
        loss = ListwiseLoss(LossConfig(name="toy", sigma=2.0, activation="Tanh"))
        assert float(loss([torch.tensor([0.5])], [torch.tensor([1.0])])) == pytest.approx(2 * 0.46211716**2)
        assert loss.get_config_dict() == {"name": "toy", "activation": "Tanh", "sigma": 2.0}
        with pytest.raises(UsageError, match=r"the loss toy does not read it; remove it \(toy takes activation, sigma"):
            parse_config(LossConfig, {"name": "toy", "k": 3}, source="test")
    finally:
        LOSSES._things.pop("toy")


SCORES = [torch.tensor([0.2, 1.0, -0.4, 0.1]), torch.tensor([0.3, 0.1])]
GRADES = [torch.tensor([1.0, 0, 0, 2]), torch.tensor([1.0, 0])]
NAMES = ("score_es", "pg_rank")


def gradient(name: str, seed: int = 0, progress: float = 0.0, **options: Any) -> tuple[float, list[Tensor]]:
    """The loss and the gradients of the rows."""
    rows = [row.clone().requires_grad_() for row in SCORES]
    config = parse_config(LossConfig, {"name": name, **options}, source="test")
    loss = ListwiseLoss(config, generator=generator_of(7, seed))(rows, GRADES, progress)
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
        spread = spread_of(*padded(SCORES, GRADES)[::2])
        longer = torch.tensor([spread, -spread] * 20)  # leaves the spread of the batch as it is
        rows, labels = [turned, SCORES[1], longer], [GRADES[0].flip(0), GRADES[1], torch.zeros(40)]
        ListwiseLoss(config, generator=generator_of(1, 1))(rows, labels).backward()
        assert turned.grad is not None
        assert float(torch.cosine_similarity(turned.grad.flip(0), row, dim=0)) > 0.99


def test_noise_is_relative_to_the_spread() -> None:
    """Scores ten times as large have the same loss, and a tenth of the gradient."""
    loss = ListwiseLoss(LossConfig(name="score_es"), generator=generator_of(0, 0))
    row = SCORES[0].clone().requires_grad_()
    value = loss([row], GRADES[:1])
    value.backward()
    wide = (10 * SCORES[0]).requires_grad_()
    again = ListwiseLoss(LossConfig(name="score_es"), generator=generator_of(0, 0))([wide], GRADES[:1])
    again.backward()
    assert value.item() == pytest.approx(again.item(), rel=1e-6)
    assert row.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(10 * wide.grad, row.grad)
