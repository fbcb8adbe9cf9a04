from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
import torch
from support.toy_pools import toy_pools

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.objectives import (
    Objectives,
    diversity,
    fairness,
    first_documents,
    freshness,
    pareto_front,
)
from unimoe.studies.heads.eggroll.scoring import base_scores
from unimoe.studies.heads.model import evaluate_head
from unimoe.studies.heads.pools import PoolSet

D2, D3 = 1 / math.log2(3), 1 / 2  # exposure at ranks 2 and 3; at rank 1 it is 1

# One pool of four documents, the last padded, and two rankings of it: 0 1 2 and 2 1 0.
SCORES = torch.tensor([[[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [-torch.inf, -torch.inf]]])
VALID = torch.tensor([[True, True, True, False]])


class TestFirstDocuments:
    def test_best_first(self) -> None:
        top = first_documents(SCORES, VALID, 2)
        assert top.places[0].T.tolist() == [[0, 1], [2, 1]]
        assert bool(top.inside.all())

    def test_a_pool_may_hold_fewer(self) -> None:
        top = first_documents(SCORES, VALID, 10)
        assert top.places.shape == (1, 4, 2)
        assert top.inside[0].T.tolist() == [[True, True, True, False]] * 2


class TestDiversity:
    documents = torch.tensor([[[2.0, 0.0], [0.6, 0.8], [0.0, 1.0], [5.0, 5.0]]])

    def test_by_hand(self) -> None:
        # Cosines: 0 and 1: 0.6, 1 and 2: 0.8, 0 and 2: 0.
        two = diversity(first_documents(SCORES, VALID, 2), self.documents)
        assert two[0].tolist() == pytest.approx([0.4, 0.2])
        three = diversity(first_documents(SCORES, VALID, 4), self.documents)
        assert three[0].tolist() == pytest.approx([(0.4 + 0.2 + 1) / 3] * 2)

    def test_one_document_has_no_pair(self) -> None:
        assert diversity(first_documents(SCORES, VALID, 1), self.documents).tolist() == [[0, 0]]
        alone = torch.tensor([[True, False, False, False]])
        assert diversity(first_documents(SCORES, alone, 3), self.documents)[0, 0] == 0


class TestFairness:
    def test_by_hand(self) -> None:
        top = first_documents(SCORES, VALID, 3)
        found = fairness(top, torch.tensor([[-1.0, 1, 1, 0]]))
        total = 1 + D2 + D3
        expected = [1 - abs(1 - D2 - D3) / total, 1 - abs(D3 - 1 - D2) / total]
        assert found[0].tolist() == pytest.approx(expected)

    def test_the_extremes(self) -> None:
        top = first_documents(SCORES, VALID, 1)
        assert fairness(top, torch.tensor([[-1.0, 1, 1, 0]]))[0].tolist() == pytest.approx([0, 0], abs=1e-6)
        assert fairness(top, torch.tensor([[1.0, 0, 0, 0]]))[0].tolist() == [1, 1]


def test_freshness_by_hand() -> None:
    top = first_documents(SCORES, VALID, 2)
    found = freshness(top, torch.tensor([[1.0, 0.5, 0.0, 0.0]]))
    assert found[0].tolist() == pytest.approx([(1 + D2 / 2) / (1 + D2), (D2 / 2) / (1 + D2)])


POOLS = toy_pools(6, 8)


def objectives(weights: dict[str, float], **given: Any) -> Objectives:
    return Objectives(TrainConfig.model_validate({"objectives": weights, "ndcg_k": 5}), POOLS, **given)


def dates_of(pools: PoolSet, **years: int) -> dict[str, date]:
    return {d: date(years.get(d, 2000), 1, 1) for pool in pools.document_ids for d in pool}


class TestObjectives:
    scores = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(0)).masked_fill(
        ~POOLS.valid.unsqueeze(2), -torch.inf
    )

    def test_the_mean_of_all_does_not_depend_on_blocks(self) -> None:
        dates = dates_of(POOLS) | {d: date(2000 + n, 1, 1) for n, d in enumerate(POOLS.document_ids[1])}
        given = objectives({"relevance": 1.0, "diversity": 0.5, "fairness": 0.25, "freshness": 2.0}, dates=dates)
        batch = POOLS.batch(range(6))
        whole = given.means(batch, [(slice(0, 6), self.scores)])
        parts = given.means(batch, [(part, self.scores[part]) for part in (slice(0, 1), slice(1, 6))])
        for name, value in whole.items():
            torch.testing.assert_close(value, parts[name])
        expected = sum(whole[name] * weight for name, weight in given.weights.items())
        torch.testing.assert_close(given.total(whole), expected)

    def test_relevance_is_the_evaluators(self) -> None:
        weight = torch.randn(8, POOLS.queries.shape[1], generator=torch.Generator().manual_seed(1))
        config, batch = TrainConfig(scoring="dot", ndcg_k=5), POOLS.batch(range(6))
        scores = base_scores(weight, batch, "dot").unsqueeze(2)
        value = objectives({"relevance": 1.0}).means(batch, [(slice(0, 6), scores)])["relevance"]
        assert float(value) == pytest.approx(evaluate_head(weight, POOLS, config).aggregate["ndcg@5"], abs=1e-6)

    def test_the_groups_of_fairness_are_the_halves_of_the_first_stage(self) -> None:
        batch = POOLS.batch([1])  # 8 documents, none padded
        first_stage = -batch.ranks.float().unsqueeze(2)
        found = objectives({"fairness": 1.0}).means(batch, [(slice(0, 1), first_stage)])["fairness"]
        upper = sum(1 / math.log2(1 + rank) for rank in range(1, 5))
        lower = 1 / math.log2(6)
        assert float(found) == pytest.approx(1 - (upper - lower) / (upper + lower))

    def test_the_newest_document_is_fresh(self) -> None:
        last = int(POOLS.valid[5].sum()) - 1
        given = objectives({"freshness": 1.0}, dates=dates_of(POOLS, **{POOLS.document_ids[5][last]: 2020}))
        scores = torch.zeros(1, 8, 1).masked_fill(~POOLS.valid[5:, :, None], -torch.inf)
        scores[0, last] = 1
        value = given.means(POOLS.batch([5]), [(slice(0, 1), scores)])["freshness"]
        assert float(value) == pytest.approx(1 / sum(1 / math.log2(1 + rank) for rank in range(1, 6)))

    def test_freshness_needs_dates(self) -> None:
        with pytest.raises(UsageError, match="freshness"):
            objectives({"freshness": 1.0})
        with pytest.raises(DataError, match="'d000-008' has no date"):
            objectives({"freshness": 1.0}, dates={"x": date(2000, 1, 1)})

    def test_equal_rankings_are_tied_to_the_last_bit(self) -> None:
        pools = toy_pools(1, 8, padded=False, relevant=8)
        scores = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(n)) for n in range(200)], dim=1)
        given = Objectives(TrainConfig(ndcg_k=8), pools)
        found = given.means(pools.batch([0]), [(slice(0, 1), scores.float().unsqueeze(0))])
        assert set(found["relevance"].tolist()) == {1.0}


class TestParetoFront:
    def test_by_hand(self) -> None:
        points = [(0.9, 0.1), (0.5, 0.5), (0.4, 0.5), (0.1, 0.9), (0.5, 0.4), (0.05, 0.05)]
        assert pareto_front(points) == [0, 1, 3]

    def test_equal_points_stay_together(self) -> None:
        assert pareto_front([(1.0, 2.0), (1.0, 2.0), (0.0, 2.0)]) == [0, 1]

    def test_one_objective_leaves_the_best(self) -> None:
        assert pareto_front([(0.3,), (0.7,), (0.5,)]) == [1]
