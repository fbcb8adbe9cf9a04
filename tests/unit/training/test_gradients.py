"""How one step is made of two tasks, the record of their conflicts, and ranking losses by name.

The numbers of the losses are in the golden tests.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from unimoe.config.base import Positive, Section
from unimoe.config.files import parse_config
from unimoe.config.losses import LOSSES, RankingLoss
from unimoe.config.training import ArmConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.results.logs import Conflict
from unimoe.training import conflicts
from unimoe.training.aggregation import Surgery, TrainingTask, Uncertainty, make_aggregation
from unimoe.training.gradients import combined
from unimoe.training.losses import DISCOUNTS, Loss, register_discount, register_loss
from unimoe.training.losses.formulas import padded
from unimoe.training.losses.in_order import PListMLE
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import generator_of, spread_of

AT_ODDS = ([1.0, 0.0], [-1.0, 1.0])


def surgery(name: str, **settings: float) -> Surgery:
    arm = {"task": "joint", "learning_rate": 1e-3, "ranking_weight": 0.5, "aggregation": name, **settings}
    found = make_aggregation(ArmConfig.model_validate(arm))
    assert isinstance(found, Surgery)
    return found


def step(method: Surgery, pair: tuple[list[float], list[float]]) -> list[float]:
    rows = torch.tensor(pair, dtype=torch.float64)
    return (torch.tensor(method.coefficients(rows @ rows.T), dtype=torch.float64) @ rows).tolist()


def random_pairs(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([10.0, 0.1]).view(1, 2, 1) ** torch.rand(count, 2, 1, generator=generator)
    return (torch.randn(count, 2, 3, generator=generator) * scales).double()


def test_pcgrad_opposes_no_task() -> None:
    # (1, 0) becomes (.5, .5) beside (-1, 1), which becomes (0, 1) beside (1, 0)
    assert step(surgery("pcgrad"), AT_ODDS) == pytest.approx([0.5, 1.5])
    for pair in random_pairs(50):
        found = torch.tensor(step(surgery("pcgrad"), tuple(pair.tolist())), dtype=torch.float64)
        assert bool((pair @ found >= -1e-12).all())


def test_cagrad_solves_the_problem_of_the_paper() -> None:
    for pair in random_pairs(50):
        mean, c = pair.mean(dim=0), 0.5
        radius = c * float(mean.norm())

        def bound(x: float, pair: Tensor = pair, mean: Tensor = mean, radius: float = radius) -> float:
            mixture = x * pair[0] + (1 - x) * pair[1]
            return float(mixture @ mean + radius * mixture.norm())

        least = minimize_scalar(bound, bounds=(0, 1), method="bounded", options={"xatol": 1e-10}).fun
        found = torch.tensor(step(surgery("cagrad", cagrad_c=c), tuple(pair.tolist())), dtype=torch.float64) / 2
        assert float((found - mean).norm()) == pytest.approx(radius)
        assert float((pair @ found).min()) == pytest.approx(least, rel=1e-5, abs=1e-9)  # weak duality is tight


def test_gradvac_starts_as_pcgrad_and_lifts_the_cosine_to_its_running_mean() -> None:
    assert step(surgery("gradvac", gradvac_beta=0.01), AT_ODDS) == pytest.approx(step(surgery("pcgrad"), AT_ODDS))
    method = surgery("gradvac", gradvac_beta=1.0)
    # Above 0: only remembered, a cosine of .6.
    assert step(method, ([1.0, 0.0], [0.6, 0.8])) == pytest.approx([1.6, 0.8])
    # Each moves until its cosine with the other is .6: tan of it is 4/3.
    assert step(method, ([1.0, 0.0], [0.0, 1.0])) == pytest.approx([1.75, 1.75])


@pytest.mark.parametrize("name", ["pcgrad", "ortho_lora", "cagrad", "gradvac"])
def test_only_angles_and_the_ratio_of_lengths_count_and_no_direction_is_added_up(name: str) -> None:
    rows = torch.tensor(AT_ODDS, dtype=torch.float64)
    for size in (1e-8, 1e8):
        gramian = rows @ rows.T
        assert surgery(name).coefficients(size * gramian) == pytest.approx(surgery(name).coefficients(gramian))
    for value in (0.0, math.nan, math.inf):
        assert surgery(name).coefficients(torch.full((2, 2), value, dtype=torch.float64)) == (1.0, 1.0)


def test_learned_weights_go_to_half_the_inverse_loss() -> None:
    method = Uncertainty(0.5, 1e-2)
    for _ in range(3_000):
        method.learn({"ranking": 0.25, "embedding": 2.0})
    assert method.weights == pytest.approx({"ranking": 2.0, "embedding": 0.25}, rel=1e-3)


NAMES = ("m.layers.9.a", "m.layers.9.b", "m.layers.10.b")
LOW, HIGH = slice(0, 4), slice(4, 6)
"""Layer 9 and layer 10 in a flat vector: layers ascend by number."""


class Problem:
    """Two tasks whose examples have given gradients; a loss is the mean over its examples."""

    def __init__(self, examples: int = 4) -> None:
        generator = torch.Generator().manual_seed(3)
        noise = torch.randn(2, examples, 6, generator=generator)
        ranking, embedding = (noise + 2 * torch.randn(2, 1, 6, generator=generator)).unbind()
        self.gradients: dict[TrainingTask, Tensor] = {"ranking": ranking, "embedding": embedding}
        self.weights = {name: nn.Parameter(torch.zeros(2)) for name in (NAMES[2], *NAMES[:2])}
        self.runs: list[tuple[str, list[int]]] = []

    def backward(self, rows: Sequence[int], task: TrainingTask) -> None:
        torch.rand(3)  # as dropout would
        self.runs.append((task, list(rows)))
        for name, part in zip(NAMES, self.gradients[task][list(rows)].mean(dim=0).view(3, 2), strict=True):
            found = self.weights[name].grad
            self.weights[name].grad = part.clone() if found is None else found + part

    def records(self, additive: bool = True) -> list[Conflict]:
        rows = range(len(self.gradients["ranking"]))
        batches = {
            task: conflicts.TaskBatch(rows, partial(self.backward, task=task), additive and task == "ranking")
            for task in self.gradients
        }
        whole = {task: own.mean(dim=0) for task, own in self.gradients.items()}
        found = conflicts.conflict_records(conflicts.FlatGradients(self.weights), whole, batches)
        return [Conflict.model_validate({"step": 1, **record}) for record in found]


def cos(first: Tensor, second: Tensor) -> float:
    return float(nn.functional.cosine_similarity(first, second, dim=0))


def test_a_record_by_hand() -> None:
    # (3, 4) and (0, 2): product 8, lengths 5 and 2
    record = conflicts.conflict_record(8.0, 25.0, 4.0, 1 / 3, 0.6)
    assert record["cosine"] == pytest.approx(0.8)
    assert record["cosine_self_rank"] == pytest.approx(0.5)  # 2 (1/3) / (4/3)
    assert record["cosine_self_embed"] == pytest.approx(0.75)  # 1.2 / 1.6
    assert record["cosine_corrected"] == pytest.approx(0.8 / 0.375**0.5)
    assert (record["norm_rank"], record["norm_embed"]) == (5.0, 2.0)
    assert record["magnitude_similarity"] == pytest.approx(20 / 29)


def test_correction_finds_the_cosine_below_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    size, batch = 200_000, 8
    shared, own = torch.randn(2, size, generator=generator).unbind()
    true = {"rank": shared, "embed": -0.5 * shared + own}
    noise = {"rank": 6.0, "embed": 3.0}
    halves = {
        task: [mean + noise[task] / (batch / 2) ** 0.5 * torch.randn(size, generator=generator) for _ in range(2)]
        for task, mean in true.items()
    }
    rank, embed = ((first + second) / 2 for first, second in halves.values())
    products = (float(rank @ embed), float(rank @ rank), float(embed @ embed))
    record = conflicts.conflict_record(*products, *(cos(*pair) for pair in halves.values()))
    expected = cos(true["rank"], true["embed"])
    assert record["cosine_corrected"] == pytest.approx(expected, abs=0.03)
    assert record["cosine"] is not None
    assert abs(record["cosine"]) < 0.5 * abs(expected)


@pytest.mark.parametrize("additive", [True, False])
@pytest.mark.parametrize("examples", [4, 5])
def test_each_layer_has_its_norms_and_cosines_whether_the_second_half_is_computed_or_follows_from_the_step(
    additive: bool, examples: int
) -> None:
    problem, half = Problem(examples), examples // 2
    torch.manual_seed(0)
    lines = problem.records(additive)
    assert [line.layer for line in lines] == [9, 10]
    for line, part in zip(lines, (LOW, HIGH), strict=True):
        rank, embed = (own[:, part] for own in problem.gradients.values())
        assert line.cosine == pytest.approx(cos(rank.mean(0), embed.mean(0)), abs=1e-6)
        assert line.norm_rank == pytest.approx(float(rank.mean(0).norm()))
        assert line.norm_embed == pytest.approx(float(embed.mean(0).norm()))
        assert line.cosine_corrected is not None
        own = [conflicts.stepped_up(cos(task[:half].mean(0), task[half:].mean(0))) for task in (rank, embed)]
        assert [line.cosine_self_rank, line.cosine_self_embed] == pytest.approx(own, abs=1e-6)
    assert [task for task, _ in problem.runs] == ["ranking"] * (1 if additive else 2) + ["embedding"] * 2
    drawn = float(torch.rand(()))
    torch.manual_seed(0)
    assert float(torch.rand(())) == drawn, "no random number of the training is used"


def test_ortho_lora_is_pcgrad_in_each_matrix() -> None:
    """Of three matrices one conflicts: its gradients lose their parts against each other, the others are added."""
    ranking = torch.tensor([1.0, 2.0, 1.0, 0.0, 3.0, 1.0])
    embedding = torch.tensor([1.0, 1.0, -1.0, 1.0, 2.0, 5.0])  # over all matrices the two agree
    found = combined(surgery("ortho_lora"), conflicts.FlatGradients(Problem().weights), ranking, embedding)
    torch.testing.assert_close(found, torch.tensor([2.0, 3.0, 0.5, 1.5, 5.0, 6.0]))


@pytest.mark.parametrize("name", [name for name in LOSSES.names() if conflicts.is_additive(LOSSES[name](), 0.0)])
def test_such_a_loss_is_the_mean_of_its_halves_unless_chance_decides(name: str) -> None:
    assert not conflicts.is_additive(LOSSES[name](), dropout=0.1)
    scores = [*torch.randn(4, 5, generator=torch.Generator().manual_seed(1))]
    labels = [*torch.tensor([1.0 if name == "yes_no" else 2.0, 1.0, 0.0, 0.0, 0.0]).expand(4, 5)]
    loss = ListwiseLoss(LOSSES[name]())
    halves = [loss(scores[:1], labels[:1]), loss(scores[1:], labels[1:])]
    torch.testing.assert_close(loss(scores, labels), halves[0] / 4 + halves[1] * 3 / 4)


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
        ("broken", r"the loss broken raised ZeroDivisionError: .* \(test_gradients.py, line"),
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
