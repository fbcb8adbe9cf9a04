"""The last decoder layer, for last tokens alone.

Scores and embeddings need the final states of last tokens only. The feed-forward part of the last layer, three quarters
of its work, skips all other tokens; its attention needs them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unimoe.models.frozen_layers import with_modules
from unimoe.models.token_tree import build_tree
from unimoe.models.tree_attention import PackedTree, pack, rounds_rows, run_tree

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}

_ROUND_LAST = 16
"""Rows of the last layer's products are a multiple of this where ``rounds_rows``."""

_ROUNDING = 0.02
"""The most that two ways to compute the same states differ, relative to them, in bfloat16."""


class LastTokensLayer(nn.Module):
    """Runs a decoder layer over a packed tree, and returns the states of the sequences' last tokens.

    Args:
        layer: a layer that adds its attention and then its feed-forward part, each after one norm, as Llama's does.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, *, tree: PackedTree, **options: Any) -> Tensor:
        """Return ``(1, N, H)`` from the states ``(1, T, H)`` of the packed row."""
        layer = self.layer
        attended = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), tree=tree, **options)[0]
        states = (hidden_states + attended)[:, _rounded(tree.last, hidden_states.dtype)]
        found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return found[:, : len(tree.last)]


def _rounded(places: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the places, some repeated where products should come in few sizes."""
    if not rounds_rows(places.device, dtype):
        return places
    return torch.cat([places, places[:1].expand(-len(places) % _ROUND_LAST)])


def last_tokens_only(decoder: Any) -> tuple[Any, bool]:
    """Return a decoder that gives the final states of last tokens only, and True; the same one and False if it cannot.

    The decoder returned shares all weights. Whether its last layer is built like Llama's, running a little tree both
    ways tells.

    Args:
        decoder: of transformers; it supports trees.
    """
    if {name for name, _ in decoder.layers[-1].named_children()} != _PARTS:
        return decoder, False
    quick = with_modules(decoder, layers=nn.ModuleList([*decoder.layers[:-1], LastTokensLayer(decoder.layers[-1])]))
    weight = decoder.embed_tokens.weight
    words = [index * len(weight) // 8 for index in range(8)]
    tree = pack(build_tree([words, words[4:]]), weight.device, weight.dtype)
    try:
        with torch.no_grad():
            found, expected = run_tree(quick, tree), run_tree(decoder, tree)[:, tree.last]
    except (AttributeError, TypeError, RuntimeError):  # a layer with other parts, or whose parts return other things
        return decoder, False
    apart = (found.float() - expected.float()).norm() / expected.float().norm()
    return (quick, True) if apart < _ROUNDING else (decoder, False)
