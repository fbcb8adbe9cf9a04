"""Attention over random trees against full attention of each sequence alone, in float32."""

from __future__ import annotations

from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unimoe.models.token_tree import build_tree
from unimoe.models.tree_attention import PackedTree, attend_in_blocks, pack

WIDTH, SCALING = 8, 0.4
CPU = torch.device("cpu")


@st.composite
def sequences(draw: st.DrawFn) -> list[list[int]]:
    """Sequences that go on where another one is at some place, so that trees are several levels deep."""
    random = Random(draw(st.integers(0, 2**32)))
    found: list[list[int]] = []
    for _ in range(draw(st.integers(1, 14))):
        before = random.choice([[], *found])
        kept = before[: random.randint(0, len(before))]
        found.append(kept + [random.randint(0, 99) for _ in range(random.choice([1, 3, 9, 30, 150]))])
    return found


def states(row: Tensor, heads: int) -> Tensor:
    """``(heads, T, D)``: a token has the same state wherever it is."""
    table = torch.randn(100, heads, WIDTH, generator=torch.Generator().manual_seed(heads))
    return table[row].transpose(0, 1)


def of_token(packed: PackedTree, heads: int, groups: int) -> Tensor:
    row = packed.ids[0]
    return attend_in_blocks(packed.blocks, states(row, heads), states(row, groups), -states(row, groups), SCALING)


@settings(max_examples=60, deadline=None)
@given(given=sequences(), shape=st.sampled_from([(2, 2), (4, 2), (3, 1)]))
def test_the_last_token_attends_as_in_its_sequence_alone(given: list[list[int]], shape: tuple[int, int]) -> None:
    heads, groups = shape
    packed = pack(build_tree(given), CPU, torch.float32)
    found = of_token(packed, heads, groups)
    assert found.shape == (packed.ids.shape[1], heads, WIDTH)
    for ids, last in zip(given, packed.last.tolist(), strict=True):
        row = torch.tensor(ids)
        keys = states(row, groups).repeat_interleave(heads // groups, dim=0)
        expected = torch.nn.functional.scaled_dot_product_attention(states(row[-1:], heads), keys, -keys, scale=SCALING)
        torch.testing.assert_close(found[last], expected[:, 0], rtol=1e-5, atol=1e-5)
