from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny_models import ModelKind, tiny_base, tiny_model

from unimoe.models.token_tree import build_tree
from unimoe.models.tree_attention import last_tokens_only, pack, run_tree

SEQUENCES = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [5, 6, 7, 8, 9, 10, 11, 12, 20], [30, 31]]


def tree_of(decoder: Any) -> Any:
    weight = decoder.embed_tokens.weight
    return pack(build_tree(SEQUENCES), weight.device, weight.dtype)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_last_tokens_have_the_states_that_all_layers_give(kind: ModelKind) -> None:
    decoder = tiny_base(kind).model.model
    quick, drops = last_tokens_only(decoder)
    assert drops
    tree = tree_of(decoder)
    with torch.no_grad():
        found, expected = run_tree(quick, tree), run_tree(decoder, tree)[:, tree.last]
    assert found.shape == (1, len(SEQUENCES), expected.shape[-1])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_last_feed_forward_part_sees_last_tokens_only() -> None:
    decoder = tiny_base().model.model
    rows: list[int] = []
    for layer in decoder.layers:
        layer.mlp.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
    quick, _ = last_tokens_only(decoder)
    rows.clear()
    tree = tree_of(decoder)
    run_tree(quick, tree)
    assert rows == [tree.ids.shape[1]] * (len(decoder.layers) - 1) + [len(SEQUENCES)]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_gradients_are_those_of_all_layers(kind: ModelKind) -> None:
    decoder = tiny_base(kind).model.model.double().requires_grad_()
    quick, drops = last_tokens_only(decoder)
    assert drops
    tree = pack(build_tree([*SEQUENCES, SEQUENCES[1]]), torch.device("cpu"), torch.float64)  # one twice
    weights = dict(decoder.named_parameters())
    direction = torch.randn(len(SEQUENCES) + 1, decoder.config.hidden_size, dtype=torch.float64)
    expected = torch.autograd.grad((run_tree(decoder, tree)[0, tree.last] * direction).sum(), list(weights.values()))
    found = torch.autograd.grad((run_tree(quick, tree)[0] * direction).sum(), list(weights.values()))
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_last_layer_makes_queries_of_last_tokens_only() -> None:
    decoder = tiny_base().model.model
    rows: dict[str, int] = {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        projection = getattr(decoder.layers[-1].self_attn, name)
        projection.register_forward_hook(lambda _, inputs, found, name=name: rows.update({name: found.shape[1]}))
    quick, _ = last_tokens_only(decoder)
    tree = tree_of(decoder)
    run_tree(quick, tree)
    tokens, few = tree.ids.shape[1], len(SEQUENCES)
    assert rows == {"q_proj": few, "k_proj": tokens, "v_proj": tokens, "o_proj": few}


@pytest.mark.parametrize("kind", ["granite", "gemma2"])
def test_layers_that_add_their_parts_in_another_way_are_left_as_they_are(kind: str) -> None:
    decoder = tiny_model(kind).model
    assert last_tokens_only(decoder) == (decoder, False)
