"""The last decoder layer, for last tokens alone.

Scores and embeddings need the final states of last tokens only. Of all other tokens the last layer computes keys and
values, which is 6 % of its work in a small Llama.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unimoe.models.base import decoder_layers
from unimoe.models.batching import to_device
from unimoe.models.frozen_layers import with_modules
from unimoe.models.token_tree import build_tree
from unimoe.models.tree_attention import PackedTree, pack, rounds_rows, run_tree

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PROJECTIONS = {"q_proj", "o_proj"}

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
        attention = layer.self_attn
        self.layer = layer
        self._queries, self._output = _SomeQueries(attention.q_proj), _SomeOutputs(attention.o_proj)
        self._attention = with_modules(attention, q_proj=self._queries, o_proj=self._output)

    def forward(self, hidden_states: Tensor, *, tree: PackedTree, **options: Any) -> Tensor:
        """Return ``(1, N, H)`` from the states ``(1, T, H)`` of the packed row."""
        layer, (places, rows) = self.layer, _asked(tree, hidden_states.dtype)
        self._queries.places = self._output.places = places
        attended = self._attention(hidden_states=layer.input_layernorm(hidden_states), tree=tree, **options)[0]
        states = hidden_states[:, places] + attended
        found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return found[:, rows]


class _SomeQueries(nn.Module):
    """Projects some tokens of a packed row to queries; the others' are zeros, and what they attend to is dropped."""

    def __init__(self, projection: Any) -> None:
        super().__init__()
        self.projection = projection
        self.places = torch.empty(0, dtype=torch.long)

    def forward(self, states: Tensor) -> Tensor:
        queries: Tensor = self.projection(states[:, self.places])
        return queries.new_zeros(1, states.shape[1], queries.shape[2]).index_copy(1, self.places, queries)


class _SomeOutputs(nn.Module):
    """Projects what some tokens of a packed row attend to."""

    def __init__(self, projection: Any) -> None:
        super().__init__()
        self.projection = projection
        self.places = torch.empty(0, dtype=torch.long)

    def forward(self, attended: Tensor) -> Tensor:
        found: Tensor = self.projection(attended[:, self.places])
        return found


def _asked(tree: PackedTree, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the places of the last tokens, each once, and which of them is each sequence's, ``(N,)``.

    Where products should come in few sizes, some other places fill the first up.
    """
    places, device = sorted(set(tree.tree.last)), tree.ids.device
    row = {place: index for index, place in enumerate(places)}
    if rounds_rows(device, dtype):
        others = (place for place in range(len(tree.tree.ids)) if place not in row)
        places += islice(others, -len(places) % _ROUND_LAST)
    arrays = [np.array(values, dtype=np.int64) for values in (places, [row[place] for place in tree.tree.last])]
    asked, rows = to_device(arrays, device)
    return asked, rows


def last_tokens_only(decoder: Any) -> tuple[Any, bool]:
    """Return a decoder that gives the final states of last tokens only, and True; the same one and False if it cannot.

    The decoder returned shares all weights. Whether its last layer is built like Llama's, running a little tree both
    ways tells.

    Args:
        decoder: of transformers; it supports trees.
    """
    last = decoder_layers(decoder)[-1]
    if {name for name, _ in last.named_children()} != _PARTS or not _PROJECTIONS.issubset(last.self_attn._modules):
        return decoder, False
    quick = with_modules(decoder, layers=nn.ModuleList([*decoder.layers[:-1], LastTokensLayer(last)]))
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
