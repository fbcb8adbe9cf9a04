from __future__ import annotations

from math import log2

import pytest
import torch

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.heads.eggroll import ndcg
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


@pytest.mark.parametrize("most_counted", [64, 0])
class TestBothWays:
    @pytest.fixture(autouse=True)
    def _way(self, most_counted: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ndcg, "MOST_COUNTED_ON_CPU", most_counted)

    def test_of_equal_scores_the_lower_index_wins(self) -> None:
        scores = torch.zeros(1, 4, 1)
        for place in range(4):
            grades = torch.zeros(1, 4)
            grades[0, place] = 1
            assert float(PoolMetric(grades, torch.ones(1), 10)(scores)) == pytest.approx(1 / log2(place + 2))

    def test_neighbouring_floats_are_no_tie(self) -> None:
        low = torch.tensor(1.0)
        scores = torch.stack([low, torch.nextafter(low, torch.tensor(2.0))]).view(1, 2, 1)
        assert float(PoolMetric(torch.tensor([[0.0, 1.0]]), torch.ones(1), 1)(scores)) == 1

    def test_padding_never_counts_whatever_its_score(self) -> None:
        valid = torch.tensor([[True, False, True, False], [True, True, True, True]])
        grades = torch.tensor([[0.0, 0, 1, 0], [0, 0, 1, 0]])
        scores = torch.tensor([[0.5, 9, 0.4, 9], [0.5, 9, 0.4, 9]]).unsqueeze(2)
        found = PoolMetric(grades, torch.ones(2), 10, valid=valid)(scores)
        assert found[:, 0].tolist() == pytest.approx([1 / log2(3), 1 / log2(5)])
        found = PoolMetric(grades, torch.ones(2), 10, valid=valid)(scores.masked_fill(~valid.unsqueeze(2), -torch.inf))
        assert found[:, 0].tolist() == pytest.approx([1 / log2(3), 1 / log2(5)])

    def test_the_reciprocal_rank_is_the_first_relevant_documents(self) -> None:
        grades = torch.tensor([[1.0, 0, 3, 0], [0, 0, 0, 2], [0, 0, 0, 0]])
        scores = torch.tensor([3.0, 4, 2, 1]).view(1, 4, 1).expand(3, -1, -1).contiguous()
        metric = PoolMetric(grades, torch.ones(3), 3, metric="mrr")
        assert metric(scores)[:, 0].tolist() == [0.5, 0, 0]

    def test_a_query_without_relevant_documents_has_ndcg_zero(self) -> None:
        grades, ideal = torch.tensor([[0.0, 0], [0, 1]]), torch.tensor([0.0, 1])
        assert PoolMetric(grades, ideal, 10)(torch.zeros(2, 2, 3))[0].tolist() == [0, 0, 0]

    def test_pools_smaller_than_the_cut_off_and_blocks(self) -> None:
        draw = torch.Generator().manual_seed(0)
        grades = torch.randint(0, 3, (6, 5), generator=draw).float()
        ideal = torch.tensor([ideal_dcg(row, 10) for row in grades.tolist()])
        scores = torch.randint(0, 4, (6, 5, 8), generator=draw).float()
        metric = PoolMetric(grades, ideal, 10)
        parts = [(slice(0, 1), scores[:1]), (slice(1, 6), scores[1:])]
        assert torch.equal(metric.over(parts), metric(scores))

    @pytest.mark.parametrize("metric", ["ndcg", "mrr"])
    def test_float64_scores_are_compared_as_such(self, metric: Metric) -> None:
        scores = torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64).view(1, 2, 1)
        assert float(PoolMetric(torch.tensor([[0.0, 1.0]]), torch.ones(1), 1, metric=metric)(scores)) == 1


@pytest.mark.parametrize("metric", ["ndcg", "mrr"])
@pytest.mark.parametrize("compared_bytes", [1, 2**28])
def test_tensors_count_as_machine_code_does(
    metric: Metric, compared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(1)
    grades = torch.randint(0, 2, (4, 9), generator=draw).float()
    scores = torch.randint(0, 4, (4, 9, 16), generator=draw).float()
    judged = PoolMetric(grades, torch.ones(4), 5, metric=metric)
    expected = judged(scores)
    monkeypatch.setattr(ndcg, "takes_machine_code", lambda _: False)
    monkeypatch.setattr(ndcg, "_COMPARED_BYTES", compared_bytes)
    assert torch.equal(judged(scores), expected)


def test_wrong_judgments_are_named() -> None:
    grades, ideal = torch.tensor([[0.0, 1.0]]), torch.ones(1)
    with pytest.raises(DataError, match="a padded document has a grade"):
        PoolMetric(grades, ideal, 10, valid=torch.tensor([[True, False]]))
    with pytest.raises(DataError, match="ideal DCGs"):
        PoolMetric(grades, torch.ones(2), 10)
    with pytest.raises(DataError, match="mask of shape"):
        PoolMetric(grades, ideal, 10, valid=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(UsageError, match="cut off at 0"):
        PoolMetric(grades, ideal, 0)
    with pytest.raises(UsageError, match="metric 'map'"):
        PoolMetric(grades, ideal, 10, metric="map")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="gain 'square'"):
        ideal_dcg([1], 10, "square")  # type: ignore[arg-type]
