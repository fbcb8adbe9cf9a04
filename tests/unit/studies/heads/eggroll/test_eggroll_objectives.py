from __future__ import annotations

import math
from datetime import date, timedelta
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
from unimoe.studies.heads.model import evaluate_head

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
        found = fairness(top, torch.tensor([[0, 1, 1, 0]]), VALID)
        total = 1 + D2 + D3
        expected = [1 - abs(1 - D2 - D3) / total, 1 - abs(D3 - 1 - D2) / total]
        assert found[0].tolist() == pytest.approx(expected)

    def test_the_extremes(self) -> None:
        top = first_documents(SCORES, VALID, 1)
        assert fairness(top, torch.tensor([[0, 1, 1, 0]]), VALID)[0].tolist() == pytest.approx([0, 0], abs=1e-6)
        assert fairness(top, torch.zeros(1, 4, dtype=torch.long), VALID)[0].tolist() == [1, 1]

    def test_three_groups(self) -> None:
        top = first_documents(SCORES, VALID, 2)
        found = fairness(top, torch.tensor([[0, 1, 2, 2]]), VALID)
        shares = [1 / (1 + D2), D2 / (1 + D2), 0.0]
        assert float(found[0, 0]) == pytest.approx(1 - sum(abs(share - 1 / 3) for share in shares) / (4 / 3))

    def test_a_group_of_other_pools_is_owed_nothing(self) -> None:
        top = first_documents(SCORES, VALID, 2)
        two, with_gap = (fairness(top, torch.tensor([groups]), VALID) for groups in ([0, 1, 1, 0], [0, 7, 7, 3]))
        torch.testing.assert_close(two, with_gap)


def test_freshness_by_hand() -> None:
    top = first_documents(SCORES, VALID, 2)
    found = freshness(top, torch.tensor([[1.0, 0.5, 0.0, 0.0]]))
    assert found[0].tolist() == pytest.approx([(1 + D2 / 2) / (1 + D2), (D2 / 2) / (1 + D2)])


POOLS = toy_pools(6, 8)


def objectives(weights: dict[str, float], **given: Any) -> Objectives:
    return Objectives(TrainConfig.model_validate({"objectives": weights, "ndcg_k": 5}), POOLS, **given)


class TestObjectives:
    scores = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(0)).masked_fill(
        ~POOLS.valid.unsqueeze(2), -torch.inf
    )

    def test_the_sum_of_all_does_not_depend_on_blocks(self) -> None:
        dates = {
            d: date(2020, 1, 1) + timedelta(days=n) for n, d in enumerate(d for p in POOLS.document_ids for d in p)
        }
        given = objectives({"relevance": 1.0, "diversity": 0.5, "fairness": 0.25, "freshness": 2.0}, dates=dates)
        of_batch = given.of(POOLS.batch(range(6)))
        whole = of_batch.values(self.scores, slice(0, 6))
        parts = [of_batch.values(self.scores[part], part) for part in (slice(0, 1), slice(1, 6))]
        for name, value in whole.items():
            torch.testing.assert_close(value, parts[0][name] + parts[1][name])
        expected = sum(whole[name] * weight for name, weight in given.weights.items())
        torch.testing.assert_close(given.total(whole), expected)

    def test_relevance_is_the_evaluators(self) -> None:
        weight = torch.randn(8, POOLS.queries.shape[1], generator=torch.Generator().manual_seed(1))
        config = TrainConfig(scoring="dot", ndcg_k=5)
        scores = (POOLS.documents[POOLS.rows] @ weight.T @ (weight @ POOLS.queries.T).T.unsqueeze(2)).squeeze(2)
        found = objectives({"relevance": 1.0}).of(POOLS.batch(range(6)))
        value = found.values(scores.masked_fill(~POOLS.valid, -torch.inf).unsqueeze(2), slice(0, 6))["relevance"] / 6
        assert float(value) == pytest.approx(evaluate_head(weight, POOLS, config).aggregate["ndcg@5"], abs=1e-6)

    def test_by_default_the_groups_are_the_halves_of_the_first_stage(self) -> None:
        batch = POOLS.batch([1])  # 8 documents, none padded
        first_stage = -batch.ranks.float().unsqueeze(2)
        found = objectives({"fairness": 1.0}).of(batch).values(first_stage, slice(0, 1))["fairness"]
        upper = sum(1 / math.log2(1 + rank) for rank in range(1, 5))
        lower = 1 / math.log2(6)
        assert float(found) == pytest.approx(1 - (upper - lower) / (upper + lower))

    def test_groups_by_name(self) -> None:
        groups = {d: "a" if d.endswith("1") else "b" for pool in POOLS.document_ids for d in pool}
        given = objectives({"fairness": 1.0}, groups=groups)
        place = POOLS.document_ids[1].index(next(d for d in POOLS.document_ids[1] if d.endswith("1")))
        scores = torch.zeros(1, 8, 1)
        scores[0, place] = 1
        value = given.of(POOLS.batch([1])).values(scores, slice(0, 1))["fairness"]
        rest = sum(1 / math.log2(1 + rank) for rank in range(2, 6))
        assert float(value) == pytest.approx(1 - abs(1 - rest) / (1 + rest))

    def test_the_newest_document_is_fresh(self) -> None:
        ids = [d for pool in POOLS.document_ids for d in pool]
        dates = dict.fromkeys(ids, date(2000, 1, 1)) | {ids[-1]: date(2020, 1, 1)}
        given = objectives({"freshness": 1.0}, dates=dates)
        last = int(POOLS.valid[5].sum()) - 1
        scores = torch.zeros(1, 8, 1)
        scores[0, last] = 1
        value = given.of(POOLS.batch([5])).values(
            scores.masked_fill(~POOLS.valid[5:, :, None], -torch.inf), slice(0, 1)
        )
        assert float(value["freshness"]) == pytest.approx(1 / sum(1 / math.log2(1 + rank) for rank in range(1, 6)))

    def test_freshness_needs_dates(self) -> None:
        with pytest.raises(UsageError, match="freshness"):
            objectives({"freshness": 1.0})
        with pytest.raises(UsageError, match="freshness"):
            objectives({"freshness": 1.0}, dates={})

    def test_a_document_without_group_or_date_is_named(self) -> None:
        with pytest.raises(DataError, match="'d000-008' has no group"):
            objectives({"fairness": 1.0}, groups={"x": "a"})
        with pytest.raises(DataError, match="'d000-008' has no date"):
            objectives({"freshness": 1.0}, dates={"x": date(2000, 1, 1)})

    def test_equal_rankings_are_tied_to_the_last_bit(self) -> None:
        pools = toy_pools(1, 8, padded=False, relevant=8)
        config = TrainConfig(ndcg_k=8)
        scores = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(n)) for n in range(200)], dim=1)
        found = Objectives(config, pools).of(pools.batch([0])).values(scores.float().unsqueeze(0), slice(0, 1))
        assert set(found["relevance"].tolist()) == {1.0}


class TestParetoFront:
    def test_by_hand(self) -> None:
        points = [(0.9, 0.1), (0.5, 0.5), (0.4, 0.5), (0.1, 0.9), (0.5, 0.4), (0.05, 0.05)]
        assert pareto_front(points) == [0, 1, 3]

    def test_equal_points_stay_together(self) -> None:
        assert pareto_front([(1.0, 2.0), (1.0, 2.0), (0.0, 2.0)]) == [0, 1]

    def test_one_objective_leaves_the_best(self) -> None:
        assert pareto_front([(0.3,), (0.7,), (0.5,)]) == [1]

    def test_no_points(self) -> None:
        assert pareto_front([]) == []

    def test_points_must_match_and_be_numbers(self) -> None:
        with pytest.raises(DataError, match="different numbers"):
            pareto_front([(1.0,), (1.0, 2.0)])
        with pytest.raises(DataError, match="point 1"):
            pareto_front([(1.0, 2.0), (math.nan, 2.0)])
