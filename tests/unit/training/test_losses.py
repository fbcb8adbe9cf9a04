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
"""Those that draw nothing."""


def config(name: str, **options: object) -> LossConfig:
    return parse_config(LossConfig, {"name": name, **options}, source="test")


def lists(*rows: list[float], grad: bool = False) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float32, requires_grad=grad) for row in rows]


LABELS = lists([1, 1, 0, 0], [1, 0], [1, 0, 0])


@pytest.mark.parametrize("name", LOSSES.names())
def test_lists_of_one_keep_the_graph_and_scores_that_are_not_finite_show(name: str) -> None:
    scores = lists([0.3], [2.0], grad=True)
    loss = ListwiseLoss(config(name))(scores, lists([1], [1]))
    loss.backward()
    assert loss.requires_grad
    assert all(row.grad is not None and row.grad.isfinite().all() for row in scores)
    if name != "yes_no":
        assert loss == 0
    for strange in (math.nan, math.inf):
        assert not ListwiseLoss(config(name))(lists([strange, 0.0, 1.0]), lists([1, 0, 0])).isfinite()


@pytest.mark.parametrize("name", EXACT)
def test_a_longer_list_in_the_batch_changes_no_direction(name: str) -> None:
    """A list that pads the others changes only the length of their gradients, by its share in the mean."""
    generator, loss = torch.Generator().manual_seed(0), ListwiseLoss(config(name))
    rows = [(2 * torch.randn(len(row), generator=generator)).requires_grad_() for row in LABELS]
    alone = [torch.autograd.grad(loss([row], [given]), row)[0] for row, given in zip(rows, LABELS, strict=True)]
    for longest in (5, 40):
        padding, labels = torch.linspace(3, -3, longest), torch.linspace(1, 0, longest)
        found = torch.autograd.grad(loss([*rows, padding], [*LABELS, labels]), rows)
        for gradient, expected in zip(found, alone, strict=True):
            assert float(torch.cosine_similarity(gradient, expected, dim=0)) == pytest.approx(1.0, abs=1e-5)


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
        *((name, [1.0, 0.0, 1.0], "input 1: labels rise along the list") for name in ("listmle", "plistmle")),
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
    loss, scores = ListwiseLoss(config("approxndcg")), lists([0.3, -1.0, 0.2], [1.0, 2.0])
    below, none = ([torch.where(row == 0, lowest, row) for row in LABELS[2:0:-1]] for lowest in (-3.0, 0.0))
    assert torch.equal(loss(scores, below), loss(scores, none))


def test_a_config_is_checked_without_loading_torch() -> None:
    code = "import sys; from unimoe.config.training import LossConfig; LossConfig(name='lambdaloss', k=3); "
    code += "sys.exit('torch' in sys.modules or 'sentence_transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def gradient(name: str, seed: int = 0, scale: float = 1.0, **options: Any) -> tuple[float, list[Tensor]]:
    """The loss and the gradients of the rows."""
    rows = [(scale * row).requires_grad_() for row in SCORES]
    loss = ListwiseLoss(config(name, **options), generator=generator_of(7, seed))(rows, GRADES)
    return float(loss.detach()), [*torch.autograd.grad(loss, rows)]


@pytest.mark.parametrize("name", ["score_es", "pg_rank"])
def test_seed_and_step_decide_every_bit_of_a_sampled_loss_and_padding_and_order_the_draws_alone(name: str) -> None:
    (first, rows), (again, same), (other, _) = gradient(name), gradient(name), gradient(name, seed=1)
    assert first == again != other
    assert all(torch.equal(a, b) for a, b in zip(rows, same, strict=True))
    _, (row, _) = gradient(name, directions=20_000)
    turned = SCORES[0].flip(0).requires_grad_()
    spread = spread_of(*padded(SCORES, GRADES)[::2])
    longer = torch.tensor([spread, -spread] * 20)  # leaves the spread of the batch as it is
    rows, labels = [turned, SCORES[1], longer], [GRADES[0].flip(0), GRADES[1], torch.zeros(40)]
    ListwiseLoss(config(name, directions=20_000), generator=generator_of(1, 1))(rows, labels).backward()
    assert turned.grad is not None
    assert float(torch.cosine_similarity(turned.grad.flip(0), row, dim=0)) > 0.99


def test_noise_is_relative_to_the_spread() -> None:
    """Scores ten times as large have the same loss, and a tenth of the gradient."""
    (loss, rows), (again, wide) = gradient("score_es"), gradient("score_es", scale=10.0)
    assert loss == pytest.approx(again, rel=1e-6)
    torch.testing.assert_close([10 * row for row in wide], rows)
