from __future__ import annotations

import torch
from support.toy_pools import random_head, toy_pools

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.method import evolution
from unimoe.studies.heads.methods import GradientMethod

POOLS = toy_pools(8, 10)
CONFIG = TrainConfig(
    method="hybrid", head_output_size=8, num_steps=8, handoff=3, population_size=16, gradient_method="approxndcg"
)


def test_evolution_hands_over_to_fresh_gradients_at_the_step() -> None:
    method, weight = evolution(CONFIG, random_head(), POOLS), random_head()
    alone, own = evolution(CONFIG.model_copy(update={"method": "eggroll"}), random_head(), POOLS), random_head()
    fresh = GradientMethod(CONFIG, "approxndcg", CONFIG.gradient_learning_rate, random_head())
    batch = POOLS.batch(range(8))
    for step in range(6):
        weight, facts = method.step(weight, batch, step)
        own, _ = (alone if step < 3 else fresh).step(own, batch, step)
        assert torch.equal(weight, own)
        assert ("fitness" in facts, "loss" in facts) == (step < 3, step >= 3)


def test_gradients_leave_the_moments_of_evolution_alone() -> None:
    method, weight = evolution(CONFIG, random_head(), POOLS), random_head()
    batch = POOLS.batch(range(8))
    for step in range(3):
        weight, _ = method.step(weight, batch, step)
    before = {name: value for name, value in method.state().items() if name.startswith("first.")}
    assert not [name for name in method.state() if name.startswith("second.")]
    method.step(weight, batch, 3)
    after = method.state()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert [name for name in after if name.startswith("second.")]
