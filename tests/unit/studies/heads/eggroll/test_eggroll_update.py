"""A step from its fitness: shaping, the estimate against materialised directions, the optimizer, the scale of noise."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from support.toy_pools import doubled

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.noise import Perturbations, directions, product_directions
from unimoe.studies.heads.eggroll.update import (
    Shaping,
    Sigma,
    average_ranks,
    estimate,
    relative_sigma,
    relative_spread,
    shape,
    sigma_for,
)
from unimoe.studies.heads.methods import Ascent

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


def test_ranks_run_from_minus_to_plus_a_half_and_ties_share_their_mean() -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0])
    assert average_ranks(values).tolist() == [3, 0, 3, 1, 3]
    assert shape(values, "rank").tolist() == pytest.approx([0.25, -0.5, 0.25, -0.25, 0.25])
    shaped = shape(torch.randperm(101).float(), "rank")
    assert sorted(shaped.tolist()) == pytest.approx([number / 100 - 0.5 for number in range(101)])


@pytest.mark.parametrize("how", ["rank", "zscore", "combined"])
@pytest.mark.parametrize("count", [1, 2, 7, 256])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 7e8])
def test_equal_fitness_gives_exactly_zero(how: Shaping, count: int, value: float) -> None:
    for dtype in (torch.float32, torch.float64):
        assert shape(torch.full((count,), value, dtype=dtype), how).tolist() == [0] * count


def test_z_scores_have_no_mean_and_unit_deviation_and_keep_ranks() -> None:
    values = torch.randint(0, 5, (3, 64)).double() / 7e4 + 0.3
    shaped = shape(values, "zscore")
    torch.testing.assert_close(shaped.mean(dim=1), torch.zeros(3, dtype=F64), rtol=0, atol=1e-9)
    torch.testing.assert_close(shaped.std(dim=1, correction=0), torch.ones(3, dtype=F64))
    assert torch.equal(shape(values, "combined"), average_ranks(shaped) / 63 - 0.5)
    assert torch.equal(shape(values, "combined"), shape(values, "rank"))
    assert shape(values, "none") is values


def test_each_row_is_shaped_by_itself() -> None:
    rows = torch.stack([torch.rand(40), 5 + torch.rand(40), torch.ones(40)])
    for how in get_args(Shaping):
        assert torch.equal(shape(rows, how), torch.stack([shape(row, how) for row in rows]))


def ascent(name: str, rate: float, **settings: Any) -> Ascent:
    return Ascent(TrainConfig.model_validate({"optimizer": name, "learning_rate": rate, **settings}))


@pytest.mark.parametrize("kind", ["rank 1", "rank 4", "products"])
def test_the_estimate_is_the_sum_over_materialised_directions(kind: str) -> None:
    noise: Perturbations
    if kind == "products":
        noise = doubled(product_directions(0, 0, 4, 3, 3, 5))
        every = [torch.outer(a, b) for b in noise.b for a in noise.a]
    else:
        noise = doubled(directions(0, 0, 12, 3, 5, rank=int(kind[-1])))
        every = [*torch.einsum("mko,mki->moi", noise.a, noise.b) / int(kind[-1]) ** 0.5]
    fitness, sigma = torch.rand(24, dtype=F64), 0.3
    changes = [(fitness[n] - fitness[12 + n]) * change / (2 * 12 * sigma) for n, change in enumerate(every)]
    expected = torch.stack(changes).sum(0)
    torch.testing.assert_close(estimate(noise, fitness, sigma), expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(estimate(noise, fitness, sigma, seed_scale=True), expected * sigma, rtol=0, atol=1e-13)


@pytest.mark.parametrize("how", ["rank", "zscore", "none"])
def test_equal_fitness_moves_nothing(how: Shaping) -> None:
    noise, weight = directions(0, 0, 64, 3, 5), torch.ones(3, 5)
    gradient = estimate(noise, shape(torch.full((128,), 0.3, dtype=F64), how), 0.05)
    assert gradient.dtype == torch.float32
    assert bool((gradient == 0).all())
    for name in ("sgd", "adam"):
        assert torch.equal(ascent(name, 1.0).step(weight, gradient)[0], weight)


def test_sgd_clips_and_decays() -> None:
    weight, gradient = torch.full((2, 2), 10.0), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    moved, norm = ascent("sgd", 0.5, max_norm=1.0, weight_decay=0.2).step(weight, gradient)
    assert norm == 5
    assert torch.equal(weight, torch.full((2, 2), 10.0))
    torch.testing.assert_close(moved, torch.full((2, 2), 9.0) + torch.tensor([[0.3, 0.0], [0.0, 0.4]]))


WEIGHT = torch.full((4, 9), 0.5)  # norm 3, sqrt(numel) 6


def test_the_relative_sigma_is_the_size_of_a_perturbation() -> None:
    assert relative_sigma(0.05, WEIGHT) == pytest.approx(0.1)
    assert sigma_for(0.1, WEIGHT) == pytest.approx(0.05)
    noise = directions(0, 0, 2000, 4, 9)
    sizes = (noise.a.square().sum(dim=(1, 2)) * noise.b.square().sum(dim=(1, 2))).mean().sqrt()
    assert 0.05 * float(sizes) / 3 == pytest.approx(0.1, rel=0.05)
    for level in (0.1, 0.9):  # the spread is free of the level
        assert relative_spread(level * torch.tensor([1.02, 0.99, 0.98, 1.01])) == pytest.approx(0.03, abs=1e-6)


def test_sigma_reaches_a_relative_target_and_stays() -> None:
    sigma = Sigma(0.01, target=0.05, rate=0.1)
    draw = torch.Generator().manual_seed(0)
    values = []
    for _ in range(100):
        difference = 0.3 * 0.5 * sigma.value * torch.randn(500, generator=draw)  # spread 0.5 sigma
        values.append(sigma.adapt(torch.cat([0.3 + difference / 2, 0.3 - difference / 2]), WEIGHT))
    assert values[-50:] == pytest.approx([0.1] * 50, rel=0.15)


def test_no_information_widens_sigma_up_to_the_limit() -> None:
    sigma, ties = Sigma(0.4, rate=0.1, highest=1.0), torch.full((8,), 0.2)
    assert [sigma.adapt(ties, WEIGHT) for _ in range(3)] == pytest.approx([0.44, 0.484, 0.5])


def test_the_absolute_rule_only_grows_up_to_the_size_of_the_weight_or_without_end() -> None:
    sigma = Sigma(0.05, "absolute", target=0.1, rate=0.05)
    difference = math.sqrt(5e-4) * torch.randn(128, generator=torch.Generator().manual_seed(0))
    fitness = torch.cat([0.3 + difference / 2, 0.3 - difference / 2])
    assert sigma.adapt(fitness, WEIGHT) == pytest.approx(0.0525)
    assert sigma.adapt(100 * fitness, WEIGHT) == pytest.approx(0.0525 * 0.95)
    bounded = Sigma(0.05, "absolute", target=0.1, rate=0.5)
    endless = Sigma(0.05, "absolute", target=0.1, rate=0.5, highest=math.inf)
    for _ in range(20):
        bounded.adapt(torch.ones(8), WEIGHT)
        endless.adapt(torch.ones(8), WEIGHT)
    assert relative_sigma(bounded.value, WEIGHT) == pytest.approx(1)
    assert endless.value == pytest.approx(0.05 * 1.5**20)
