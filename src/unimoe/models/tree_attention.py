"""Attention over a token tree, as an attention implementation of transformers.

The decoder runs over the packed row as over one long sequence: projections and feed-forward layers, most of the work,
process every token once and no padding. Attention is computed in blocks of some queries and the keys that at least one
of them sees, under masks. Of the last layer only the last tokens are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.models.base import decoder_layers, with_modules
from unimoe.models.batching import arrays_to_device
from unimoe.models.token_tree import Segment, TokenTree, path

NAME = "unimoe_tree"

ROUND_ROWS = 64
"""Below float32 a row is filled up to a multiple of so many tokens: on a CPU, oneDNN compiles and keeps code for each
number of rows, so that a product of a new size takes three times as long (measured in bfloat16 at 1,500 rows)."""

_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache"}
"""Arguments of attention without effect here: all is evaluated, without a cache, and causal where the layer is."""

_QUERIES = 128
"""Queries of one row of a block: few, so that few scores are computed only to be masked."""

_CPU_SCORES, _GPU_SCORES = 2**15, 2**26
"""Padded scores of one block: as many as the caches of a CPU hold; on a GPU many rows, for few kernels."""

_LIKE_LLAMA = {
    f"transformers.models.{name}.modeling_{name}" for name in ("llama", "mistral", "qwen2", "qwen3", "smollm3")
}
"""Modules of layers that add their attention and then their feed-forward part, each after one norm, and do no more."""


@dataclass(frozen=True)
class PackedTree:
    """A token tree as tensors on a device, filled up to T tokens.

    Attributes:
        tree: the tree.
        ids: ``(1, T)`` token ids.
        positions: ``(1, T)``.
        last: ``(N,)`` index of each sequence's last token.
        blocks: which token sees which.
    """

    tree: TokenTree
    ids: Tensor
    positions: Tensor
    last: Tensor
    blocks: list[Block]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.tree.positions) + 1


class Block(NamedTuple):
    """R rows of at most Q queries and K keys, each row padded.

    Attributes:
        queries: ``(R, Q)`` indices into the packed row; padding is T, one past its end.
        keys: ``(R, K)`` indices into the packed row; padding is 0, and masked.
        mask: ``(R, 1, Q, K)``, 0 where the query sees the key and minus infinity elsewhere, in the model's dtype.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor


def pack(tree: TokenTree, device: torch.device, dtype: torch.dtype) -> PackedTree:
    """Put a tree on a device, for a model of a dtype."""
    filling = [] if dtype == torch.float32 else [0] * (-len(tree.ids) % ROUND_ROWS)
    parts = (tree.ids + filling, tree.positions + filling, tree.last)
    ids, positions, last = arrays_to_device([np.array(part, dtype=np.int64) for part in parts], device)
    return PackedTree(tree, ids[None], positions[None], last, build_blocks(tree.segments, len(ids), device, dtype))


class UnsupportedAttentionError(Exception):
    """A layer needs attention that packed rows do not have: a window, sinks, or a mask."""


def sees_whole_text(config: Any, longest: int | None) -> bool:
    """Return whether, by its configuration, no layer of a model has a window that ends within a text.

    Texts have ``longest`` tokens at most; None where that is not known.
    """
    kinds, window = set(getattr(config, "layer_types", None) or []), getattr(config, "sliding_window", None)
    wide = window is not None and longest is not None and window >= longest
    if kinds:
        return kinds <= {"full_attention", *(["sliding_attention"] if wide else [])}
    return window is None or wide


def run_tree(decoder: Any, tree: PackedTree, states: Tensor | None = None) -> Tensor:
    """Run a decoder of transformers over a packed tree, from token ids or from ``states`` ``(1, T, H)``.

    Returns:
        The final states, ``(1, T, H)``.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _uncompiled_attention())
    inputs = {"input_ids": tree.ids} if states is None else {"inputs_embeds": states}
    config, before = decoder.config, decoder.config._attn_implementation
    config._attn_implementation = NAME  # each layer reads it as it runs, and so does the making of masks
    try:
        output = decoder(**inputs, position_ids=tree.positions, use_cache=False, tree=tree)
    finally:
        config._attn_implementation = before
    hidden: Tensor = output.last_hidden_state
    return hidden


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    tree: PackedTree | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention: queries ``(1, H, T, D)``, keys ``(1, G, T, D)``, values ``(1, G, T, V)``.

    Returns:
        ``(1, T, H, V)``, and no weights.

    Raises:
        UnsupportedAttentionError: the layer has a mask or another option, or does not pass the tree on.
    """
    asked = {name for name, value in options.items() if value is not None and value is not False} - _HARMLESS
    # A window over earlier tokens changes nothing where it holds the longest text.
    if tree and "sliding_window" in asked and options["sliding_window"] >= tree.longest:
        asked -= {"sliding_window"} if getattr(module, "is_causal", False) else set()
    if asked or attention_mask is not None or tree is None:
        raise UnsupportedAttentionError(f"{type(module).__name__}: {sorted(asked)}")
    return attend_in_blocks(tree.blocks, query[0], key[0], value[0], scaling).unsqueeze(0), None


@cache
def _uncompiled_attention() -> Callable[..., Any]:
    """Return ``tree_attention`` as what compiled layers call and do not look into: every tree differs."""
    disable: Any = torch.compiler.disable
    function: Callable[..., Any] = disable(tree_attention)
    return function


def attend_in_blocks(blocks: Sequence[Block], query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attend: queries ``(H, T, D)``, keys ``(G, T, D)``, values ``(G, T, V)``; return ``(T, H, V)``, 0 for filling."""
    groups, tokens = len(key), query.shape[1]
    queries = query.view(groups, -1, *query.shape[1:])
    # One token more: the output of padded queries, which is dropped.
    output = query.new_zeros(tokens + 1, *queries.shape[:2], value.shape[-1])
    for block in blocks:
        asked = queries[:, :, block.queries.clamp(max=tokens - 1)].permute(2, 0, 1, 3, 4)
        # The heads of a group are stacked as rows, so that no key is copied for each of them.
        mixed = nn.functional.scaled_dot_product_attention(
            asked.flatten(2, 3),
            key[:, block.keys].transpose(0, 1),
            value[:, block.keys].transpose(0, 1),
            attn_mask=block.mask.repeat(1, 1, asked.shape[2], 1),
            scale=scaling,
        )
        output[block.queries] = mixed.view(*asked.shape[:-1], -1).permute(0, 3, 1, 2, 4)
    return output[:-1].flatten(1, 2)


def build_blocks(segments: Sequence[Segment], tokens: int, device: torch.device, dtype: torch.dtype) -> list[Block]:
    """Return the blocks of a tree's segments, with masks in ``dtype`` that the device makes from indices.

    Rows of similar size share a block: padded to their largest, they hold a limited number of scores, or are one row.
    """
    limit = _CPU_SCORES if device.type == "cpu" else _GPU_SCORES
    begins = np.zeros(tokens + 1, dtype=np.int64)  # the last: padded queries see all
    for segment in segments:
        begins[segment.begin : segment.end] = segment.begin
    (begin_of,) = arrays_to_device([begins], device)
    rows = sorted(_rows(segments), key=lambda row: (-len(row.keys), -len(row.queries)))
    blocks: list[Block] = []
    first, queries = 0, 0
    for index, row in enumerate(rows):
        queries = max(queries, len(row.queries))
        if index > first and (index + 1 - first) * queries * len(rows[first].keys) > limit:
            blocks.append(_block(rows[first:index], begin_of, dtype))
            first, queries = index, len(row.queries)
    return [*blocks, _block(rows[first:], begin_of, dtype)] if rows else blocks


class _Row(NamedTuple):
    """Adjacent queries of one segment, or of small neighbours with the same parent, and all keys that they may see.

    The keys are first those of all ancestors, then from ``begin`` on, where the first neighbour begins.
    """

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]
    begin: int


def _rows(segments: Sequence[Segment]) -> Iterator[_Row]:
    first = 0
    for index in range(1, len(segments) + 1):
        begin, parent = segments[first].begin, segments[first].parent
        if index < len(segments) and segments[index].parent == parent and segments[index].end - begin <= _QUERIES:
            continue  # one more neighbour that is small enough for the row
        ancestors, own = path(segments, parent), np.arange(begin, segments[index - 1].end)
        for start in range(0, len(own), _QUERIES):
            seen = own[: start + _QUERIES]
            yield _Row(seen[start:], np.concatenate([ancestors, seen]), begin)
        first = index


def _block(rows: Sequence[_Row], begin_of: Tensor, dtype: torch.dtype) -> Block:
    """Return a block of rows; ``begin_of`` holds where the segment of each token begins, and 0 for a padded query."""
    length, device = len(begin_of) - 1, begin_of.device
    count, longest = max(len(row.queries) for row in rows), max(len(row.keys) for row in rows)
    places = np.full((len(rows), count + longest + 1), length)
    for number, row in enumerate(rows):
        places[number, : len(row.queries)] = row.queries
        places[number, count : count + len(row.keys)] = row.keys
        places[number, -1] = row.begin
    (flat,) = arrays_to_device([places.ravel()], device)
    queries, keys, begin = torch.split(flat.view(places.shape), [count, longest, 1], dim=1)
    asked, seen = queries.unsqueeze(-1), keys.unsqueeze(1)
    # A padded query sees all: its output is dropped, but a query that sees no key would give NaN.
    visible = (seen <= asked) & ((seen >= begin_of[queries].unsqueeze(-1)) | (seen < begin.unsqueeze(-1)))
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(visible.logical_not_(), -torch.inf)
    return Block(queries, keys.masked_fill(keys == length, 0), mask.unsqueeze(1))


class LastTokensLayer(nn.Module):
    """Runs a decoder's last layer over a packed tree, and returns the states of the sequences' last tokens.

    Of all other tokens the layer computes keys and values, 6 % of its work in a small Llama. Where three layers are
    adapted, that saves almost a third of a training step.

    Args:
        layer: a layer ``_LIKE_LLAMA``.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.attention_type = getattr(layer, "attention_type", None)  # transformers 5.0 reads it here

    def forward(self, hidden_states: Tensor, *, tree: PackedTree, **options: Any) -> Tensor:
        """Return ``(1, N, H)`` from the states ``(1, T, H)`` of the packed row."""
        layer, attention, places = self.layer, self.layer.self_attn, tree.last

        def select(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            return inputs[0][:, places]

        def spread(_: nn.Module, inputs: tuple[Tensor], queries: Tensor) -> Tensor:
            # The other tokens' queries are zeros: the tree's attention takes a query of every token.
            row = queries.new_zeros(1, hidden_states.shape[1], queries.shape[2])
            return row.index_copy(1, places, queries)

        with (
            attention.q_proj.register_forward_pre_hook(select),
            attention.q_proj.register_forward_hook(spread),
            attention.o_proj.register_forward_pre_hook(select),
        ):
            attended = attention(hidden_states=layer.input_layernorm(hidden_states), tree=tree, **options)[0]
        states = hidden_states[:, places] + attended
        found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return found


def last_tokens_only(decoder: Any) -> tuple[Any, bool]:
    """Return a decoder that gives the final states of last tokens only, and True; the same one and False if it cannot.

    The decoder takes trees; the one returned shares all weights.
    """
    *layers, last = decoder_layers(decoder)
    if type(last).__module__ not in _LIKE_LLAMA:
        return decoder, False
    return with_modules(decoder, layers=nn.ModuleList([*layers, LastTokensLayer(last)])), True
