from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.plain_varlen import plain_varlen
from support.tiny_models import ModelKind, tiny_base, tiny_model
from torch import Tensor

from unimoe.models import batched
from unimoe.models.batched import BatchedDecoder, varlen_agrees
from unimoe.models.token_tree import MIN_SHARED, Segment, build_tree
from unimoe.models.tree_attention import pack
from unimoe.models.tree_blocks import Blocks
from unimoe.models.tree_levels import MAX_LEVELS, Level, Levels, build_levels, fused_varlen

CPU = torch.device("cpu")
# A root with two children, the first of which has two of its own; then a root alone, and one with a child.
FOREST = [
    Segment(-1, 0, 10, 0),
    Segment(0, 10, 13, 0),
    Segment(1, 13, 15, 0),
    Segment(1, 15, 16, 0),
    Segment(0, 16, 20, 0),
    Segment(-1, 20, 25, 0),
    Segment(-1, 25, 27, 0),
    Segment(6, 27, 30, 0),
]


def levels_of(segments: list[Segment]) -> Levels:
    levels = build_levels(segments, CPU, plain_varlen)
    assert levels is not None
    return levels


def listed(level: Level) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(level).items()}


class TestBuildLevels:
    def test_each_segment_sees_itself(self) -> None:
        own = levels_of(FOREST).own
        assert own.queries == own.keys == slice(0, 30)
        assert own.query_ends.tolist() == [0, 10, 13, 15, 16, 20, 25, 27, 30]
        assert own.key_ends is own.query_ends  # the kernel of cuDNN asks for the very same tensor
        assert own.most_queries == own.most_keys == 10

    def test_what_is_below_a_segment_sees_it(self) -> None:
        first, second = levels_of(FOREST).above
        assert listed(first) == {
            "queries": [*range(10, 20), 27, 28, 29],
            "keys": [*range(10), 25, 26],
            "query_ends": [0, 10, 13],
            "key_ends": [0, 10, 12],
            "most_queries": 10,
            "most_keys": 10,
        }
        assert listed(second) == {
            "queries": slice(13, 16),  # adjacent: a view, no copy
            "keys": slice(10, 13),
            "query_ends": [0, 3],
            "key_ends": [0, 3],
            "most_queries": 3,
            "most_keys": 3,
        }

    def test_independent_sequences_are_one_call(self) -> None:
        assert levels_of([Segment(-1, 0, 4, 0), Segment(-1, 4, 9, 0)]).above == []

    def test_a_tree_too_deep_and_one_without_tokens_are_computed_in_blocks(self) -> None:
        for depth in (MAX_LEVELS, MAX_LEVELS + 1):
            chain = [[*range(MIN_SHARED * level), 99] for level in range(1, depth)]
            packed = pack(build_tree([*chain, list(range(200))]), CPU, torch.float32, plain_varlen)
            assert isinstance(packed.attend, Levels if depth == MAX_LEVELS else Blocks)
        assert isinstance(pack(build_tree([]), CPU, torch.float32, plain_varlen).attend, Blocks)


class TestVarlenAgrees:
    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    def test_a_kernel_that_keeps_the_contract(self, kind: ModelKind) -> None:
        assert varlen_agrees(tiny_base(kind).model, plain_varlen)

    def test_one_whose_sums_have_another_base(self) -> None:
        def in_bits(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
            output, sums = plain_varlen(*arguments, **options)
            return output, sums / np.log(2)

        assert not varlen_agrees(tiny_base().model, in_bits)

    def test_none_for_this_device_or_in_this_torch(self) -> None:
        assert not varlen_agrees(tiny_base().model, fused_varlen)  # a CPU has none

        def missing(*_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            raise ImportError("no module named varlen")

        assert not varlen_agrees(tiny_base().model, missing)


def test_the_kernel_of_torch_is_called_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import varlen

    asked: dict[str, Any] = {}

    def kernel(query: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        asked.update(options)
        return query, query

    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    query, key, ends = torch.zeros(6, 4, 8), torch.zeros(6, 2, 8), torch.tensor([0, 6], dtype=torch.int32)
    fused_varlen(query, key, key, ends, ends, 6, 6, scaling=0.5, causal=True)
    assert asked == {"return_aux": (True,), "scale": 0.5, "window_size": (-1, 0), "enable_gqa": True}
    fused_varlen(query, query, query, ends, ends, 6, 6, scaling=0.5, causal=False)
    assert asked == {"return_aux": (True,), "scale": 0.5, "window_size": (-1, -1), "enable_gqa": False}


@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi3"])
def test_a_model_by_levels_has_the_states_of_each_sequence_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(kind)
    monkeypatch.setattr(batched, "fused_varlen", plain_varlen)
    rng = np.random.default_rng(0)
    beginning, query, other = (rng.integers(3, 200, length).tolist() for length in (40, 12, 9))
    sequences = [beginning + part + rng.integers(3, 200, tail).tolist() for part in (query, other) for tail in (1, 30)]
    with torch.inference_mode():
        ((batch, states),) = BatchedDecoder(model).states([*sequences, [5, 6]], None, None)
        for index, state in zip(batch, states, strict=True):
            alone = model.model(input_ids=torch.tensor([[*sequences, [5, 6]][index]])).last_hidden_state[0, -1]
            torch.testing.assert_close(state, alone, rtol=1e-4, atol=1e-4)
