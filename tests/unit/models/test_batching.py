"""Batches by hand, values from a device, work ahead, and memory that runs out, whatever the library calls the error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_encoders import load, save_tiny_encoder
from support.tiny_rerankers import PAIRS, save_tiny_cross_encoder, save_tiny_t5
from torch import Tensor

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError, InputError
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.models import batching
from unimoe.models.batching import ahead, gather, last_tokens, pad_ids, plan_padded
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, FLOAT = torch.device("cpu"), torch.float32
TEXTS = [f"{document} {query}" for query, document in PAIRS] * 2


@pytest.mark.parametrize(
    ("lengths", "budget", "size", "batches"),
    [
        ([2, 5, 3, 5], 10, None, [[1, 3], [2, 0]]),  # the longest first
        ([4, 2, 2], 8, None, [[0, 1], [2]]),  # padding counts: 4 + 2 + 2 fit, 3 x 4 do not
        ([10, 5, 4, 2], 1000, None, [[0, 1], [2, 3]]),  # below half of the longest a batch begins
        ([100, 2, 2], 4, None, [[0], [1, 2]]),  # a sequence beyond the budget goes alone
        ([9, 9, 9, 9, 9], 1, 2, [[0, 1], [2, 3], [4]]),
    ],
)
def test_a_plan_by_hand(lengths: list[int], budget: int, size: int | None, batches: list[list[int]]) -> None:
    assert plan_padded([[0] * length for length in lengths], budget, size) == batches


def test_ids_are_padded_on_the_right_and_the_last_real_tokens_taken() -> None:
    assert pad_ids([[1, 2, 3], [4]], CPU).tolist() == [[1, 2, 3], [4, 0, 0]]
    states = torch.arange(12.0).reshape(2, 3, 2)
    assert last_tokens(states, [1, 3]).tolist() == [[0, 1], [10, 11]]


def test_the_next_item_is_made_while_this_one_is_used_and_an_error_comes_in_its_turn() -> None:
    made = [threading.Event() for _ in range(4)]

    def make(item: int) -> float:
        made[item].set()
        return 6 / (2 - item)

    values = ahead(make, range(4))
    assert next(values) == 3
    assert made[1].wait(10)
    assert not made[2].is_set()
    assert next(values) == 6
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


@pytest.mark.parametrize("kind", [Tensor, Elsewhere], ids=["here", "elsewhere"])
class TestGathering:
    def test_values_are_in_the_order_of_the_inputs(self, kind: type[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
        batches = [([3, 0], [[3.0, 3], [0, 0]]), ([2], [[2.0, 2]]), ([1], [[1.0, 1]])]
        for held, copies in ((100, 1), (5, 2)):  # what a device holds is fetched before it fills the memory
            monkeypatch.setattr(batching, "_HELD", held)
            Elsewhere.copies, done = 0, list[int]()
            values = ((batch, torch.tensor(rows).as_subclass(kind)) for batch, rows in batches)
            assert gather((4, 2), values, "not finite", done.append).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
            assert done == [2, 1, 1]
            assert Elsewhere.copies == (copies if kind is Elsewhere else 0)
        assert gather((0, 2), iter(()), "not finite").shape == (0, 2)

    @pytest.mark.parametrize(("spoils", "named"), [(None, 0), (lambda index: index == 3, 3), (lambda index: False, 0)])
    def test_an_input_with_a_value_that_is_not_finite_is_refused(
        self, kind: type[Tensor], spoils: Callable[[int], bool] | None, named: int
    ) -> None:
        batches = [([1], [1.0]), ([3, 0], [torch.nan, torch.inf]), ([2, 4], [torch.inf, 1.0])]
        values = ((batch, torch.tensor(row).as_subclass(kind)) for batch, row in batches)
        with pytest.raises(InputError, match="not finite") as caught:
            gather((5,), values, "not finite", None, spoils)
        assert caught.value.index == named


Scoring = tuple[Callable[[], Sequence[float]], Any]
"""What scores all texts or pairs, and the module of torch whose memory runs out."""


def encoder(folder: Path) -> Scoring:
    model = load(save_tiny_encoder(folder))
    return lambda: model.encode(TEXTS)[:, 0].tolist(), model.model.transformers_model


def mono_t5(folder: Path) -> Scoring:
    model = load_mono_t5(save_tiny_t5(folder), "t5@1", PromptConfig(), 64, CPU, FLOAT)
    return lambda: model.rerank_ids(model.pair_ids(PAIRS * 2)).tolist(), model.model


def cross_encoder(folder: Path) -> Scoring:
    loaded: Any = load_cross_encoder(save_tiny_cross_encoder(folder), CPU, FLOAT, 64)
    model = CrossEncoderReranker(loaded, 32)
    return lambda: model.score(PAIRS * 2), loaded[0].model


CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NO_MEMORY = torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize(
    ("make", "error"), [(encoder, NO_MEMORY), (mono_t5, RuntimeError(CUBLAS)), (cross_encoder, NO_MEMORY)]
)
def test_where_memory_runs_out_batches_shrink_and_stay_small(
    make: Callable[[Path], Scoring], error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, module = make(tmp_path)
    forward, asked, limit = module.forward, list[int](), 10**6

    def scarce(*arguments: Any, **inputs: Any) -> Any:
        asked.append(inputs["input_ids"].numel())
        if asked[-1] > limit:
            raise error
        return forward(*arguments, **inputs)

    monkeypatch.setattr(module, "forward", scarce)
    expected = score()
    whole = max(asked)
    limit = whole // 2
    np.testing.assert_allclose(score(), expected, atol=1e-4)
    asked.clear()
    np.testing.assert_allclose(score(), expected, atol=1e-4)
    assert 0 < max(asked) <= limit
    limit = 1
    with pytest.raises(DataError, match=r"alone does not fit in memory; lower \S*max_length"):
        score()
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        score()
