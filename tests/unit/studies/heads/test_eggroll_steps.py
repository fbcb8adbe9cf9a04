"""Evolution of a head, from its noise and closed forms over the metric of every perturbation to the update."""

from __future__ import annotations

import math
from math import log2
from typing import Any, get_args

import pytest
import torch
from support.toy_pools import doubled
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import Scoring, TrainConfig
from unimoe.studies.heads.eggroll import scoring
from unimoe.studies.heads.eggroll.ndcg import Gain, PoolMetric, ideal_dcg
from unimoe.studies.heads.eggroll.noise import (
    Perturbations,
    ProductDirections,
    directions,
    factors,
    generator,
    product_directions,
)
from unimoe.studies.heads.eggroll.scoring import Scorer, base_scores
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
from unimoe.studies.heads.pools import Pools

pytestmark = pytest.mark.usefixtures("one_thread")
every_similarity = pytest.mark.parametrize("similarity", get_args(Scoring))


def test_directions_seeds_steps_and_streams_share_no_noise() -> None:
    rows = [factors("directions", seed, step, 40, 512) for seed, step in ((42, 1), (43, 0), (42, 0), (-1, 1))]
    rows.append(factors("scores", 42, 1, 40, 512))
    every = torch.cat(rows)
    correlations = every @ every.T / 512 - torch.eye(len(every))
    assert float(correlations.abs().max()) < 6 / 512**0.5
    found = [generator("four bits", seed, step).random(64).tolist() for seed, step in ((0, 0), (0, 1), (1, 0))]
    assert len({*found[0], *found[1], *found[2]}) == 3 * 64


def test_entries_have_the_moments_and_tails_of_a_normal() -> None:
    values = factors("directions", 0, 0, 1000, 1000).double().flatten()
    assert abs(float(values.mean())) < 4e-3
    assert float(values.var()) == pytest.approx(1, abs=6e-3)
    assert float((values**4).mean()) == pytest.approx(3, abs=0.05)
    for bound, share in ((1, 0.158655), (2, 0.022750), (3, 0.0013499)):
        assert float((values > bound).double().mean()) == pytest.approx(share, abs=5 * (share / 1e6) ** 0.5)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_directions_have_unit_variance_at_every_rank(rank: int) -> None:
    count = 400
    found = doubled(directions(0, 0, count, 8, 9, rank=rank))
    squares = [float(found.weighted_sum(one).square().sum()) for one in torch.eye(count, dtype=torch.float64)]
    assert sum(squares) / count / 72 == pytest.approx(1, abs=0.1)


QUERIES, SIZE, WIDTH = 5, 7, 12


def problem(outputs: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Pools]:
    draw = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, WIDTH, generator=draw, dtype=dtype) / WIDTH**0.5
    queries = torch.randn(QUERIES, WIDTH, generator=draw, dtype=dtype)
    return weight, Pools(queries, torch.randn(QUERIES, SIZE, WIDTH, generator=draw, dtype=dtype))


def noise_of(kind: str, outputs: int = 6) -> Perturbations:
    if kind == "products":
        return doubled(product_directions(1, 2, 4, 3, outputs, WIDTH))
    return doubled(directions(1, 2, 9, outputs, WIDTH, rank=int(kind[-1])))


def scores_of(scorer: Scorer, weight: Tensor, pools: Pools, noise: Perturbations, sigma: float) -> Tensor:
    return torch.cat([scores for _, scores in scorer.blocks(weight, pools, noise, sigma)])


def materialised(perturbations: Perturbations) -> Tensor:
    """Every direction as a matrix, ``(M, D_out, D_in)``, from its factors alone."""
    if isinstance(perturbations, ProductDirections):
        return torch.stack([torch.outer(a, b) for b in perturbations.b for a in perturbations.a])
    sums: Tensor = torch.einsum("mko,mki->moi", perturbations.a, perturbations.b)
    return sums * perturbations.scale


def by_hand(weight: Tensor, pools: Pools, similarity: Scoring) -> Tensor:
    queries, documents = pools.queries @ weight.T, pools.documents @ weight.T
    if similarity == "cosine":
        return functional.cosine_similarity(queries.unsqueeze(1), documents, dim=2, eps=0)
    return (queries.unsqueeze(1) * documents).sum(dim=2)


@every_similarity
@pytest.mark.parametrize("outputs", [2, 6, 11])
@pytest.mark.parametrize("kind", ["rank 1", "rank 3", "products"])
def test_scores_are_those_of_the_perturbed_weights_whatever_the_blocks(
    similarity: Scoring, outputs: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, pools = problem(outputs)
    perturbations, sigma = noise_of(kind, outputs), 0.3
    every = materialised(perturbations)
    expected = [by_hand(weight + sign * sigma * change, pools, similarity) for sign in (1, -1) for change in every]
    found = scores_of(Scorer(similarity), weight, pools, perturbations, sigma)
    scale = max(1.0, float(found.abs().max()))
    torch.testing.assert_close(found, torch.stack(expected, dim=2), rtol=0, atol=1e-12 * scale)
    monkeypatch.setattr(scoring, "_BLOCK_BYTES", {"cpu": 1})
    parts = [*Scorer(similarity).blocks(weight, pools, perturbations, sigma)]
    assert [(queries.start, queries.stop) for queries, _ in parts] == [(n, n + 1) for n in range(QUERIES)]
    torch.testing.assert_close(torch.cat([scores for _, scores in parts]), found, rtol=0, atol=1e-13 * scale)


@every_similarity
def test_padding_scores_minus_infinity(similarity: Scoring) -> None:
    weight, pools = problem()
    valid = torch.ones(QUERIES, SIZE, dtype=torch.bool)
    valid[0, 3:] = valid[4, 1:] = False
    documents = pools.documents.masked_fill(~valid.unsqueeze(2), 0)
    padded = Pools(pools.queries, documents, valid)
    found = scores_of(Scorer(similarity), weight, padded, noise_of("rank 1"), 0.3)
    assert bool((found[~valid] == -torch.inf).all())
    torch.testing.assert_close(
        found[valid], scores_of(Scorer(similarity), weight, pools, noise_of("rank 1"), 0.3)[valid]
    )
    assert bool((base_scores(weight, padded, similarity)[~valid] == -torch.inf).all())


@every_similarity
def test_a_vector_of_length_zero_scores_zero(similarity: Scoring) -> None:
    weight, pools = problem()
    documents, queries = pools.documents.clone(), pools.queries.clone()
    documents[2, 1] = queries[3] = documents[3, 0] = 0
    found = scores_of(Scorer(similarity), weight, Pools(queries, documents), noise_of("rank 3"), 0.3)
    assert bool((found[2, 1] == 0).all())
    assert bool((found[3] == 0).all())


@every_similarity
def test_fewer_bits_agree_with_float64(similarity: Scoring) -> None:
    weight, pools = problem(11, torch.float32)
    noise = directions(0, 0, 50, 11, WIDTH)
    found = scores_of(Scorer(similarity), weight, pools, noise, 0.01)
    doubles = Pools(pools.queries.double(), pools.documents.double())
    exact = scores_of(Scorer(similarity), weight.double(), doubles, doubled(noise), 0.01)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-5 * max(1.0, float(exact.abs().max())))
    low, base = Scorer(similarity, gemm_dtype=torch.bfloat16), base_scores(weight, pools, similarity).unsqueeze(2)
    unmoved = scores_of(low, weight, pools, noise, 0.0)
    torch.testing.assert_close(unmoved, base.expand_as(unmoved), rtol=0, atol=1e-5)  # base scores stay exact
    moved = scores_of(low, weight, pools, noise, 0.01)
    assert 0 < float((moved - found).abs().max()) < 0.03 * float((found - base).abs().max())


@every_similarity
def test_a_diverged_weight_is_no_ranking(similarity: Scoring) -> None:
    weight, pools = problem()
    weight[0, 0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        scores_of(Scorer(similarity), weight, pools, noise_of("rank 1"), 0.1)
    with pytest.raises(DataError, match="not finite"):
        base_scores(weight, pools, similarity)


@pytest.mark.parametrize("gain", ["linear", "exp2"])
def test_one_ranking_by_hand(gain: Gain) -> None:
    # Ranking: place 0 (grade 0), 1 (2.5), 3 (0), 2 (0.5); a judged document of grade 1 is not in the pool.
    grades, scores = torch.tensor([[0, 2.5, 0.5, 0]]), torch.tensor([[[4.0], [3.0], [1.0], [2.0]]])

    def worth(grade: float) -> float:
        return grade if gain == "linear" else float(2**grade - 1)

    best = worth(2.5) + worth(1) / log2(3) + worth(0.5) / 2
    ideal = torch.tensor([ideal_dcg([0, 2.5, 0.5, 0, 1], 10, gain)])
    assert float(ideal) == pytest.approx(best)
    found = PoolMetric(grades, ideal, 10, gain=gain)(scores)
    assert float(found) == pytest.approx((worth(2.5) / log2(3) + worth(0.5) / log2(5)) / best, abs=1e-7)
    cut = PoolMetric(grades, ideal, 3, gain=gain)(scores)
    assert float(cut) == pytest.approx(worth(2.5) / log2(3) / best, abs=1e-7)


def test_neighbouring_floats_are_no_tie() -> None:
    low = torch.tensor(1.0)
    single = torch.stack([low, torch.nextafter(low, torch.tensor(2.0))]).view(1, 2, 1)
    double = torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64).view(1, 2, 1)
    for scores in (single, double):
        assert float(PoolMetric(torch.tensor([[0.0, 1.0]]), torch.ones(1), 1)(scores)) == 1


F64 = torch.float64


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
