"""Attention over a token tree against its definition: one dense mask over the whole row, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, ModelKind, tiny_base, tiny_model
from torch import Tensor

from unimoe.models import tree_attention as module
from unimoe.models.token_tree import TokenTree, build_tree
from unimoe.models.tree_attention import (
    ROUND_ROWS,
    Block,
    PackedTree,
    UnsupportedAttentionError,
    last_tokens_only,
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


SEQUENCES = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7, 8, 9, 10, 11, 12, 20], [30, 31]]


def tree_of(decoder: Any) -> Any:
    weight = decoder.embed_tokens.weight
    return pack(build_tree(SEQUENCES), weight.device, weight.dtype)


class TestLastLayer:
    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    def test_last_tokens_have_the_states_that_all_layers_give(self, kind: ModelKind) -> None:
        decoder = tiny_base(kind).model.model
        quick, drops = last_tokens_only(decoder)
        assert drops
        tree = tree_of(decoder)
        with torch.no_grad():
            found, expected = run_tree(quick, tree), run_tree(decoder, tree)[:, tree.last]
        assert found.shape == (1, len(SEQUENCES), expected.shape[-1])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    def test_gradients_are_those_of_all_layers(self, kind: ModelKind) -> None:
        decoder = tiny_base(kind).model.model.double().requires_grad_()
        quick, drops = last_tokens_only(decoder)
        assert drops
        tree = pack(build_tree([*SEQUENCES, SEQUENCES[1]]), torch.device("cpu"), torch.float64)  # one twice
        weights = dict(decoder.named_parameters())
        direction = torch.randn(len(SEQUENCES) + 1, decoder.config.hidden_size, dtype=torch.float64)
        expected = torch.autograd.grad(
            (run_tree(decoder, tree)[0, tree.last] * direction).sum(), list(weights.values())
        )
        found = torch.autograd.grad((run_tree(quick, tree)[0] * direction).sum(), list(weights.values()))
        for gradient, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, wanted)

    def test_the_last_layer_computes_queries_and_feeds_forward_of_last_tokens_only(self) -> None:
        decoder = tiny_base().model.model
        rows: dict[str, int] = {}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            projection = getattr(decoder.layers[-1].self_attn, name)
            projection.register_forward_hook(lambda _, inputs, found, name=name: rows.update({name: found.shape[1]}))
        decoder.layers[-1].mlp.register_forward_hook(lambda _, inputs, found: rows.update(mlp=found.shape[1]))
        quick, _ = last_tokens_only(decoder)
        tree = tree_of(decoder)
        run_tree(quick, tree)
        tokens, few = tree.ids.shape[1], len(SEQUENCES)
        assert rows == {"q_proj": few, "k_proj": tokens, "v_proj": tokens, "o_proj": few, "mlp": few}

    @pytest.mark.parametrize("kind", ["granite", "gemma2"])
    def test_layers_that_add_their_parts_in_another_way_are_left_as_they_are(self, kind: str) -> None:
        decoder = tiny_model(kind).model
        assert last_tokens_only(decoder) == (decoder, False)
