"""Attention over a token tree against its definition: one dense mask over the whole row, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, ModelKind, tiny_base
from torch import Tensor

from unimoe.models import tree_attention as module
from unimoe.models.token_tree import TokenTree, build_tree
from unimoe.models.tree_attention import (
    ROUND_ROWS,
    Block,
    PackedTree,
    UnsupportedAttentionError,
    pack,
    rounds_rows,
    run_tree,
    tree_attention,
)

CPU = torch.device("cpu")
WIDTH, VALUE_WIDTH, SCALING = 16, 24, 0.3


def random_ids(rng: np.random.Generator, *lengths: int) -> list[list[int]]:
    return [rng.integers(3, 300, length).tolist() for length in lengths]


def reranking(seed: int = 0) -> list[list[int]]:
    """One beginning; three queries, one of them longer than a block; documents of all lengths, one of them twice."""
    rng = np.random.default_rng(seed)
    (beginning,) = random_ids(rng, 40)
    documents = random_ids(rng, 1, 2, 5, 30, 127, 128, 129, 200)
    return [beginning + query + document for query in random_ids(rng, 9, 20, 150) for document in [*documents, [7]]]


def chain() -> list[list[int]]:
    """Each begins the next, which has a few tokens more."""
    (ids,) = random_ids(np.random.default_rng(1), 300)
    return [ids[:length] for length in range(10, 300, 12)]


TREES: dict[str, list[list[int]]] = {
    "one token": [[5]],
    "one long sequence": random_ids(np.random.default_rng(2), 300),
    "single tokens": [[token] for token in range(3, 60)],
    "equal sequences": [list(range(3, 50))] * 20,
    "a chain": chain(),
    "questions about documents": reranking(),
    "a forest": [*reranking(3), *chain(), *random_ids(np.random.default_rng(4), 1, 3, 140, 300)],
}


@pytest.fixture(autouse=True, params=[False, True], ids=["as it is", "filled"])
def filled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rows are filled up to few sizes, as a CPU does below float32."""
    monkeypatch.setattr(module, "rounds_rows", lambda device, dtype: request.param)
    return bool(request.param)


def test_rows_are_filled_for_onednn_alone() -> None:
    assert rounds_rows(CPU, torch.bfloat16)
    assert not rounds_rows(CPU, torch.float32)
    assert not rounds_rows(torch.device("cuda"), torch.bfloat16)


@pytest.fixture(params=["cpu", "gpu", "one row a block"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a CPU does it, how a GPU does it (on this CPU), and with blocks of one row."""
    if request.param == "gpu":
        monkeypatch.setattr(module, "_CPU_SCORES", module._GPU_SCORES)
        monkeypatch.setattr(Block, "attend_on_cpu", Block.attend)
    if request.param == "one row a block":
        monkeypatch.setattr(module, "_CPU_SCORES", 1)
    return str(request.param)


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest) -> TokenTree:
    return build_tree(TREES[request.param])


def seen(tree: TokenTree) -> Tensor:
    """``(T, T)``: a token sees itself and what stands before it in a sequence that it belongs to."""
    mask = torch.zeros(len(tree.ids), len(tree.ids), dtype=torch.bool)
    for segment in tree.segments:
        mask[segment.begin : segment.end, segment.begin : segment.end] = True
        ancestor = segment.parent
        while ancestor >= 0:
            begin, end = tree.segments[ancestor].begin, tree.segments[ancestor].end
            mask[segment.begin : segment.end, begin:end] = True
            ancestor = tree.segments[ancestor].parent
    return mask.tril()


def random_states(tree: TokenTree, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; the values wider than the others."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(heads, WIDTH), (groups, WIDTH), (groups, VALUE_WIDTH)]
    query, key, value = (torch.randn(1, n, len(tree.ids), width, generator=generator) for n, width in sizes)
    return query, key, value


def blocks_of(packed: PackedTree) -> list[Block]:
    return packed.blocks


def attend(tree: PackedTree, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return tree_attention(torch.nn.Identity(), query, key, value, None, scaling=SCALING, tree=tree, **options)[0]


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 1)])
def test_it_is_attention_under_the_mask_of_the_tree(tree: TokenTree, where: str, heads: int, groups: int) -> None:
    packed = pack(tree, CPU, torch.float32)
    query, key, value = random_states(packed.tree, heads, groups)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(heads // groups, dim=1),
        value.repeat_interleave(heads // groups, dim=1),
        attn_mask=seen(packed.tree),
        scale=SCALING,
    )
    found = attend(packed, query, key, value)
    assert found.shape == (1, len(packed.tree.ids), heads, VALUE_WIDTH)
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_in_bfloat16_it_is_near(tree: TokenTree, where: str, filled: bool) -> None:
    packed = pack(tree, CPU, torch.bfloat16)
    assert len(packed.tree.ids) % ROUND_ROWS == 0 if filled else packed.tree == tree
    states = random_states(packed.tree, 4, 2)
    exact = attend(pack(tree, CPU, torch.float32), *states)
    query, key, value = (state.bfloat16() for state in states)
    found = attend(packed, query, key, value)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)


class TestBlocks:
    def test_every_token_asks_once(self, tree: TokenTree, where: str) -> None:
        packed = pack(tree, CPU, torch.float32)
        queries, tokens = torch.cat([block.queries.flatten() for block in blocks_of(packed)]), len(packed.tree.ids)
        assert sorted(queries[queries < tokens].tolist()) == list(range(tokens))

    def test_only_what_is_seen_is_unmasked(self, tree: TokenTree, where: str) -> None:
        packed = pack(tree, CPU, torch.float32)
        tokens = len(packed.tree.ids)
        found = torch.zeros(tokens, tokens, dtype=torch.int)
        for block in blocks_of(packed):
            assert set(block.mask.flatten().tolist()) <= {0.0, -torch.inf}
            real = (block.mask == 0) & (block.queries < tokens).unsqueeze(-1)
            row, query, key = real.nonzero().unbind(1)
            found.index_put_((block.queries[row, query], block.keys[row, key]), torch.tensor(1).int(), accumulate=True)
        assert torch.equal(found, seen(packed.tree).int())

    def test_a_gpu_pads_rows_to_a_block_and_a_cpu_keeps_blocks_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = build_tree(TREES["a forest"])
        small = blocks_of(pack(tree, CPU, torch.float32))
        assert all(len(block.queries) == 1 or block.mask.numel() <= module._CPU_SCORES for block in small)
        monkeypatch.setattr(module, "_CPU_SCORES", module._GPU_SCORES)
        packed = pack(tree, CPU, torch.float32)
        (large,) = blocks_of(packed)
        assert len(large.queries) > 20
        padded = large.queries == len(packed.tree.ids)
        assert padded.any()
        assert not padded.all()
        assert (large.mask == -torch.inf).any()

    def test_padded_queries_give_no_nan(self) -> None:
        # A token alone, and the first 128 of a long sequence: one block of two rows, the first of them nearly empty.
        packed = pack(build_tree([[5], *random_ids(np.random.default_rng(0), 383)]), CPU, torch.float32)
        tokens = len(packed.tree.ids)
        block = next(block for block in blocks_of(packed) if len(block.queries) == 2)
        assert (block.queries == tokens).sum() == 127
        query, key, value = random_states(packed.tree, 4, 2)
        queries = query[0].view(2, 2, -1, WIDTH)[:, :, block.queries.clamp(max=tokens - 1)]
        for compute in (block.attend_on_cpu, block.attend):
            found = compute(queries, key[0][:, block.keys], value[0][:, block.keys], SCALING)
            assert found.shape == (2, 2, *block.queries.shape, VALUE_WIDTH)
            assert found.isfinite().all()


class TestPack:
    def test_a_tree_as_tensors(self, filled: bool) -> None:
        tree = build_tree([list(range(10, 22)), list(range(10, 20))])
        packed = pack(tree, CPU, torch.bfloat16)
        filling = ROUND_ROWS - len(tree.ids) if filled else 0
        assert packed.ids.tolist() == [[*tree.ids, *[0] * filling]]
        assert packed.positions.tolist() == [[*tree.positions, *range(filling)]]
        assert packed.last.tolist() == tree.last
        assert packed.last.dtype == packed.ids.dtype == torch.long
        assert {block.mask.dtype for block in blocks_of(packed)} == {torch.bfloat16}

    def test_no_sequences(self) -> None:
        packed = pack(build_tree([]), CPU, torch.float32)
        assert packed.ids.shape == (1, 0)
        assert packed.last.shape == (0,)
        assert blocks_of(packed) == []

    def test_the_key_tells_trees_apart(self) -> None:
        beginning = list(range(10, 20))
        trees = [
            [[*beginning, 1], [*beginning, 2]],
            [[*beginning, 1], [*beginning, 3]],
            [[*beginning, 1, 2]],
            [[*beginning, 1], [*beginning[:-1], 2]],
        ]
        keys = [pack(build_tree(sequences), CPU, torch.float32).key for sequences in [*trees, *trees]]
        assert keys[:4] == keys[4:]
        assert len(set(keys)) == 4


class TestRunTree:
    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    def test_each_sequence_ends_in_the_state_it_has_alone(self, tree: TokenTree, kind: ModelKind) -> None:
        decoder = tiny_base(kind, layers=2).model.model
        packed = pack(tree, CPU, torch.float32)
        with torch.inference_mode():
            found = run_tree(decoder, packed)
            assert found.shape == (1, len(packed.tree.ids), HIDDEN)
            torch.testing.assert_close(run_tree(decoder, packed, decoder.embed_tokens(packed.ids)), found)
            for last in sorted(tree.last)[:: 1 + len(tree.last) // 8]:
                sequence = packed.ids[:, seen(packed.tree)[last]]
                alone = decoder(input_ids=sequence, use_cache=False).last_hidden_state[0, -1]
                torch.testing.assert_close(found[0, last], alone, rtol=1e-4, atol=1e-4)

    def test_the_decoder_attends_as_before_afterwards_even_after_a_failure(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decoder = tiny_base().model.model
        packed = pack(build_tree([[5, 6]]), CPU, torch.float32)
        before = decoder.config._attn_implementation
        run_tree(decoder, packed)
        assert decoder.config._attn_implementation == before

        def fail(**_: Any) -> None:
            raise torch.OutOfMemoryError("no more")

        monkeypatch.setattr(decoder, "forward", fail)
        with pytest.raises(torch.OutOfMemoryError):
            run_tree(decoder, packed)
        assert decoder.config._attn_implementation == before


class TestUnsupported:
    @pytest.mark.parametrize(
        "options",
        [
            {"tree": None},
            {"attention_mask": torch.zeros(1, 1, 2, 2)},
            {"s_aux": torch.zeros(4)},
            {"sliding_window": 1},
            {"softcap": 50.0},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_a_layer_that_asks_for_more_is_refused_rather_than_misread(self, options: dict[str, Any]) -> None:
        tree = build_tree([[5, 6]])
        packed = pack(tree, CPU, torch.float32)
        arguments = {"attention_mask": None, "tree": packed, "scaling": SCALING, **options}
        with pytest.raises(UnsupportedAttentionError):
            tree_attention(torch.nn.Identity(), *random_states(packed.tree, 4, 2), **arguments)

    def test_what_changes_nothing_is_let_pass(self) -> None:
        tree = build_tree([[5, 6]])
        packed = pack(tree, CPU, torch.float32)
        states = random_states(packed.tree, 4, 2)
        options: dict[str, Any] = {"dropout": 0.0, "is_causal": True, "position_ids": packed.positions}
        found = attend(packed, *states, sliding_window=None, softcap=None, output_attentions=False, **options)
        assert torch.equal(found, attend(packed, *states))
