from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unimoe.core.errors import InputError
from unimoe.models import pipeline
from unimoe.models.pipeline import ahead, gather


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

    def test_a_caller_may_stop_early(self) -> None:
        values = ahead(str, range(100))
        assert next(values) == "0"
        values.close()


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
        monkeypatch.setattr(pipeline, "_HELD", 3)
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
