"""How one step is made of two tasks: hand-computed cases, the methods' own properties, and a general solver."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from unimoe.config.files import load_experiment
from unimoe.config.training import ArmConfig
from unimoe.training.aggregation import (
    CAGrad,
    GradVac,
    PCGrad,
    Surgery,
    Uncertainty,
    make_aggregation,
)

AT_ODDS = ([1.0, 0.0], [-1.0, 1.0])


def step(method: Surgery, pair: tuple[list[float], list[float]]) -> list[float]:
    rows = torch.tensor(pair, dtype=torch.float64)
    return (torch.tensor(method.coefficients(rows @ rows.T), dtype=torch.float64) @ rows).tolist()


def arm(**settings: object) -> ArmConfig:
    return ArmConfig.model_validate({"task": "joint", "learning_rate": 1e-3, "ranking_weight": 0.5, **settings})


def random_pairs(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([10.0, 0.1]).view(1, 2, 1) ** torch.rand(count, 2, 1, generator=generator)
    return (torch.randn(count, 2, 3, generator=generator) * scales).double()


class TestPCGrad:
    def test_conflicting_gradients_lose_their_part_against_the_other(self) -> None:
        # (1, 0) becomes (.5, .5) beside (-1, 1), which becomes (0, 1) beside (1, 0)
        assert step(PCGrad(0.5), AT_ODDS) == pytest.approx([0.5, 1.5])

    def test_no_task_is_opposed(self) -> None:
        for pair in random_pairs(50):
            found = torch.tensor(step(PCGrad(0.5), tuple(pair.tolist())), dtype=torch.float64)
            assert bool((pair @ found >= -1e-12).all())


class TestCAGrad:
    def test_it_solves_the_problem_of_the_paper(self) -> None:
        for pair in random_pairs(50):
            mean, c = pair.mean(dim=0), 0.5
            radius = c * float(mean.norm())

            def bound(x: float, pair: Tensor = pair, mean: Tensor = mean, radius: float = radius) -> float:
                mixture = x * pair[0] + (1 - x) * pair[1]
                return float(mixture @ mean + radius * mixture.norm())

            least = minimize_scalar(bound, bounds=(0, 1), method="bounded", options={"xatol": 1e-10}).fun
            found = torch.tensor(step(CAGrad(0.5, c), tuple(pair.tolist())), dtype=torch.float64) / 2
            assert float((found - mean).norm()) == pytest.approx(radius)
            assert float((pair @ found).min()) == pytest.approx(least, rel=1e-5, abs=1e-9)  # weak duality is tight


class TestGradVac:
    def test_it_starts_as_pcgrad(self) -> None:
        assert step(GradVac(0.5, 0.01), AT_ODDS) == pytest.approx(step(PCGrad(0.5), AT_ODDS))

    def test_the_cosine_is_lifted_to_the_running_mean(self) -> None:
        method = GradVac(0.5, beta=1.0)
        agreeing = ([1.0, 0.0], [0.6, 0.8])
        assert step(method, agreeing) == pytest.approx([1.6, 0.8])  # above 0: only remembered, a cosine of .6
        found = step(method, ([1.0, 0.0], [0.0, 1.0]))
        lifted = [1.0 + 0.75, 0.75 + 1.0]  # each moves until its cosine with the other is .6: tan of it is 4/3
        assert found == pytest.approx(lifted)


SURGERIES = ["pcgrad", "ortho_lora", "cagrad", "gradvac"]


def surgery(name: str) -> Surgery:
    found = make_aggregation(arm(aggregation=name))
    assert isinstance(found, Surgery)
    return found


class TestSurgery:
    @pytest.mark.parametrize("name", SURGERIES)
    @pytest.mark.parametrize("size", [1e-8, 1e8])
    def test_only_angles_and_the_ratio_of_lengths_count(self, name: str, size: float) -> None:
        rows = torch.tensor(AT_ODDS, dtype=torch.float64)
        gramian = rows @ rows.T
        assert surgery(name).coefficients(size * gramian) == pytest.approx(surgery(name).coefficients(gramian))

    @pytest.mark.parametrize("name", SURGERIES)
    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
    def test_gradients_that_say_nothing_are_added(self, name: str, value: float) -> None:
        assert surgery(name).coefficients(torch.full((2, 2), value, dtype=torch.float64)) == (1.0, 1.0)


class TestUncertainty:
    def test_weights_go_to_half_the_inverse_loss(self) -> None:
        method = Uncertainty(0.5, 1e-2)
        for _ in range(3_000):
            method.learn({"ranking": 0.25, "embedding": 2.0})
        assert method.weights == pytest.approx({"ranking": 2.0, "embedding": 0.25}, rel=1e-3)


def test_the_shipped_comparison_has_the_recipe_that_it_names() -> None:
    methods, main = (load_experiment(Path(f"experiments/{name}")) for name in ("joint_methods", "bundled"))
    own = {"name", "output_dir", "gates", "arms", "training", "evaluation"}
    assert methods.model_dump(exclude=own) == main.model_dump(exclude=own)
    neutral = {"conflicts"}
    assert methods.training.model_dump(exclude=neutral) == main.training.model_dump(exclude=neutral)
    tried = {method.aggregation for method in methods.arms.values() if method.task == "joint"}
    assert tried == {
        "fixed",
        "uncertainty",
        "pcgrad",
        "ortho_lora",
        "cagrad",
        "gradvac",
    }  # UPGrad takes PCGrad's steps
    rate = {"learning_rate"}  # each is chosen on dev
    for name, arm in main.arms.items():
        assert methods.arms[name].model_dump(exclude=rate) == arm.model_dump(exclude=rate)
