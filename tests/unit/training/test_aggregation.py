"""How one step is made of two tasks: hand-computed cases, the methods' own properties, and a general solver."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from unimoe.config.training import ArmConfig
from unimoe.training.aggregation import Surgery, Uncertainty, make_aggregation

AT_ODDS = ([1.0, 0.0], [-1.0, 1.0])
SURGERIES = ["pcgrad", "ortho_lora", "cagrad", "gradvac"]


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
    assert step(method, ([1.0, 0.0], [0.6, 0.8])) == pytest.approx(
        [1.6, 0.8]
    )  # above 0: only remembered, a cosine of .6
    # Each moves until its cosine with the other is .6: tan of it is 4/3.
    assert step(method, ([1.0, 0.0], [0.0, 1.0])) == pytest.approx([1.75, 1.75])


@pytest.mark.parametrize("name", SURGERIES)
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
