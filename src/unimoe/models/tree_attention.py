"""Attention over a token tree, as an attention implementation of transformers.

The decoder runs over the packed row as over one long sequence: projections and feed-forward layers, most of the work,
process every token once and no padding. Attention is computed in blocks of some queries and the keys that at least one
of them sees, under masks. Of the last layer only the last tokens are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.models.base import decoder_layers, decoder_of, with_modules
from unimoe.models.batching import arrays_to_device
from unimoe.models.token_tree import Segment, TokenTree, build_tree, path, with_filling

NAME = "unimoe_tree"

ROUND_ROWS = 64
"""Rows of a product are a multiple of this where ``rounds_rows``."""

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
    """A token tree as tensors on a device."""

    tree: TokenTree
    ids: Tensor  # (1, T)
    positions: Tensor  # (1, T)
    last: Tensor  # (N,), the place of each sequence's last token
    blocks: list[Block]  # which token sees which

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.tree.positions) + 1


@dataclass(frozen=True)
class Block:
    """R rows of at most Q queries and K keys, as places in the packed row, each row padded."""

    queries: Tensor  # (R, Q); padding is T, one past the packed row's end
    keys: Tensor  # (R, K); padding is 0, and masked
    mask: Tensor  # (R, Q, K), 0 where the query sees the key and minus infinity elsewhere, in the model's dtype
    query_span: slice | None  # adjacent queries of a single row, to take them without a copy
    key_span: slice | None
    _stacked: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def queries_of(self, states: Tensor) -> Tensor:
        """Return ``(G, H/G, R, Q, D)`` from the row's ``(G, H/G, T, D)``."""
        if self.query_span is not None:
            return states[:, :, self.query_span].unsqueeze(2)
        return states[:, :, self.queries.clamp(max=states.shape[2] - 1)]

    def keys_of(self, states: Tensor) -> Tensor:
        """Return ``(G, R, K, D)`` from the row's ``(G, T, D)``."""
        if self.key_span is not None:
            return states[:, self.key_span].unsqueeze(1)
        return states.index_select(1, self.keys.view(-1)).view(states.shape[0], *self.keys.shape, -1)

    def attend_on_cpu(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Attend by plain products, in bfloat16 twice as fast as PyTorch's fused kernel, which uses float32 on a CPU.

        Queries are ``(G, H/G, R, Q, D)``, keys ``(G, R, K, D)``, values ``(G, R, K, V)``; the heads of a group are
        stacked as rows.
        """
        groups, per_group, rows, count, width = q.shape
        stacked = q.transpose(1, 2).reshape(groups * rows, per_group * count, width)
        if per_group not in self._stacked:  # all layers share one
            self._stacked[per_group] = self.mask.repeat(1, per_group, 1)
        seen = self._stacked[per_group] if rows == 1 else self._stacked[per_group].repeat(groups, 1, 1)
        scores = torch.baddbmm(seen, stacked, k.flatten(0, 1).transpose(1, 2), alpha=scaling)
        mixed = torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1))
        return mixed.view(groups, rows, per_group, count, -1).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Attend by PyTorch's fused kernel; shapes are those of ``attend_on_cpu``."""
        groups, per_group, rows, count, width = q.shape
        mixed = nn.functional.scaled_dot_product_attention(
            q.permute(2, 0, 1, 3, 4).reshape(rows, groups * per_group, count, width),
            k.transpose(0, 1).repeat_interleave(per_group, dim=1),
            v.transpose(0, 1).repeat_interleave(per_group, dim=1),
            attn_mask=self.mask.unsqueeze(1),
            scale=scaling,
        )
        return mixed.view(rows, groups, per_group, count, -1).permute(1, 2, 0, 3, 4)


def rounds_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether products should come in few sizes: oneDNN compiles and keeps code for each number of rows.

    On a CPU, torch takes it for all dtypes but float32. Measured in bfloat16 at 1,500 rows: a product of a new size
    takes three times as long, and keeps a megabyte.
    """
    return device.type == "cpu" and dtype != torch.float32


def pack(tree: TokenTree, device: torch.device, dtype: torch.dtype) -> PackedTree:
    """Put a tree on a device, for a model of a dtype."""
    if rounds_rows(device, dtype):
        tree = with_filling(tree, -len(tree.ids) % ROUND_ROWS)
    arrays = [np.array(part, dtype=np.int64) for part in (tree.ids, tree.positions, tree.last)]
    ids, positions, last = arrays_to_device(arrays, device)
    return PackedTree(tree, ids[None], positions[None], last, build_blocks(tree.segments, device, dtype))


class UnsupportedAttentionError(Exception):
    """A layer needs attention that packed rows do not have: a window, sinks, or a mask."""


def supports_trees(model: Any, longest: int | None = None) -> bool:
    """Return whether all layers attend to all earlier tokens and let another function compute the attention.

    Sequences have ``longest`` tokens at most; None where that is not known.
    """
    config, decoder = model.config, decoder_of(model)
    kinds, window = set(getattr(config, "layer_types", None) or []), getattr(config, "sliding_window", None)
    wide = window is not None and longest is not None and window >= longest
    whole = kinds <= {"full_attention", *(["sliding_attention"] if wide else [])} if kinds else window is None or wide
    if not whole or not getattr(model, "_supports_attention_backend", False):
        return False
    weight = decoder.get_input_embeddings().weight
    try:  # one token: the configuration does not tell of sinks, capped scores and the like
        with torch.no_grad():
            run_tree(decoder, pack(build_tree([[0]]), weight.device, weight.dtype))
    except UnsupportedAttentionError:
        return False
    return True


def run_tree(decoder: Any, tree: PackedTree, states: Tensor | None = None) -> Tensor:
    """Return a decoder's final states ``(1, T, H)`` over a packed tree, from its token ids or from such states."""
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
    """Return attention ``(1, T, H, V)`` of queries ``(1, H, T, D)``, keys ``(1, G, T, D)``, values ``(1, G, T, V)``.

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
def _uncompiled_attention() -> Any:
    """Return ``tree_attention`` as what compiled layers call and do not look into: every tree differs."""
    disable: Any = torch.compiler.disable  # loads the compiler, which takes seconds
    return disable(tree_attention)


def attend_in_blocks(blocks: Sequence[Block], query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attend: queries ``(H, T, D)``, keys ``(G, T, D)``, values ``(G, T, V)``; return ``(T, H, V)``."""
    heads, groups = len(query), len(key)
    queries = query.view(groups, heads // groups, *query.shape[1:])
    # One token more: the output of padded queries, which is dropped.
    output = query.new_empty(query.shape[1] + 1, groups, heads // groups, value.shape[-1])
    for block in blocks:
        attend = block.attend_on_cpu if query.device.type == "cpu" else block.attend
        mixed = attend(block.queries_of(queries), block.keys_of(key), block.keys_of(value), scaling)
        if block.query_span is None:
            output[block.queries] = mixed.permute(2, 3, 0, 1, 4)
        else:
            output[block.query_span] = mixed[:, :, 0].permute(2, 0, 1, 3)
    return output[:-1].flatten(1, 2)


def build_blocks(segments: Sequence[Segment], device: torch.device, dtype: torch.dtype) -> list[Block]:
    """Return the blocks of a tree's segments, with masks in ``dtype`` that the device makes from indices.

    Rows of similar size share a block: padded to their largest, they hold a limited number of scores, or are one row.
    """
    limit = _CPU_SCORES if device.type == "cpu" else _GPU_SCORES
    lengths = [segment.end - segment.begin for segment in segments]
    begins = np.repeat(np.array([segment.begin for segment in segments], dtype=np.int64), lengths)
    (begin_of,) = arrays_to_device([np.append(begins, 0)], device)  # the last: padded queries see all
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
    spans = _span([row.queries for row in rows]), _span([row.keys for row in rows])
    return Block(queries, keys.masked_fill(keys == length, 0), mask, *spans)


def _span(rows: Sequence[NDArray[np.int64]]) -> slice | None:
    """Return the places of a single row as a slice, if they are adjacent."""
    begin, end = int(rows[0][0]), int(rows[0][-1]) + 1
    return slice(begin, end) if len(rows) == 1 and end - begin == len(rows[0]) else None


class LastTokensLayer(nn.Module):
    """Runs a decoder's last layer over a packed tree, and returns the states of the sequences' last tokens.

    Of all other tokens the layer computes keys and values, 6 % of its work in a small Llama. Where three layers are
    adapted, that saves almost a third of a training step. ``layer`` is one of ``_LIKE_LLAMA``.
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
    """Return a decoder of the same weights that gives a tree's last tokens alone, and True; else the same and False."""
    *layers, last = decoder_layers(decoder)
    if type(last).__module__ not in _LIKE_LLAMA:
        return decoder, False
    return with_modules(decoder, layers=nn.ModuleList([*layers, LastTokensLayer(last)])), True
