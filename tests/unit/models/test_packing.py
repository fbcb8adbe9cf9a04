"""Packed rows: attention under the tree's mask, the last layer over them, and which models are packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import ModelKind, tiny_base, tiny_model
from torch import Tensor

from unimoe.config import PromptConfig
from unimoe.models import tree_attention as module
from unimoe.models.token_tree import TokenTree, build_tree, plan_trees
from unimoe.models.tree_attention import (
    ROUND_ROWS,
    PackedTree,
    last_tokens_only,
    pack,
    run_tree,
    running,
    tree_attention,
)
from unimoe.models.unimodel import UnimodelForExp1

CPU, SCALING = torch.device("cpu"), 0.3


def letters(*texts: str) -> list[list[int]]:
    return [list(map(ord, text)) for text in texts]


def test_a_batch_ends_between_groups_though_it_had_room_for_more() -> None:
    # Eight tokens shared and two of their own each: 10 for the first of a group, 2 for every other.
    groups = letters("abcdefgh0.", "ABCDEFGH0.", "abcdefgh1.", "ABCDEFGH1.", "abcdefgh2.", "ABCDEFGH2.")
    assert plan_trees(groups, 28) == [[1, 3, 5, 0, 2, 4]]
    assert all(plan_trees(groups, budget) == [[1, 3, 5], [0, 2, 4]] for budget in (14, 24, 27))
    assert plan_trees(groups, 12) == [[1, 3], [5], [0, 2], [4]]


def random_ids(rng: np.random.Generator, *lengths: int) -> list[list[int]]:
    return [rng.integers(3, 300, length).tolist() for length in lengths]


def forest() -> list[list[int]]:
    """Queries and documents after one beginning, a chain of sequences that begin the next, equal and lone ones."""
    rng = np.random.default_rng(0)
    (beginning, chain), documents = random_ids(rng, 40, 300), random_ids(rng, 1, 5, 127, 128, 129, 200)
    reranking = [beginning + query + document for query in random_ids(rng, 9, 150) for document in [*documents, [7]]]
    chained = [chain[:length] for length in range(10, 300, 24)]
    return [*reranking, *chained, *[list(range(3, 50))] * 5, *random_ids(rng, 1, 3, 140, 300)]


@pytest.fixture(params=["cpu", "gpu"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a block, and many, as a GPU has."""
    if request.param == "gpu":
        monkeypatch.setattr(module, "_CPU_ROWS", 3)
        monkeypatch.setattr(module, "_attend_on_cpu", module._attend)


@pytest.fixture(params=[[[5]], forest()], ids=["one token", "forest"])
def tree(request: pytest.FixtureRequest) -> TokenTree:
    return build_tree(request.param)


def random_states(tokens: int, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; the values wider than the others."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(heads, 16), (groups, 16), (groups, 24)]
    query, key, value = (torch.randn(1, n, tokens, width, generator=generator) for n, width in sizes)
    return query, key, value


def attend(tree: PackedTree, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with running(tree):
        return tree_attention(torch.nn.Identity(), query, key, value, None, scaling=SCALING, packed=True)[0]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 1)])
def test_it_is_attention_under_the_mask_of_the_tree(tree: TokenTree, heads: int, groups: int) -> None:
    tokens, row = len(tree.ids), np.arange(len(tree.ids))
    query, key, value = states = random_states(tokens, heads, groups)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(heads // groups, dim=1),
        value.repeat_interleave(heads // groups, dim=1),
        attn_mask=torch.from_numpy((row <= row[:, None]) & (row[:, None] < tree.ends)),
        scale=SCALING,
    ).transpose(1, 2)
    torch.testing.assert_close(attend(pack(tree, CPU, torch.float32), *states), expected, rtol=1e-5, atol=1e-5)
    low = pack(tree, CPU, torch.bfloat16)  # whose row is filled up
    assert low.ids.shape[1] % ROUND_ROWS == 0
    filled = (torch.nn.functional.pad(state, (0, 0, 0, low.ids.shape[1] - tokens)).bfloat16() for state in states)
    found = attend(low, *filled)[:, :tokens]
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


BEGINNING = list(range(100, 130))
SEQUENCES = [
    *([*BEGINNING, *range(200, 203 + tail)] for tail in (0, 7, 1, 20, 3)),
    *([5], BEGINNING, list(range(40)), BEGINNING, list(range(40, 0, -1))),
]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_last_tokens_have_the_states_and_gradients_that_all_layers_give(kind: ModelKind) -> None:
    decoder = tiny_base(kind).model.model.double().requires_grad_()
    quick, drops = last_tokens_only(decoder)
    assert drops
    tree, weights = pack(build_tree(SEQUENCES), CPU, torch.float64), list(decoder.parameters())
    found, expected = run_tree(quick, tree)[0], run_tree(decoder, tree)[0, tree.last]
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    gradients = [torch.autograd.grad((states * direction).sum(), weights) for states in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", ["granite", "gemma2"])
def test_layers_that_add_their_parts_in_another_way_are_left_as_they_are(kind: str) -> None:
    decoder = tiny_model(kind).model
    assert last_tokens_only(decoder) == (decoder, False)


LONGEST = 128
FULL = {"layer_types": ["full_attention"] * 2}
HALF = ["full_attention", "sliding_attention"]
MIXED = {"use_sliding_window": True, "sliding_window": 8}
SINKS = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}
CAPPED = {"head_dim": 16, "attn_logit_softcapping": 50.0}


@pytest.mark.parametrize(
    ("kind", "settings", "trees"),
    [
        *((kind, {}, True) for kind in ("llama", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "smollm3")),
        ("mistral", {"sliding_window": None}, True),
        ("mistral", {"sliding_window": LONGEST}, True),  # which no text goes beyond
        ("mistral", {"sliding_window": LONGEST - 1}, False),
        ("qwen2", {**FULL, **MIXED}, True),
        ("qwen2", {**MIXED, "layer_types": HALF}, False),
        ("qwen2", {**MIXED, "layer_types": HALF, "sliding_window": LONGEST}, True),
        ("gemma2", {**FULL, **CAPPED, "attn_logit_softcapping": None}, True),
        ("gemma2", {**FULL, **CAPPED}, False),
        ("gpt_oss", {**FULL, **SINKS}, False),
        ("doge", {}, False),  # has a mask of its own
        ("nemotron", {}, False),  # does not pass on what attention is given
    ],
)
def test_families_of_plain_full_attention_share_beginnings(kind: str, settings: dict[str, Any], trees: bool) -> None:
    base = replace(tiny_base(), model=tiny_model(kind, **settings))
    model = UnimodelForExp1(base, PromptConfig(template="plain", instruction=""), LONGEST)
    assert model.training_tokens([[5, 6, 7], [5, 6, 8]]) == (4 if trees else 6)
