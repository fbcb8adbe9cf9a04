"""Ranking losses by name: their keys, what they refuse, and what is drawn. Their numbers are in the golden tests."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimoe.config.base import Positive, Section
from unimoe.config.files import parse_config
from unimoe.config.losses import LOSSES, RankingLoss
from unimoe.config.training import ArmConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.training.losses import DISCOUNTS, Loss, register_discount, register_loss
from unimoe.training.losses.formulas import padded
from unimoe.training.losses.in_order import PListMLE
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import generator_of, spread_of

EXACT = tuple(name for name in LOSSES.names() if not LOSSES[name].samples)
"""Those that draw nothing."""


class Holder(Section):
    """A config that has a loss."""

    loss: RankingLoss


def configured(loss: object) -> Loss:
    return parse_config(Holder, {"loss": loss}, source="test").loss


def config(name: str, **keys: object) -> Loss:
    return configured({"name": name, **keys})


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
        ("listmel", "test: loss: there is no loss 'listmel' .did you mean 'listmle'"),
        (
            {"name": "listmle", "discount": "log1p"},
            "loss.discount: unknown key; listmle takes activation, respect_input_",
        ),
        ({"name": "plistmle", "temprature": 2}, "loss.temprature: unknown key .did you mean 'temperature'"),
        ({"name": "listmle", "ties": "shuffle"}, "set respect_input_order: false"),
        ({"name": "plistmle", "temperature": 0.0}, "loss.temperature: must be above 0"),
        (
            {"name": "plistmle", "discount": "1/log10"},
            "loss.discount: there is no rank discount '1/log10' .did you mean",
        ),
        ({"name": "score_es", "measure": "ndgc@10"}, "did you mean 'ndcg@10'"),
        ({"name": "score_es", "sigma": 1e30}, "loss.sigma: must be at most 1000000"),
        ({"name": "yes_no", "activation": "Tanh"}, "loss.activation: must be 'Identity'"),
        ({"temperature": 2.0}, "loss: must be the name of a loss, or a section with its name and keys"),
    ],
)
def test_impossible_keys_are_refused(raw: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configured(raw)


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
    code = """
import sys
from unimoe.config.losses import LOSSES
from unimoe.config.training import TrainingConfig
TrainingConfig.model_validate({"collection": "c", "steps": 1, "ranking": {"loss": {"name": "lambdaloss", "k": 3}}})
sys.exit(not LOSSES.names() or "torch" in sys.modules or "sentence_transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers is gone after it."""
    losses, discounts = dict(LOSSES.items()), dict(DISCOUNTS.items())
    yield
    LOSSES._things, DISCOUNTS._things = losses, discounts


class Hinge(Loss):
    """A loss of a package."""

    cites = "@misc{mine}"

    margin: Positive = 1.0

    def __call__(self, scores: Sequence[Tensor], labels: Sequence[Tensor], chance: Any) -> Tensor:
        pairs = [(self.margin - (s[:, None] - s))[y[:, None] > y] for s, y in zip(scores, labels, strict=True)]
        return torch.cat(pairs).clamp(min=0).mean()


@pytest.mark.usefixtures("registered")
def test_a_loss_of_a_package_is_configured_by_its_own_keys() -> None:
    register_loss("hinge")(Hinge)
    loss = ListwiseLoss(configured({"name": "hinge", "margin": 0.5, "activation": "Tanh"}))
    assert float(loss(lists([0.0, 0.0]), lists([1, 0]))) == 0.5
    assert loss.get_config_dict() == {"name": "hinge", "activation": "Tanh", "margin": 0.5}
    assert loss.citation == "@misc{mine}"
    arm = {"task": "rank_only", "learning_rate": 1.0, "loss": loss.get_config_dict()}
    recorded = ArmConfig.model_validate(arm).model_dump_json()
    assert ArmConfig.model_validate_json(recorded).loss == loss.config, "what is recorded is plain, and is read again"
    for raw, message in (
        ({"margn": 0.2}, r"loss.margn: unknown key \(did you mean 'margin'\?\); hinge takes activation, margin"),
        ({"margin": -1.0}, "loss.margin: must be above 0"),
        ({"sigma": 1.0}, "loss.sigma: unknown key; hinge takes"),
    ):
        with pytest.raises(UsageError, match=message):
            configured({"name": "hinge", **raw})
    with pytest.raises(UsageError, match="loss 'hinge' exists already; choose another name"):
        register_loss("hinge")(lambda scores, labels: torch.zeros(()))
    with pytest.raises(UsageError, match="the loss module is a class that is no Loss; derive Linear from Loss"):
        register_loss("module")(nn.Linear)


@pytest.mark.usefixtures("registered")
def test_a_loss_without_keys_is_a_function_whose_mistakes_are_one_line() -> None:
    @register_loss("square")
    def square(scores: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(scores)).square().mean()

    loss = ListwiseLoss(configured({"name": "square", "activation": "Tanh"}))
    assert float(loss(lists([0.5]), lists([1]))) == pytest.approx(0.46211716**2)
    register_loss("broken")(lambda scores, labels: 1 / 0)
    register_loss("number")(lambda scores, labels: float(scores[0][0]))
    for name, message in (
        ("broken", r"the loss broken raised ZeroDivisionError: .* \(test_losses.py, line"),
        ("number", "the loss number has to return a tensor without dimensions; fix it"),
    ):
        with pytest.raises(DataError, match=message):
            ListwiseLoss(LOSSES[name]())(SCORES, GRADES)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("1/log1p", "log1p"), ("1 / log1p", "log1p"), ("1/log2(1+i)", "log2"), ("1/i", "reciprocal"), ("log2", "log2")],
)
def test_a_rank_discount_has_the_name_or_the_formula_of_the_papers(spelled: str, name: str) -> None:
    assert config("plistmle", discount=spelled) == config("plistmle", discount=name)


@pytest.mark.usefixtures("registered")
def test_a_rank_discount_of_a_user_sees_the_ranks_of_each_list() -> None:
    register_discount("linear", lambda ranks: len(ranks) + 1 - ranks)
    loss = PListMLE(discount="linear")
    found = loss.weights(torch.tensor([[True, True, True], [True, True, False]]))
    torch.testing.assert_close(found, torch.tensor([[3 / 6, 2 / 6, 1 / 6], [2 / 3, 1 / 3, 0.0]]))
    register_discount("exponential_of_theirs", lambda ranks: 2.0 ** (len(ranks) - ranks) - 1)
    ours, same = (ListwiseLoss(config("plistmle", discount=f"exponential{end}")) for end in ("", "_of_theirs"))
    torch.testing.assert_close(ours(SCORES, ORDERED), same(SCORES, ORDERED))
    register_discount("one", lambda ranks: torch.ones(1))
    register_discount("negative", lambda ranks: -ranks)
    register_discount("list", lambda ranks: ranks.tolist())  # type: ignore[arg-type, return-value]
    register_discount("broken", lambda ranks: ranks / dict[str, float]()["half life"])
    for name in ("one", "negative", "list", "broken"):
        with pytest.raises(DataError, match=f"the rank discount {name} (has to return a weight for|raised KeyError)"):
            ListwiseLoss(config("plistmle", discount=name))(SCORES, ORDERED)


SCORES = [torch.tensor([0.2, 1.0, -0.4, 0.1]), torch.tensor([0.3, 0.1])]
GRADES = [torch.tensor([1.0, 0, 0, 2]), torch.tensor([1.0, 0])]
ORDERED = [torch.tensor([2.0, 1, 0, 0]), torch.tensor([1.0, 0])]


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
