"""Evolution of a head: noise, closed forms, the metric of every perturbation, the update, and the method as a whole."""

from __future__ import annotations

import math
from math import log2
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from support.studies import INPUTS, doubled, random_head, toy_pools
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import DataError, UsageError
from unimoe.metrics import score_run
from unimoe.studies.heads.config import Similarity, TrainConfig
from unimoe.studies.heads.eggroll import noise as noises
from unimoe.studies.heads.eggroll import scoring
from unimoe.studies.heads.eggroll.method import (
    Sigma,
    average_ranks,
    evolution,
    product_sizes,
    relative_sigma,
    relative_spread,
    shape,
    sigma_for,
)
from unimoe.studies.heads.eggroll.objectives import Gain, PoolMetric, ideal_dcg
from unimoe.studies.heads.eggroll.scoring import HeadScorer, base_scores
from unimoe.studies.heads.methods import Ascent, GradientMethod, Method
from unimoe.studies.heads.model import evaluate_head, head_scores
from unimoe.studies.heads.pools import Pools, PoolSet

pytestmark = pytest.mark.usefixtures("one_thread")


every_similarity = pytest.mark.parametrize("similarity", get_args(Similarity))


def test_streams_seeds_and_steps_share_no_noise() -> None:
    rows = [noises.factors("directions", seed, step, 40, 512) for seed, step in ((42, 1), (43, 0), (42, 0), (-1, 1))]
    rows.append(noises.factors("scores", 42, 1, 40, 512))
    every = torch.cat(rows)
    correlations = every @ every.T / 512 - torch.eye(len(every))
    assert float(correlations.abs().max()) < 6 / 512**0.5
    found = [noises.generator("four bits", seed, step).random(64).tolist() for seed, step in ((0, 0), (0, 1), (1, 0))]
    assert len({*found[0], *found[1], *found[2]}) == 3 * 64


QUERIES, SIZE, WIDTH = 5, 7, 12
F64, BF16 = torch.float64, torch.bfloat16


def problem(outputs: int = 6) -> tuple[Tensor, Pools]:
    draw = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, WIDTH, generator=draw, dtype=F64) / WIDTH**0.5
    queries = torch.randn(QUERIES, WIDTH, generator=draw, dtype=F64)
    return weight, Pools(queries, torch.randn(QUERIES, SIZE, WIDTH, generator=draw, dtype=F64))


def noise_of(kind: str, outputs: int = 6) -> noises.Perturbations:
    if kind == "products":
        return doubled(noises.product_directions(1, 2, 4, 3, outputs, WIDTH))
    return doubled(noises.directions(1, 2, 9, outputs, WIDTH, rank=int(kind[-1])))


def scores_of(scorer: HeadScorer, weight: Tensor, pools: Pools, noise: noises.Perturbations, sigma: float) -> Tensor:
    return torch.cat([scores for _, scores in scorer.blocks(weight, pools, noise, sigma)])


def materialised(perturbations: noises.Perturbations) -> Tensor:
    """Every direction as a matrix, ``(M, D_out, D_in)``, from its factors alone."""
    if isinstance(perturbations, noises.ProductDirections):
        return torch.stack([torch.outer(a, b) for b in perturbations.b for a in perturbations.a])
    sums: Tensor = torch.einsum("mko,mki->moi", perturbations.a, perturbations.b)
    return sums / math.sqrt(perturbations.a.shape[1])


def by_hand(weight: Tensor, pools: Pools, similarity: Similarity) -> Tensor:
    queries, documents = pools.queries @ weight.T, pools.documents @ weight.T
    if similarity == "cosine":
        return functional.cosine_similarity(queries.unsqueeze(1), documents, dim=2, eps=0)
    return (queries.unsqueeze(1) * documents).sum(dim=2)


@every_similarity
@pytest.mark.parametrize("outputs", [2, 6, 11])
@pytest.mark.parametrize("kind", ["rank 1", "rank 3", "products"])
def test_scores_are_those_of_the_perturbed_weights_whatever_the_blocks(
    similarity: Similarity, outputs: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, pools = problem(outputs)
    perturbations, sigma = noise_of(kind, outputs), 0.3
    every = materialised(perturbations)
    expected = [by_hand(weight + sign * sigma * change, pools, similarity) for sign in (1, -1) for change in every]
    found = scores_of(HeadScorer(similarity), weight, pools, perturbations, sigma)
    scale = max(1.0, float(found.abs().max()))
    torch.testing.assert_close(found, torch.stack(expected, dim=2), rtol=0, atol=1e-12 * scale)
    for size, most in ((sigma, 2**-8), (1e-9, 1e-9)):  # bfloat16 has 8 bits, and W h keeps all of its own
        rough, exact = (scores_of(HeadScorer(similarity, d), weight, pools, perturbations, size) for d in (BF16, None))
        assert 0 < float((rough - exact).abs().median()) < most * scale
    monkeypatch.setattr(scoring, "_BLOCK_BYTES", {"cpu": 1})
    parts = [*HeadScorer(similarity).blocks(weight, pools, perturbations, sigma)]
    assert [(queries.start, queries.stop) for queries, _ in parts] == [(n, n + 1) for n in range(QUERIES)]
    torch.testing.assert_close(torch.cat([scores for _, scores in parts]), found, rtol=0, atol=1e-12 * scale)


@every_similarity
def test_padding_scores_minus_infinity_and_a_vector_of_length_zero_zero(similarity: Similarity) -> None:
    weight, pools = problem()
    documents, queries = pools.documents.clone(), pools.queries.clone()
    documents[2, 1] = queries[3] = 0
    valid = torch.ones(QUERIES, SIZE, dtype=torch.bool)
    valid[0, 3:] = valid[4, 1:] = False
    padded, noise = Pools(queries, documents, valid), noise_of("rank 3")
    found = scores_of(HeadScorer(similarity), weight, padded, noise, 0.3)
    assert bool((found[2, 1] == 0).all())
    assert bool((found[3] == 0).all())
    assert bool((found[~valid] == -torch.inf).all())
    whole = scores_of(HeadScorer(similarity), weight, Pools(queries, documents), noise, 0.3)
    torch.testing.assert_close(found[valid], whole[valid])
    assert bool((base_scores(weight, padded, similarity)[~valid] == -torch.inf).all())


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


def test_z_scores_have_no_mean_and_unit_deviation_and_keep_ranks() -> None:
    values = torch.randint(0, 5, (3, 64)).double() / 7e4 + 0.3
    shaped = shape(values, "zscore")
    torch.testing.assert_close(shaped.mean(dim=1), torch.zeros(3, dtype=F64), rtol=0, atol=1e-9)
    torch.testing.assert_close(shaped.std(dim=1, correction=0), torch.ones(3, dtype=F64))
    assert torch.equal(shape(values, "combined"), average_ranks(shaped) / 63 - 0.5)
    assert torch.equal(shape(values, "combined"), shape(values, "rank"))
    assert shape(values, "none") is values


def test_sgd_clips_and_decays() -> None:
    settings = {"optimizer": "sgd", "learning_rate": 0.5, "max_norm": 1.0, "weight_decay": 0.2}
    weight, gradient = torch.full((2, 2), 10.0), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    moved, norm = Ascent(TrainConfig.model_validate(settings)).step(weight, gradient)
    assert norm == 5
    assert torch.equal(weight, torch.full((2, 2), 10.0))
    torch.testing.assert_close(moved, torch.full((2, 2), 9.0) + torch.tensor([[0.3, 0.0], [0.0, 0.4]]))


WEIGHT = torch.full((4, 9), 0.5)  # norm 3, sqrt(numel) 6


def test_the_relative_sigma_is_the_size_of_a_perturbation_and_reaches_its_target() -> None:
    assert relative_sigma(0.05, WEIGHT) == pytest.approx(0.1)
    assert sigma_for(0.1, WEIGHT) == pytest.approx(0.05)
    noise = noises.directions(0, 0, 2000, 4, 9)
    sizes = (noise.a.square().sum(dim=(1, 2)) * noise.b.square().sum(dim=(1, 2))).mean().sqrt()
    assert 0.05 * float(sizes) / 3 == pytest.approx(0.1, rel=0.05)
    for level in (0.1, 0.9):  # the spread is free of the level
        assert relative_spread(level * torch.tensor([1.02, 0.99, 0.98, 1.01])) == pytest.approx(0.03, abs=1e-6)
    sigma = Sigma(0.01, target=0.05, rate=0.1)
    draw = torch.Generator().manual_seed(0)
    values = []
    for _ in range(100):
        difference = 0.3 * 0.5 * sigma.value * torch.randn(500, generator=draw)  # spread 0.5 sigma
        values.append(sigma.adapt(torch.cat([0.3 + difference / 2, 0.3 - difference / 2]), WEIGHT))
    assert values[-50:] == pytest.approx([0.1] * 50, rel=0.15)


POOLS = toy_pools(32, 16, noise=1.0)
ABSOLUTE = {"sigma_is": "absolute", "sigma": 0.02}


def config(**settings: Any) -> TrainConfig:
    fast = {"head_output_size": 8, "num_steps": 200, "learning_rate": 0.02, "population_size": 64}
    return TrainConfig.model_validate(fast | settings)


def run(method: Method, weight: Tensor, steps: range, pools: PoolSet = POOLS) -> tuple[Tensor, dict[str, float]]:
    facts: dict[str, float] = {}
    for step in steps:
        weight, facts = method.step(weight, pools.batch([(8 * step + n) % len(pools) for n in range(8)]), step)
    return weight, facts


def ndcg(weight: Tensor, pools: PoolSet, settings: TrainConfig) -> float:
    return evaluate_head(weight, pools, settings).aggregate[f"ndcg@{settings.ndcg_k}"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scoring": "dot", "noise_rank": 2},
        {"grid": True, "precision": "bfloat16"},
        {"adaptive_sigma": True, "shaping_method": "rank"},
        ABSOLUTE,
        *({"method": "score_es", "sigma": 0.5, "scoring": scoring} for scoring in ("dot", "cosine")),
    ],
    ids=str,
)
def test_evolution_finds_a_better_head_and_that_of_scores_helps_unseen_queries(settings: dict[str, Any]) -> None:
    chosen, unseen = config(**settings), toy_pools(64, 16, noise=1.0, seed=7)
    pools, steps, gain = (unseen, 80, 0.1) if chosen.method == "score_es" else (POOLS, 48, 0.2)
    before = ndcg(random_head(), pools, chosen)
    weight, _ = run(evolution(chosen, random_head(), POOLS), random_head(), range(steps))
    assert ndcg(weight, pools, chosen) > before + gain


@pytest.mark.parametrize(("scoring", "seed_scale"), [("dot", False), ("cosine", True)])
def test_a_step_is_the_estimate_from_perturbed_heads_judged_by_trec_eval(scoring: Any, seed_scale: bool) -> None:
    plain = {"optimizer": "sgd", "shaping_method": "none", "sigma_is": "absolute", "sigma": 0.1}
    chosen = config(scoring=scoring, seed_scale=seed_scale, population_size=12, **plain)
    weight, places, step = random_head(), list(range(8)), 5
    noise = noises.directions(chosen.seed, step, 6, *weight.shape)
    expected = weight.clone()
    for a, b in zip(noise.a[:, 0], noise.b[:, 0], strict=True):
        fitness = []
        for sign in (1, -1):
            head = weight + sign * 0.1 * torch.outer(a, b)
            scores = head_scores(head, POOLS.queries, POOLS.documents[POOLS.rows], scoring)
            found = score_run(POOLS.qrels, POOLS.run(scores), ("ndcg@10",)).per_query["ndcg@10"]
            fitness.append(sum(found[POOLS.query_ids[place]] for place in places) / len(places))
        scale = chosen.learning_rate / (12 if seed_scale else 12 * 0.1)  # the original leaves sigma out
        expected += scale * (fitness[0] - fitness[1]) * torch.outer(a, b)
    moved, facts = evolution(chosen, weight, POOLS).step(weight, POOLS.batch(places), step)
    assert facts["update_norm"] > 0
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["eggroll", "score_es"])
@pytest.mark.parametrize("shaping", ["rank", "zscore", "none"])
def test_where_all_rankings_are_equally_good_nothing_moves(method: str, shaping: str) -> None:
    chosen = config(method=method, shaping_method=shaping, weight_decay=0.1, sigma=0.5)
    tied = toy_pools(8, 6, padded=False, relevant=6)
    evolved = evolution(chosen, random_head(), POOLS)
    weights, _ = run(evolved, random_head(), range(3))
    momentum = {name: value.clone() for name, value in evolved.state().items()}
    ideal = evolution(chosen, random_head(), tied)
    ideal.load_state(momentum)
    after, facts = run(ideal, weights, range(3, 4), tied)
    assert facts["fitness"] == pytest.approx(1)
    assert (facts["tied"], facts["update_norm"]) == (1, 0)
    assert torch.equal(after, weights)
    assert all(torch.equal(value, momentum[name]) for name, value in ideal.state().items())


def test_evolution_hands_over_to_fresh_gradients_at_the_step() -> None:
    hybrid = config(method="hybrid", num_steps=8, handoff=3, population_size=16, gradient_method="approxndcg")
    method, weight = evolution(hybrid, random_head(), POOLS), random_head()
    alone, own = evolution(hybrid.model_copy(update={"method": "eggroll"}), random_head(), POOLS), random_head()
    fresh = GradientMethod(hybrid, "approxndcg", hybrid.gradient_learning_rate)
    batch = POOLS.batch(range(8))
    for step in range(6):
        weight, facts = method.step(weight, batch, step)
        own, _ = (alone if step < 3 else fresh).step(own, batch, step)
        assert torch.equal(weight, own)
        assert ("fitness" in facts, "loss" in facts) == (step < 3, step >= 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population_size": 63}, "population_size 63 is odd"),
        ({"method": "score_es", "objectives": {"diversity": 1.0}}, "relevance only"),
        ({"method": "hybrid", "handoff": 200}, "handoff 200 must be below num_steps 200"),
        ({"precision": "bfloat16", "method": "score_es"}, "precision bfloat16"),
        ({"adaptive_sigma": True, "method": "score_es"}, "adaptive_sigma"),
        ({"grid": True, "noise_rank": 2}, "noise_rank is 2"),
        ({"method": "infonce", "objectives": {"diversity": 1.0}}, "infonce optimises relevance only"),
        ({"soft_labels": {"voters": ["bm25", "x"], "votes": 3}}, "only 2 voters"),
    ],
)
def test_the_config_says_what_is_impossible(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**settings)


@pytest.mark.parametrize(
    ("settings", "value", "words"),
    [
        *(({"method": method}, 0.0, "sigma_is absolute") for method in ("eggroll", "score_es")),
        *((ABSOLUTE | {"method": method}, torch.nan, "not finite") for method in ("eggroll", "score_es")),
        (ABSOLUTE | {"method": "genetic"}, torch.nan, "overflow"),
        (ABSOLUTE | {"scoring": "dot"}, torch.nan, "not finite"),
    ],
)
def test_a_head_without_a_size_or_a_finite_score_is_refused(settings: dict[str, Any], value: float, words: str) -> None:
    weight = torch.full((8, INPUTS), value)
    with pytest.raises(DataError, match=words):
        run(evolution(config(**settings), weight, POOLS), weight, range(1))


def test_the_sizes_of_product_directions_have_the_least_error() -> None:
    # (1 + 385 / 16) (1 + 129 / 8) = 429; 8 x 16, 32 x 4 and all others have more.
    assert product_sizes(128, 128, 384) == (16, 8)
    assert product_sizes(128, 384, 128) == (8, 16)
    with pytest.raises(UsageError, match="population_size 254"):
        product_sizes(127, 128, 384)
