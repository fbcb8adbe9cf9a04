from __future__ import annotations

from typing import Any

import pytest
import torch
from support.toy_pools import best_head, random_head, toy_pools

from unimoe.studies.heads.config import GeneticConfig, TrainConfig
from unimoe.studies.heads.eggroll.fp4 import Packed, dequantize
from unimoe.studies.heads.eggroll.genetic import Genetic
from unimoe.studies.heads.eggroll.objectives import Objectives
from unimoe.studies.heads.model import evaluate_head

POOLS = toy_pools(24, 12)
EVERY = POOLS.batch(range(24))

pytestmark = pytest.mark.usefixtures("one_thread")


def genetic(**settings: Any) -> Genetic:
    config = TrainConfig(method="genetic", head_output_size=8, genetic=GeneticConfig(**settings))
    return Genetic(config, Objectives(config, POOLS))


def population(method: Genetic) -> torch.Tensor:
    return method.state()["population"]


def test_on_one_batch_the_best_is_never_lost_and_gets_better() -> None:
    method, weight, found = genetic(individuals=16), random_head(), []
    for step in range(30):
        weight, facts = method.step(weight, EVERY, step)
        assert torch.equal(population(method)[0], weight)
        found.append(facts["fitness"])
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.05


def test_four_bits_keep_the_elites_and_round_the_children() -> None:
    """What lives on is the same to the bit, all heads have codes of four bits, and the best is never lost."""
    config = TrainConfig(method="genetic", head_output_size=8, genetic=GeneticConfig(individuals=16), precision="fp4")
    method, weight, found = Genetic(config, Objectives(config, POOLS)), random_head(), []
    for step in range(30):
        before = Packed.of_state(method.state())
        weight, facts = method.step(weight, EVERY, step)
        packed = Packed.of_state(method.state())
        assert packed is not None
        after = dequantize(packed)
        assert torch.equal(after[0], weight)
        if before is not None:
            assert any(torch.equal(weight, head) for head in dequantize(before))
        assert all(len(block.unique()) <= 15 for row in after.flatten(0, 1) for block in row.split(16))
        found.append(facts["fitness"])
    assert found == sorted(found)
    assert found[-1] > found[0]
    assert facts["method_bytes"] == 16 * facts["weight_bytes"] < 16 * weight.numel()


def test_the_first_population_is_the_head_and_mutations_of_it() -> None:
    weight, facts = genetic(individuals=4, elites=1).step(best_head(), EVERY, 0)
    # Nothing beats the best head by mutation, and of equals the first one stays.
    assert (facts["best_individual"], facts["update_norm"]) == (0, 0)
    assert torch.equal(weight, best_head())
    measured = evaluate_head(weight, POOLS, TrainConfig()).aggregate["ndcg@10"]
    assert facts["fitness"] == pytest.approx(measured, abs=1e-6)


def test_mutations_have_rank_one_and_the_size_asked_for() -> None:
    method = genetic(individuals=200, elites=1, crossover=0.0, mutation=0.1)
    method.step(random_head(), EVERY, 0)
    before = method.state()["population"]
    method.load_state({"population": random_head().expand(200, -1, -1).clone()})
    method.step(random_head(), EVERY, 1)
    changes = population(method)[1:] - random_head()
    assert int(torch.linalg.matrix_rank(changes, rtol=1e-4).max()) == 1
    sizes = changes.flatten(1).norm(dim=1) / random_head().norm()
    assert float(sizes.square().mean().sqrt()) == pytest.approx(0.1, rel=0.1)
    assert not torch.equal(before[1:], population(method)[1:])


def test_children_of_two_parents_lie_between_them() -> None:
    method = genetic(individuals=64, elites=1, crossover=1.0, mutation=1e-9)
    ends = torch.stack([random_head(seed=1), random_head(seed=2)])
    method.load_state({"population": ends.repeat(32, 1, 1)})
    method.step(random_head(), EVERY, 0)
    line = (ends[1] - ends[0]).flatten()
    along = (population(method) - ends[0]).flatten(1)
    shares = along @ line / line.square().sum()
    torch.testing.assert_close(along, shares[:, None] * line, atol=1e-5, rtol=0)
    assert ((shares > -1e-6) & (shares < 1 + 1e-6)).all()
    assert ((shares > 0.05) & (shares < 0.95)).sum() > 8


def test_tournaments_prefer_the_fit() -> None:
    heads = torch.stack([best_head() if number < 4 else random_head(seed=number) for number in range(32)])

    def share_of_best(tournament: int) -> float:
        method = genetic(individuals=32, elites=1, crossover=0.0, mutation=1e-9, tournament=tournament)
        method.load_state({"population": heads})
        method.step(random_head(), EVERY, 0)
        return float(((population(method)[1:] - best_head()).flatten(1).norm(dim=1) < 1e-5).float().mean())

    # Chance of a best one among n draws of 32, with 4 of them the best: 1 - (28 / 32)^n.
    assert share_of_best(16) > 0.6  # 0.88
    assert share_of_best(2) < 0.5  # 0.23
