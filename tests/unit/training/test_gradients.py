"""How one step is made of two tasks, and the record of their conflicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from unimoe.config.losses import LOSSES
from unimoe.config.training import ArmConfig
from unimoe.results.logs import Conflict
from unimoe.training import conflicts
from unimoe.training.aggregation import Surgery, TrainingTask, Uncertainty, make_aggregation
from unimoe.training.gradients import combined
from unimoe.training.losses.listwise import ListwiseLoss

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
