from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unimoe.core.errors import UsageError
from unimoe.studies.heads.eggroll.ndcg import PoolMetric
from unimoe.studies.heads.eggroll.noise import directions, product_directions
from unimoe.studies.heads.eggroll.products import Pools
from unimoe.studies.heads.eggroll.score_space import score_noise, through_head
from unimoe.studies.heads.eggroll.scoring import Similarity, base_scores
from unimoe.studies.heads.eggroll.update import (
    Ascent,
    Sigma,
    estimate,
    relative_sigma,
    relative_spread,
    shape,
    sigma_for,
)
from unimoe.training.losses import score_space
from unimoe.training.losses.score_space import score_space_gradient

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64


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
            moved = weight.clone()
            Ascent(name, 1.0).step(moved, gradient)
            assert torch.equal(moved, weight)

    def test_shaped_fitness_gives_the_weights_dtype(self) -> None:
        assert estimate(directions(0, 0, 2, 3, 5), torch.rand(4, dtype=F64), 0.1).dtype == torch.float32


class TestAscent:
    @pytest.mark.parametrize("decay", [0.0, 0.1])
    def test_adam_is_torchs_adamw_upwards(self, decay: float) -> None:
        torch.manual_seed(0)
        ours, theirs = torch.randn(3, 4, dtype=F64), torch.nn.Parameter(torch.empty(3, 4, dtype=F64))
        theirs.data.copy_(ours)
        peer = torch.optim.AdamW([theirs], lr=0.01, weight_decay=decay, maximize=True)
        ascent = Ascent("adam", 0.01, weight_decay=decay)
        for _ in range(20):
            gradient = torch.randn(3, 4, dtype=F64)
            theirs.grad = gradient.clone()
            peer.step()
            ascent.step(ours, gradient)
        torch.testing.assert_close(ours, theirs.data, rtol=0, atol=1e-12)

    def test_sgd_clips_and_decays(self) -> None:
        weight, gradient = torch.full((2, 2), 10.0), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        norm = Ascent("sgd", 0.5, max_norm=1.0, weight_decay=0.2).step(weight, gradient)
        assert norm == 5
        torch.testing.assert_close(weight, torch.full((2, 2), 9.0) + torch.tensor([[0.3, 0.0], [0.0, 0.4]]))

    @pytest.mark.parametrize("name", ["sgd", "adam"])
    @pytest.mark.parametrize("stop", [0, 3])
    def test_it_goes_on_from_its_state(self, name: str, stop: int) -> None:
        gradients = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
        whole, parted = torch.ones(2, 3), torch.ones(2, 3)
        first, second = Ascent(name, 0.1), Ascent(name, 0.1)  # type: ignore[arg-type]
        for gradient in gradients:
            first.step(whole, gradient)
        before = Ascent(name, 0.1)  # type: ignore[arg-type]
        for gradient in gradients[:stop]:
            before.step(parted, gradient)
        second.load_state(before.state())
        for gradient in gradients[stop:]:
            second.step(parted, gradient)
        assert torch.equal(whole, parted)
        assert all(isinstance(value, Tensor) for value in first.state().values())

    def test_an_unknown_optimizer_is_named(self) -> None:
        with pytest.raises(UsageError, match="optimizer 'lion'"):
            Ascent("lion", 0.1)  # type: ignore[arg-type]


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

    def test_wrong_usage_is_named(self) -> None:
        with pytest.raises(UsageError, match="sigma's rule 'auto'"):
            Sigma(0.1, "auto")  # type: ignore[arg-type]
        for value in (0.0, -1.0, math.nan):
            with pytest.raises(UsageError, match="must be above 0"):
                Sigma(value)


class TestScoreSpace:
    @pytest.mark.parametrize("similarity", ["dot", "cosine"])
    def test_the_way_through_the_head_is_autograds(self, similarity: Similarity) -> None:
        torch.manual_seed(0)
        weight, slopes = torch.randn(4, 6, dtype=F64, requires_grad=True), torch.randn(3, 5, dtype=F64)
        pools = Pools(torch.randn(3, 6, dtype=F64), torch.randn(3, 5, 6, dtype=F64))
        (base_scores(weight, pools, similarity) * slopes).sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        found = through_head(slopes, weight.detach(), pools, similarity)
        torch.testing.assert_close(found, weight.grad, rtol=0, atol=1e-12)

    def test_vectors_of_length_zero_pull_nowhere(self) -> None:
        pools = Pools(torch.zeros(1, 3), torch.zeros(1, 2, 3))
        assert bool((through_head(torch.ones(1, 2), torch.ones(2, 3), pools, "cosine") == 0).all())

    def test_blocks_change_nothing_and_seed_and_step_are_not_summed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
        metric = PoolMetric(torch.eye(4, 6), torch.ones(4), 5)
        whole, fitness = score_space_gradient(scores, metric, 0.5, score_noise(1, 2, 8, scores))
        monkeypatch.setattr(score_space, "BLOCK", 1)
        gradient, again = score_space_gradient(scores, metric, 0.5, score_noise(1, 2, 8, scores))
        torch.testing.assert_close(gradient, whole)
        assert torch.equal(again, fitness)
        other, _ = score_space_gradient(scores, metric, 0.5, score_noise(2, 1, 8, scores))
        assert not torch.equal(other, whole)

    def test_padding_and_hopeless_queries_get_no_gradient(self) -> None:
        valid = torch.tensor([[True, True, False], [True, True, True]])
        scores = torch.tensor([[0.0, 0.1, -torch.inf], [5.0, 6.0, 7.0]])
        metric = PoolMetric(torch.tensor([[1.0, 0, 0], [0, 0, 0]]), torch.tensor([1.0, 0]), 5, valid=valid)
        gradient, fitness = score_space_gradient(scores, metric, 0.5, score_noise(0, 0, 200, scores))
        assert gradient[0, 2] == 0
        assert gradient[0, 0] > 0 > gradient[0, 1]
        assert gradient[1].tolist() == [0, 0, 0]
        assert bool(fitness.isfinite().all())
