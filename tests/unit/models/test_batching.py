"""Batches and memory that runs out; frozen layers and their states."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, tiny_base
from support.tiny_rerankers import SCORERS, Scorer
from torch import Tensor

from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models import batching, frozen_layers
from unimoe.models.batched import BatchedDecoder
from unimoe.models.batching import ahead, gather
from unimoe.models.frozen_layers import FrozenLayers, FrozenStates, split_decoder
from unimoe.models.tree_attention import supports_trees

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_values_are_fetched_together_in_the_order_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [([3, 0], [[3.0, 3], [0, 0]]), ([2], [[2.0, 2]]), ([1], [[1.0, 1]])]
    for held, copies in ((100, 1), (5, 2)):  # what a device holds is fetched before it fills the memory
        monkeypatch.setattr(batching, "_HELD", held)
        Elsewhere.copies, done = 0, list[int]()
        values = ((batch, torch.tensor(rows).as_subclass(Elsewhere)) for batch, rows in batches)
        assert gather((4, 2), values, "not finite", done.append).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
        assert (done, Elsewhere.copies) == ([2, 1, 1], copies)
    assert gather((0, 2), iter(()), "not finite").shape == (0, 2)


@pytest.mark.parametrize(("spoils", "named"), [(None, 0), (lambda index: index == 3, 3), (lambda index: False, 0)])
def test_an_input_with_a_value_that_is_not_finite_is_refused(spoils: Callable[[int], bool] | None, named: int) -> None:
    batches = [([1], [1.0]), ([3, 0], [torch.nan, torch.inf]), ([2, 4], [torch.inf, 1.0])]
    values = ((batch, torch.tensor(row).as_subclass(Elsewhere)) for batch, row in batches)
    with pytest.raises(InputError, match="not finite") as caught:
        gather((5,), values, "not finite", None, spoils)
    assert caught.value.index == named


PROMPTS = [[*range(5, 25), last] for last in range(30, 60)]


def decoder(trees: bool, halves: bool) -> Scorer:
    """A causal language model, packed or padded, whole or with frozen lower layers."""

    def make(_: Path) -> Any:
        model = tiny_base().model
        model._supports_attention_backend = trees  # False in models whose layers attend in a way of their own
        assert supports_trees(model) == trees
        lower, upper = split_decoder(model.model, 2)
        layers = FrozenLayers(lower)
        found = BatchedDecoder(model, layers, upper) if halves else BatchedDecoder(model)

        @torch.inference_mode()
        def score() -> Any:
            layers._kept.clear()  # else the second time needs no memory
            scores = torch.empty(len(PROMPTS))
            for batch, states in found.states(PROMPTS, None, None):
                scores[batch] = states[:, 0]
            return scores.tolist()

        return score, lower if halves else found.top

    return make


CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NO_MEMORY = torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (SCORERS["encoder"], NO_MEMORY), (SCORERS["monot5"], RuntimeError(CUBLAS)),
        (SCORERS["cross-encoder"], NO_MEMORY),
        *((decoder(*layout), NO_MEMORY) for layout in ((True, False), (True, True), (False, False))),
    ],
    ids=["encoder", "monot5", "cross-encoder", "packed", "frozen layers", "padded"],
)  # fmt: skip
def test_where_memory_runs_out_batches_shrink_and_stay_small(
    make: Scorer,
    error: RuntimeError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    score, module = make(tmp_path)
    forward, asked, limit, released = module.forward, list[int](), 10**6, list[None]()

    def scarce(*arguments: Any, **inputs: Any) -> Any:
        asked.append(inputs["input_ids"].numel())
        if asked[-1] > limit:
            raise error
        return forward(*arguments, **inputs)

    monkeypatch.setattr(module, "forward", scarce)
    # Freed memory is given back, which takes long beside a test.
    monkeypatch.setattr(batching, "release_memory", lambda: released.append(None))
    expected = score()
    whole = max(asked)
    limit = whole // 2
    np.testing.assert_allclose(score(), expected, atol=1e-4)
    assert len(released) == caplog.text.count("out of memory: batches of at most ") > 0
    asked.clear()
    np.testing.assert_allclose(score(), expected, atol=1e-4)
    assert 0 < max(asked) <= limit
    limit = 1
    with pytest.raises(DataError, match=r"alone does not fit in memory; lower \S*max_length"):
        score()
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        score()


SEQUENCES = [[*range(5, 15), 11], [12], [13, 14, 15], [300, 301], [*range(5, 15), 12], [13, 14, 15]]
BYTES_PER_TOKEN = HIDDEN * 4


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few tokens in a pass that the sequences above take several."""
    monkeypatch.setattr(frozen_layers, "default_token_budget", lambda _: 14)


def lower_half() -> Any:
    return split_decoder(tiny_base().model.model, 2)[0]


def kept(layers: FrozenLayers, sequences: list[list[int]]) -> FrozenStates:
    states = layers.states(sequences)
    assert states is not None
    return states


def test_a_model_that_cannot_be_split_is_refused() -> None:
    for first_layer in (-1, 0, 4):
        with pytest.raises(UsageError, match=rf"lora\.first_layer {first_layer}: this model has layers 0 to 3"):
            split_decoder(tiny_base().model.model, first_layer)
    mixed = tiny_base("qwen3").model.model
    mixed.config.layer_types = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(UsageError, match=r"lora\.first_layer: this model mixes kinds of layers"):
        split_decoder(mixed, 2)


@pytest.mark.usefixtures("small_batches")
def test_states_are_what_the_lower_layers_give_and_are_computed_once() -> None:
    layers = FrozenLayers(lower := lower_half())
    states = kept(layers, SEQUENCES)
    for ids, state in zip(SEQUENCES, states, strict=True):
        with torch.inference_mode():
            alone = lower(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(state.tokens(), alone, rtol=1e-5, atol=1e-5)
    assert layers.states([list(ids) for ids in SEQUENCES]) is states
    others = ([[1, 2], [3]], [[1], [2, 3]])  # of the same ids in a row
    assert [[len(state.tokens()) for state in kept(layers, ids)] for ids in others] == [[2, 1], [1, 2]]


def test_states_are_kept_within_the_memory_and_those_used_longest_ago_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen_layers, "MEMORY_LIMIT", 4 * BYTES_PER_TOKEN)
    monkeypatch.setattr(frozen_layers, "SETS_LIMIT", 6 * BYTES_PER_TOKEN)
    layers = FrozenLayers(lower_half())
    assert layers.states([[1, 2], [3, 4, 5]]) is None
    a, b, c = [[1, 2]], [[3, 4]], [[5, 6, 7]]
    first_a, first_b = layers.states(a), layers.states(b)
    assert layers.states(a) is first_a is not None
    layers.states(c)  # takes the place of b
    assert layers.states(a) is first_a
    assert layers.states(b) is not first_b
