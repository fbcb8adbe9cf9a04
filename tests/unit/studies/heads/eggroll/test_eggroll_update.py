from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.noise import directions, product_directions
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


def test_ties_share_the_mean_of_their_ranks() -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0])
    assert average_ranks(values).tolist() == [3, 0, 3, 1, 3]
    assert shape(values, "rank").tolist() == pytest.approx([0.25, -0.5, 0.25, -0.25, 0.25])


def test_ranks_run_from_minus_to_plus_a_half() -> None:
    shaped = shape(torch.randperm(101).float(), "rank")
    assert sorted(shaped.tolist()) == pytest.approx([number / 100 - 0.5 for number in range(101)])


@pytest.mark.parametrize("how", ["rank", "zscore", "combined"])
@pytest.mark.parametrize("count", [1, 2, 7, 256])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 7e8])
def test_equal_fitness_gives_exactly_zero(how: Shaping, count: int, value: float) -> None:
    for dtype in (torch.float32, torch.float64):
        assert shape(torch.full((count,), value, dtype=dtype), how).tolist() == [0] * count


def test_combined_is_rank() -> None:
    values = torch.randint(0, 5, (3, 64)).double() / 7
    assert torch.equal(shape(values, "combined"), average_ranks(shape(values, "zscore")) / 63 - 0.5)
    assert torch.equal(shape(values, "combined"), shape(values, "rank"))


def test_z_scores_have_no_mean_and_unit_deviation() -> None:
    shaped = shape(torch.rand(2, 500, dtype=torch.float64) * 1e-4 + 0.3, "zscore")
    torch.testing.assert_close(shaped.mean(dim=1), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(shaped.std(dim=1, correction=0), torch.ones(2, dtype=torch.float64))


def test_each_row_is_shaped_by_itself() -> None:
    rows = torch.stack([torch.rand(40), 5 + torch.rand(40), torch.ones(40)])
    for how in get_args(Shaping):
        assert torch.equal(shape(rows, how), torch.stack([shape(row, how) for row in rows]))


def test_none_keeps_the_values() -> None:
    values = torch.tensor([0.25, 0.75, 0.5])
    assert shape(values, "none") is values


def ascent(name: str, rate: float, **settings: Any) -> Ascent:
    return Ascent(TrainConfig.model_validate({"optimizer": name, "learning_rate": rate, **settings}))


class TestEstimate:
    @pytest.mark.parametrize("rank", [1, 4])
    def test_it_is_the_sum_over_materialised_directions(self, rank: int) -> None:
        noise = directions(0, 0, 7, 3, 5, rank=rank, dtype=F64)
        fitness, sigma = torch.rand(14, dtype=F64), 0.3
        expected = torch.zeros(3, 5, dtype=F64)
        for number in range(7):
            change = sum(torch.outer(noise.a[number, k], noise.b[number, k]) for k in range(rank)) / rank**0.5
            expected += (fitness[number] - fitness[7 + number]) * change / (2 * 7 * sigma)
        torch.testing.assert_close(estimate(noise, fitness, sigma), expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(
            estimate(noise, fitness, sigma, seed_scale=True), expected * sigma, rtol=0, atol=1e-13
        )

    def test_a_grid_is_the_sum_over_its_pairs(self) -> None:
        noise, fitness, sigma = product_directions(0, 0, 4, 3, 2, 5, dtype=F64), torch.rand(24, dtype=F64), 0.2
        expected = torch.zeros(2, 5, dtype=F64)
        for i in range(4):
            for j in range(3):
                difference = fitness[i * 3 + j] - fitness[12 + i * 3 + j]
                expected += difference * torch.outer(noise.a[j], noise.b[i]) / (24 * sigma)
        torch.testing.assert_close(estimate(noise, fitness, sigma), expected, rtol=0, atol=1e-13)

    @pytest.mark.parametrize("how", ["rank", "zscore", "none"])
    def test_equal_fitness_moves_nothing(self, how: str) -> None:
        noise, weight = directions(0, 0, 64, 3, 5), torch.ones(3, 5)
        gradient = estimate(noise, shape(torch.full((128,), 0.3), how), 0.05)  # type: ignore[arg-type]
        assert bool((gradient == 0).all())
        for name in ("sgd", "adam"):
            assert torch.equal(ascent(name, 1.0).step(weight, gradient)[0], weight)

    def test_shaped_fitness_gives_the_weights_dtype(self) -> None:
        assert estimate(directions(0, 0, 2, 3, 5), torch.rand(4, dtype=F64), 0.1).dtype == torch.float32


class TestAscent:
    @pytest.mark.parametrize("decay", [0.0, 0.1])
    @pytest.mark.parametrize("name", ["sgd", "adam"])
    def test_it_is_torchs_optimizer_upwards_and_goes_on_from_its_state(self, name: str, decay: float) -> None:
        torch.manual_seed(0)
        ours = torch.randn(3, 4, dtype=F64)
        theirs = torch.nn.Parameter(ours.clone())
        kind = torch.optim.AdamW if name == "adam" else torch.optim.SGD
        peer: torch.optim.Optimizer = kind([theirs], lr=0.01, weight_decay=decay)
        method = ascent(name, 0.01, weight_decay=decay)
        for step in range(20):
            gradient = torch.randn(3, 4, dtype=F64)
            theirs.grad = -gradient
            peer.step()
            ours, norm = method.step(ours, gradient)
            assert norm == float(gradient.norm())
            if step in (0, 7):
                state, method = method.state(), ascent(name, 0.01, weight_decay=decay)
                method.load_state(state)
        torch.testing.assert_close(ours, theirs.data, rtol=0, atol=1e-12)

    def test_sgd_clips_and_decays(self) -> None:
        weight, gradient = torch.full((2, 2), 10.0), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        moved, norm = ascent("sgd", 0.5, max_norm=1.0, weight_decay=0.2).step(weight, gradient)
        assert norm == 5
        assert torch.equal(weight, torch.full((2, 2), 10.0))
        torch.testing.assert_close(moved, torch.full((2, 2), 9.0) + torch.tensor([[0.3, 0.0], [0.0, 0.4]]))


class TestSigma:
    weight = torch.full((4, 9), 0.5)  # norm 3, sqrt(numel) 6

    def test_the_relative_size_is_that_of_a_perturbation(self) -> None:
        assert relative_sigma(0.05, self.weight) == pytest.approx(0.1)
        assert sigma_for(0.1, self.weight) == pytest.approx(0.05)
        noise = directions(0, 0, 2000, 4, 9, dtype=F64)
        sizes = (noise.a.square().sum(dim=(1, 2)) * noise.b.square().sum(dim=(1, 2))).mean().sqrt()
        assert 0.05 * float(sizes) / 3 == pytest.approx(0.1, rel=0.05)

    def test_the_issues_example_is_a_perturbation_as_large_as_the_weight(self) -> None:
        """sigma 0.05 at 128 x 768, for a head that keeps lengths: ``|W|^2`` is its 128 outputs."""
        weight = torch.linalg.qr(torch.randn(768, 128)).Q.T
        assert relative_sigma(0.05, weight) == pytest.approx(1.386, abs=0.01)

    @pytest.mark.parametrize("level", [0.1, 0.9])
    def test_the_spread_is_free_of_the_level(self, level: float) -> None:
        fitness = level * torch.tensor([1.02, 0.99, 0.98, 1.01])
        assert relative_spread(fitness) == pytest.approx(0.03, abs=1e-6)

    def test_it_reaches_a_relative_target_and_stays(self) -> None:
        sigma = Sigma(0.01, target=0.05, rate=0.1)
        draw = torch.Generator().manual_seed(0)
        values = []
        for _ in range(100):
            difference = 0.3 * 0.5 * sigma.value * torch.randn(500, generator=draw)  # spread 0.5 sigma
            values.append(sigma.adapt(torch.cat([0.3 + difference / 2, 0.3 - difference / 2]), self.weight))
        assert values[-50:] == pytest.approx([0.1] * 50, rel=0.15)

    def test_no_information_widens_up_to_the_limit(self) -> None:
        sigma = Sigma(0.4, rate=0.1, highest=1.0)
        ties = torch.full((8,), 0.2)
        assert sigma.adapt(ties, self.weight) == pytest.approx(0.44)
        assert [sigma.adapt(ties, self.weight) for _ in range(2)] == pytest.approx([0.484, 0.5])

    def test_the_absolute_rule_only_grows_at_the_variances_there_are(self) -> None:
        sigma = Sigma(0.05, "absolute", target=0.1, rate=0.05)
        difference = math.sqrt(5e-4) * torch.randn(128, generator=torch.Generator().manual_seed(0))
        fitness = torch.cat([0.3 + difference / 2, 0.3 - difference / 2])
        assert sigma.adapt(fitness, self.weight) == pytest.approx(0.0525)
        assert sigma.adapt(100 * fitness, self.weight) == pytest.approx(0.0525 * 0.95)

    def test_the_absolute_rule_ends_at_the_size_of_the_weight_or_not_at_all(self) -> None:
        bounded = Sigma(0.05, "absolute", target=0.1, rate=0.5)
        endless = Sigma(0.05, "absolute", target=0.1, rate=0.5, highest=math.inf)
        for _ in range(20):
            bounded.adapt(torch.ones(8), self.weight)
            endless.adapt(torch.ones(8), self.weight)
        assert relative_sigma(bounded.value, self.weight) == pytest.approx(1)
        assert endless.value == pytest.approx(0.05 * 1.5**20)
