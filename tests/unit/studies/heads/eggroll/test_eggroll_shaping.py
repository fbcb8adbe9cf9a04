from __future__ import annotations

from typing import get_args

import pytest
import torch

from unimoe.core.errors import UsageError
from unimoe.studies.heads.eggroll import update
from unimoe.studies.heads.eggroll.update import Shaping, average_ranks, shape


def test_ties_share_the_mean_of_their_ranks() -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0])
    assert average_ranks(values).tolist() == [3, 0, 3, 1, 3]
    assert shape(values, "rank").tolist() == pytest.approx([0.25, -0.5, 0.25, -0.25, 0.25])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_rank_as_machine_code_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randint(0, 9, (4, 33), generator=torch.Generator().manual_seed(0)).to(dtype) / 7
    expected = average_ranks(values)
    monkeypatch.setattr(update, "takes_machine_code", lambda _: False)
    assert torch.equal(average_ranks(values), expected)


def test_ranks_run_from_minus_to_plus_a_half() -> None:
    shaped = shape(torch.randperm(101).float(), "rank")
    assert sorted(shaped.tolist()) == pytest.approx([number / 100 - 0.5 for number in range(101)])


@pytest.mark.parametrize("how", ["rank", "zscore", "combined"])
@pytest.mark.parametrize("count", [1, 2, 7, 256])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 7e8])
def test_equal_fitness_gives_exactly_zero(how: Shaping, count: int, value: float) -> None:
    for dtype in (torch.float32, torch.float64):
        assert shape(torch.full((count,), value, dtype=dtype), how).tolist() == [0] * count


def test_combined_is_rank() -> None:
    values = torch.randint(0, 5, (3, 64)).double() / 7
    assert torch.equal(shape(values, "combined"), average_ranks(shape(values, "zscore")) / 63 - 0.5)
    assert torch.equal(shape(values, "combined"), shape(values, "rank"))


def test_z_scores_have_no_mean_and_unit_deviation() -> None:
    shaped = shape(torch.rand(2, 500, dtype=torch.float64) * 1e-4 + 0.3, "zscore")
    torch.testing.assert_close(shaped.mean(dim=1), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(shaped.std(dim=1, correction=0), torch.ones(2, dtype=torch.float64))


def test_each_row_is_shaped_by_itself() -> None:
    rows = torch.stack([torch.rand(40), 5 + torch.rand(40), torch.ones(40)])
    for how in get_args(Shaping):
        assert torch.equal(shape(rows, how), torch.stack([shape(row, how) for row in rows]))


def test_none_keeps_the_values() -> None:
    values = torch.tensor([0.25, 0.75, 0.5])
    assert shape(values, "none") is values


def test_an_unknown_shaping_is_named() -> None:
    with pytest.raises(UsageError, match="shaping 'ranks': unknown; use rank, zscore"):
        shape(torch.ones(2), "ranks")  # type: ignore[arg-type]
