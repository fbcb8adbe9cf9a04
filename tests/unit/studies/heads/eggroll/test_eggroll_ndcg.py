from __future__ import annotations

from math import log2

import pytest
import torch

from unimoe.studies.heads.eggroll.ndcg import Gain, Metric, PoolMetric, gains_of, ideal_dcg


def test_ideal_dcg_counts_documents_outside_the_pool_and_cuts() -> None:
    assert ideal_dcg([0, 1, 3, 2], 10) == pytest.approx(3 + 2 / log2(3) + 1 / 2)
    assert ideal_dcg([0, 1, 3, 2], 2) == pytest.approx(3 + 2 / log2(3))
    assert ideal_dcg([1, 3], 10, "exp2") == pytest.approx(7 + 1 / log2(3))
    assert ideal_dcg([-1, 0], 10) == 0
    assert ideal_dcg([], 10) == 0


def test_fractional_grades_have_fractional_gains() -> None:
    grades = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])
    assert gains_of(grades, "linear").tolist() == [0, 0, 0.5, 1, 2]
    assert gains_of(grades, "exp2").tolist() == pytest.approx([0, 0, 2**0.5 - 1, 1, 3])


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


def test_of_equal_scores_the_lower_index_wins_and_neighbouring_floats_are_no_tie() -> None:
    for place in range(4):
        grades = torch.zeros(1, 4)
        grades[0, place] = 1
        assert float(PoolMetric(grades, torch.ones(1), 10)(torch.zeros(1, 4, 1))) == pytest.approx(1 / log2(place + 2))
    low = torch.tensor(1.0)
    single = torch.stack([low, torch.nextafter(low, torch.tensor(2.0))]).view(1, 2, 1)
    double = torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64).view(1, 2, 1)
    for scores in (single, double):
        assert float(PoolMetric(torch.tensor([[0.0, 1.0]]), torch.ones(1), 1)(scores)) == 1


def test_padding_never_counts() -> None:
    grades = torch.tensor([[0.0, 0, 1, 0], [0, 0, 1, 0]])
    scores = torch.tensor([[0.5, -torch.inf, 0.4, -torch.inf], [0.5, 9, 0.4, 9]]).unsqueeze(2)
    found = PoolMetric(grades, torch.ones(2), 10)(scores)
    assert found[:, 0].tolist() == pytest.approx([1 / log2(3), 1 / log2(5)])


def test_the_reciprocal_rank_is_the_first_relevant_documents() -> None:
    grades = torch.tensor([[1.0, 0, 3, 0], [0, 0, 0, 2], [0, 0, 0, 0]])
    scores = torch.tensor([3.0, 4, 2, 1]).view(1, 4, 1).expand(3, -1, -1)
    assert PoolMetric(grades, torch.ones(3), 3, metric="mrr")(scores)[:, 0].tolist() == [0.5, 0, 0]


def test_a_query_without_relevant_documents_has_ndcg_zero() -> None:
    grades, ideal = torch.tensor([[0.0, 0], [0, 1]]), torch.tensor([0.0, 1])
    assert PoolMetric(grades, ideal, 10)(torch.zeros(2, 2, 3))[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("metric", ["ndcg", "mrr"])
def test_blocks_change_nothing(metric: Metric) -> None:
    draw = torch.Generator().manual_seed(0)
    grades = torch.randint(0, 3, (6, 5), generator=draw).float()
    ideal = torch.tensor([ideal_dcg(row, 10) for row in grades.tolist()])
    scores = torch.randint(0, 4, (6, 5, 8), generator=draw).float()
    judged = PoolMetric(grades, ideal, 10, metric=metric)
    whole = judged(scores)
    parts = [judged(scores[part], part) for part in (slice(0, 1), slice(1, 6))]
    assert torch.equal(torch.cat(parts), whole)
