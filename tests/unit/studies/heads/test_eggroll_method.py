from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.toy_pools import INPUTS, random_head, toy_pools
from torch import Tensor

from unimoe.core.errors import DataError, UsageError
from unimoe.metrics import score_run
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.method import evolution, product_sizes
from unimoe.studies.heads.eggroll.noise import directions
from unimoe.studies.heads.methods import GradientMethod, Method
from unimoe.studies.heads.model import evaluate_head, head_scores
from unimoe.studies.heads.pools import PoolSet

pytestmark = pytest.mark.usefixtures("one_thread")


POOLS = toy_pools(32, 16, noise=1.0)
UNSEEN = toy_pools(64, 16, noise=1.0, seed=7)


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


class TestItLearns:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"scoring": "dot", "noise_rank": 2},
            {"grid": True},
            {"precision": "bfloat16"},
            {"adaptive_sigma": True},
            {"shaping_method": "rank"},
            {"sigma_is": "absolute", "sigma": 0.02},
        ],
        ids=str,
    )
    def test_evolution_of_weights_finds_a_better_head(self, settings: dict[str, Any]) -> None:
        chosen = config(**settings)
        before = ndcg(random_head(), POOLS, chosen)
        weight, _ = run(evolution(chosen, random_head(), POOLS), random_head(), range(48))
        assert ndcg(weight, POOLS, chosen) > before + 0.2

    @pytest.mark.parametrize("scoring", ["dot", "cosine"])
    def test_evolution_of_scores_helps_queries_it_has_not_seen(self, scoring: str) -> None:
        chosen = config(method="score_es", sigma=0.5, scoring=scoring)
        before = ndcg(random_head(), UNSEEN, chosen)
        weight, _ = run(evolution(chosen, random_head(), POOLS), random_head(), range(80))
        assert ndcg(weight, UNSEEN, chosen) > before + 0.1


class TestOneStep:
    @pytest.mark.parametrize("scoring", ["dot", "cosine"])
    def test_it_is_the_estimate_from_perturbed_heads_judged_by_trec_eval(self, scoring: Any) -> None:
        chosen = config(
            scoring=scoring, population_size=12, optimizer="sgd", shaping_method="none", sigma_is="absolute", sigma=0.1
        )
        weight, places, step = random_head(), list(range(8)), 5
        noise = directions(chosen.seed, step, 6, *weight.shape)
        expected = weight.clone()
        for a, b in zip(noise.a[:, 0], noise.b[:, 0], strict=True):
            fitness = []
            for sign in (1, -1):
                head = weight + sign * 0.1 * torch.outer(a, b)
                scores = head_scores(head, POOLS.queries, POOLS.documents[POOLS.rows], scoring)
                found = score_run(POOLS.qrels, POOLS.run(scores), ("ndcg@10",)).per_query["ndcg@10"]
                fitness.append(sum(found[POOLS.query_ids[place]] for place in places) / len(places))
            expected += chosen.learning_rate / (12 * 0.1) * (fitness[0] - fitness[1]) * torch.outer(a, b)
        moved, facts = evolution(chosen, weight, POOLS).step(weight, POOLS.batch(places), step)
        assert facts["update_norm"] > 0
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)


class TestTies:
    @pytest.mark.parametrize("method", ["eggroll", "score_es"])
    @pytest.mark.parametrize("shaping", ["rank", "zscore", "none"])
    def test_where_all_rankings_are_equally_good_nothing_moves(self, method: str, shaping: str) -> None:
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


@pytest.mark.parametrize(
    "settings",
    [
        {"adaptive_sigma": True},
        {"grid": True, "objectives": {"relevance": 1.0, "diversity": 0.2, "fairness": 0.1}},
        {"precision": "fp4", "method": "hybrid", "handoff": 4},
        {"method": "score_es"},
        {"method": "genetic", "genetic": {"individuals": 8}},
        {"method": "genetic", "genetic": {"individuals": 8}, "precision": "fp4"},
    ],
    ids=str,
)
def test_a_method_with_the_state_of_another_takes_the_same_steps_to_the_bit(settings: dict[str, Any]) -> None:
    chosen = config(**settings)
    whole, facts = run(evolution(chosen, random_head(), POOLS), random_head(), range(7))
    first, second = (evolution(chosen, random_head(), POOLS) for _ in range(2))
    weight, _ = run(first, random_head(), range(3))
    second.load_state(first.state())
    resumed, resumed_facts = run(second, weight, range(3, 7))
    assert torch.equal(whole, resumed)
    assert facts == resumed_facts


HYBRID = config(method="hybrid", num_steps=8, handoff=3, population_size=16, gradient_method="approxndcg")


def test_evolution_hands_over_to_fresh_gradients_at_the_step() -> None:
    method, weight = evolution(HYBRID, random_head(), POOLS), random_head()
    alone, own = evolution(HYBRID.model_copy(update={"method": "eggroll"}), random_head(), POOLS), random_head()
    fresh = GradientMethod(HYBRID, "approxndcg", HYBRID.gradient_learning_rate)
    batch = POOLS.batch(range(8))
    for step in range(6):
        weight, facts = method.step(weight, batch, step)
        own, _ = (alone if step < 3 else fresh).step(own, batch, step)
        assert torch.equal(weight, own)
        assert ("fitness" in facts, "loss" in facts) == (step < 3, step >= 3)


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"population_size": 63}, "population_size 63 is odd"),
            ({"sigma": 0.0}, "sigma"),
            ({"method": "score_es", "objectives": {"diversity": 1.0}}, "relevance only"),
            ({"method": "hybrid", "handoff": 200}, "handoff 200 must be below num_steps 200"),
            ({"precision": "bfloat16", "method": "score_es"}, "precision bfloat16"),
            ({"adaptive_sigma": True, "method": "score_es"}, "adaptive_sigma"),
            ({"grid": True, "noise_rank": 2}, "noise_rank is 2"),
            ({"method": "infonce", "objectives": {"diversity": 1.0}}, "infonce optimises relevance only"),
            ({"sigmma": 1.0}, "Extra inputs"),
        ],
    )
    def test_the_config_says_what_is_impossible(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            config(**settings)

    @pytest.mark.parametrize("settings", [{}, {"method": "score_es"}, {"adaptive_sigma": True}], ids=str)
    def test_a_head_of_zeros_has_no_relative_sigma(self, settings: dict[str, Any]) -> None:
        weight = torch.zeros(8, INPUTS)
        with pytest.raises(DataError, match="sigma_is absolute"):
            run(evolution(config(**settings), weight, POOLS), weight, range(1))

    @pytest.mark.parametrize("method", ["eggroll", "score_es", "genetic"])
    def test_a_head_that_is_not_finite_is_not_ranked_first(self, method: str) -> None:
        weight = random_head()
        weight[0, 0] = torch.nan
        with pytest.raises(DataError):
            run(evolution(config(method=method), weight, POOLS), weight, range(1))


def test_the_sizes_of_product_directions_have_the_least_error() -> None:
    # (1 + 385 / 16) (1 + 129 / 8) = 429; 8 x 16, 32 x 4 and all others have more.
    assert product_sizes(128, 128, 384) == (16, 8)
    assert product_sizes(128, 384, 128) == (8, 16)
    with pytest.raises(UsageError, match="population_size 254"):
        product_sizes(127, 128, 384)
