"""The metric of every perturbation, by hand; the golden and property tests have pytrec_eval's."""

from __future__ import annotations

from math import log2

import pytest
import torch

from unimoe.studies.heads.eggroll.ndcg import Gain, PoolMetric, gains_of, ideal_dcg


def test_ideal_dcg_counts_documents_outside_the_pool_and_cuts() -> None:
    assert ideal_dcg([0, 1, 3, 2], 10) == pytest.approx(3 + 2 / log2(3) + 1 / 2)
    assert ideal_dcg([0, 1, 3, 2], 2) == pytest.approx(3 + 2 / log2(3))
    assert ideal_dcg([1, 3], 10, "exp2") == pytest.approx(7 + 1 / log2(3))
    assert ideal_dcg([-1, 0], 10) == ideal_dcg([], 10) == 0
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


def test_neighbouring_floats_are_no_tie() -> None:
    low = torch.tensor(1.0)
    single = torch.stack([low, torch.nextafter(low, torch.tensor(2.0))]).view(1, 2, 1)
    double = torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64).view(1, 2, 1)
    for scores in (single, double):
        assert float(PoolMetric(torch.tensor([[0.0, 1.0]]), torch.ones(1), 1)(scores)) == 1
