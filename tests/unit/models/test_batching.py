from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unimoe.core.errors import InputError
from unimoe.models import batching
from unimoe.models.batching import ahead, default_token_budget, gather, last_tokens, pad_ids, plan_batches


@pytest.mark.parametrize(
    ("lengths", "budget", "size", "batches"),
    [
        ([2, 5, 3, 5], 10, None, [[1, 3], [2, 0]]),  # the longest first
        ([4, 2, 2], 8, None, [[0, 1], [2]]),  # padding counts: 4 + 2 + 2 fit, 3 x 4 do not
        ([10, 5, 4, 2], 1000, None, [[0, 1], [2, 3]]),  # below half of the longest a batch begins
        ([100, 2, 2], 4, None, [[0], [1, 2]]),  # a sequence beyond the budget goes alone
        ([9, 9, 9, 9, 9], 1, 2, [[0, 1], [2, 3], [4]]),
        ([2] * 5, 6, None, [[0, 1, 2], [3, 4]]),  # ties keep their order
        ([], 8, None, []),
    ],
)
def test_a_plan_by_hand(lengths: list[int], budget: int, size: int | None, batches: list[list[int]]) -> None:
    assert plan_batches(lengths, budget, size) == batches


def test_a_gpu_gets_larger_batches() -> None:
    assert default_token_budget(torch.device("cuda")) > default_token_budget(torch.device("cpu")) >= 512


def test_ids_are_padded_on_the_right() -> None:
    assert pad_ids([[1, 2, 3], [4]], torch.device("cpu")).tolist() == [[1, 2, 3], [4, 0, 0]]


def test_the_last_token_of_each_row_is_taken() -> None:
    states = torch.arange(12.0).reshape(2, 3, 2)
    assert last_tokens(states, [1, 3]).tolist() == [[0, 1], [10, 11]]


class TestAhead:
    def test_the_next_item_is_made_while_this_one_is_used_and_no_more(self) -> None:
        made = [threading.Event() for _ in range(4)]

        def make(item: int) -> int:
            made[item].set()
            return item * 10

        for place, value in enumerate(ahead(make, range(4))):
            assert value == place * 10
            if place < 3:
                assert made[place + 1].wait(10)
            assert not any(event.is_set() for event in made[place + 2 :])

    def test_an_error_comes_when_its_turn_has_come(self) -> None:
        values = ahead(lambda item: 6 // item, [3, 2, 0, 1])
        assert [next(values), next(values)] == [2, 3]
        with pytest.raises(ZeroDivisionError):
            next(values)


class Elsewhere(Tensor):
    """A tensor that says it is on another device and counts its copies."""

    copies: int = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("meta")

    def cpu(self) -> Tensor:  # type: ignore[override]
        Elsewhere.copies += 1
        return self.as_subclass(Tensor)


@pytest.fixture(params=[False, True], ids=["here", "elsewhere"])
def on_gpu(request: pytest.FixtureRequest) -> bool:
    Elsewhere.copies = 0
    return bool(request.param)


def of(values: object, on_gpu: bool) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float32)
    return tensor.as_subclass(Elsewhere) if on_gpu else tensor


class TestGathering:
    def test_values_are_in_the_order_of_the_inputs(self, on_gpu: bool) -> None:
        done: list[int] = []
        batches = [([3, 0], [[3.0, 3], [0, 0]]), ([2], [[2.0, 2]]), ([1], [[1.0, 1]])]
        found = gather(4, ((batch, of(values, on_gpu)) for batch, values in batches), "not finite", done.append)
        assert found is not None
        assert found.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
        assert done == [2, 1, 1]
        assert Elsewhere.copies == on_gpu  # one for all batches

    def test_what_a_gpu_holds_is_fetched_before_it_fills_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batching, "_HELD", 3)
        Elsewhere.copies = 0
        found = gather(6, (([first, first + 1], of([first, first + 1.0], True)) for first in (0, 2, 4)), "not finite")
        assert found is not None
        assert found.tolist() == [0, 1, 2, 3, 4, 5]
        assert Elsewhere.copies == 2

    def test_the_first_input_with_a_value_that_is_not_finite_is_refused(self, on_gpu: bool) -> None:
        batches = [([1], [1.0]), ([3, 0], [torch.nan, torch.inf]), ([2, 4], [torch.inf, 1.0])]

        def run(spoils: Callable[[int], bool] | None) -> int:
            with pytest.raises(InputError, match="not finite") as caught:
                gather(5, ((batch, of(values, on_gpu)) for batch, values in batches), "not finite", None, spoils)
            return caught.value.index

        assert run(None) == 0
        assert run(lambda index: index == 3) == 3  # it alone: what shares its batch is spoilt by it
        assert run(lambda index: False) == 0

    def test_no_inputs_no_values(self) -> None:
        assert gather(0, iter(()), "not finite") is None
