"""Attention over a token tree, as an attention implementation of transformers.

The decoder runs over the packed row as over one long sequence: projections and feed-forward layers, most of the work,
process every token once and no padding. Attention is computed in blocks of some queries and the keys that at least one
of them sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.io import hash_parts
from unimoe.models.token_tree import Segment, TokenTree

NAME = "unimoe_tree"

_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache"}
"""Arguments of attention without effect here: all is evaluated, without a cache, and causal where the layer is."""

_QUERIES = 128
"""Queries of one row of a block: few, so that few scores are computed only to be masked."""

_CPU_SCORES, _GPU_SCORES = 2**15, 2**26
"""Padded scores of one block: as many as the caches of a CPU hold; on a GPU many rows, for few kernels."""


@dataclass(frozen=True)
class Block:
    """R rows of at most Q queries and K keys, each row padded.

    Attributes:
        queries: ``(R, Q)`` indices into the packed row; padding is T, one past its end.
        keys: ``(R, K)`` indices into the packed row; padding is 0, and masked.
        mask: ``(R, Q, K)``, 0 where the query sees the key and minus infinity elsewhere, in the model's dtype.
        query_span: the queries of a single row as a slice, if adjacent; None for several rows.
        key_span: the same of its keys.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor
    query_span: slice | None
    key_span: slice | None
    _stacked: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def stacked_mask(self, heads: int) -> Tensor:
        """Return the mask repeated for each head, ``(R, heads * Q, K)``; all layers share one."""
        if heads not in self._stacked:
            self._stacked[heads] = self.mask.repeat(1, heads, 1)
        return self._stacked[heads]

    def queries_of(self, states: Tensor) -> Tensor:
        """Return ``(G, H/G, R, Q, D)`` from the row's ``(G, H/G, T, D)``; of a single row, a view."""
        if self.query_span is not None:
            return states[:, :, self.query_span].unsqueeze(2)
        return states[:, :, self.queries.clamp(max=states.shape[2] - 1)]

    def keys_of(self, states: Tensor) -> Tensor:
        """Return ``(G, R, K, D)`` from the row's ``(G, T, D)``."""
        if self.key_span is not None:
            return states[:, self.key_span].unsqueeze(1)
        return states.index_select(1, self.keys.view(-1)).view(states.shape[0], *self.keys.shape, -1)


@dataclass(frozen=True)
class PackedTree:
    """A token tree as tensors on a device.

    Attributes:
        ids: ``(1, T)`` token ids.
        positions: ``(1, T)``.
        last: ``(N,)`` index of each sequence's last token.
        blocks: which queries see which keys.
        key: content hash of the tree.
    """

    key: str
    ids: Tensor
    positions: Tensor
    last: Tensor
    blocks: list[Block]


def pack(tree: TokenTree, device: torch.device, dtype: torch.dtype) -> PackedTree:
    """Put a tree on a device and build the blocks of its attention, masks in ``dtype``."""
    limit = _CPU_SCORES if device.type == "cpu" else _GPU_SCORES
    rows = sorted(_rows(tree.segments), key=lambda row: (-len(row.keys), -len(row.queries)))
    return PackedTree(
        key=hash_parts(map(repr, (tree.ids, tree.positions, tree.segments))),
        ids=torch.tensor([tree.ids], device=device),
        positions=torch.tensor([tree.positions], device=device),
        last=torch.tensor(tree.last, device=device, dtype=torch.long),
        blocks=[_block(chunk, len(tree.ids), device, dtype) for chunk in _chunks(rows, limit)],
    )


class UnsupportedAttentionError(Exception):
    """A layer needs attention that packed rows do not have: a window, sinks, or a mask."""


@contextmanager
def attention_by(function: Callable[..., Any], name: str, config: Any) -> Iterator[None]:
    """Let a function compute attention in the model of a config while the block runs, registered under a name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, function)
    before = config._attn_implementation
    config._attn_implementation = name  # each layer reads it as it runs, and so does the making of masks
    try:
        yield
    finally:
        config._attn_implementation = before


def refuse_unsupported(module: nn.Module, mask: Tensor | None, packing: object, options: Mapping[str, Any]) -> None:
    """Refuse a layer that has a mask or other options, or passes on no description of the packed row.

    Raises:
        UnsupportedAttentionError: it is such a layer.
    """
    asked = {name for name, value in options.items() if value is not None and value is not False} - _HARMLESS
    if asked or mask is not None or packing is None:
        raise UnsupportedAttentionError(f"{type(module).__name__}: {sorted(asked)}")


def run_tree(decoder: Any, tree: PackedTree, states: Tensor | None = None) -> Tensor:
    """Run a decoder of transformers over a packed tree, from token ids or from ``states`` ``(1, T, H)``.

    Returns:
        The final states, ``(1, T, H)``.
    """
    inputs = {"input_ids": tree.ids} if states is None else {"inputs_embeds": states}
    with attention_by(tree_attention, NAME, decoder.config):
        output = decoder(**inputs, position_ids=tree.positions, use_cache=False, tree=tree)
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
        UnsupportedAttentionError: the layer asks for more, or does not pass the tree on.
    """
    refuse_unsupported(module, attention_mask, tree, options)
    assert tree is not None  # noqa: S101
    heads, groups, width = query.shape[1], key.shape[1], value.shape[-1]
    queries = query[0].view(groups, heads // groups, *query.shape[2:])
    output = query.new_empty(query.shape[2] + 1, groups, heads // groups, width)  # padded queries write into the last
    attend = _attend_on_cpu if query.device.type == "cpu" else _attend_fused
    for block in tree.blocks:
        mixed = attend(block.queries_of(queries), block.keys_of(key[0]), block.keys_of(value[0]), block, scaling)
        if block.query_span is None:
            output[block.queries] = mixed.permute(2, 3, 0, 1, 4)
        else:
            output[block.query_span] = mixed[:, :, 0].permute(2, 0, 1, 3)
    return output[:-1].flatten(1, 2).unsqueeze(0), None


def _attend_on_cpu(q: Tensor, k: Tensor, v: Tensor, block: Block, scaling: float) -> Tensor:
    """Attend by plain products, in bfloat16 twice as fast as PyTorch's fused kernel, which uses float32 on a CPU.

    Queries are ``(G, H/G, R, Q, D)``, keys ``(G, R, K, D)``, values ``(G, R, K, V)``; the heads of a group are stacked
    as rows.
    """
    groups, per_group, rows, count, width = q.shape
    stacked = q.transpose(1, 2).reshape(groups * rows, per_group * count, width)
    seen = block.stacked_mask(per_group)
    scores = torch.baddbmm(
        seen if rows == 1 else seen.repeat(groups, 1, 1), stacked, k.flatten(0, 1).transpose(1, 2), alpha=scaling
    )
    mixed = torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1))
    return mixed.view(groups, rows, per_group, count, -1).transpose(1, 2)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, block: Block, scaling: float) -> Tensor:
    groups, per_group, rows, count, width = q.shape
    mixed = nn.functional.scaled_dot_product_attention(
        q.permute(2, 0, 1, 3, 4).reshape(rows, groups * per_group, count, width),
        k.transpose(0, 1).repeat_interleave(per_group, dim=1),
        v.transpose(0, 1).repeat_interleave(per_group, dim=1),
        attn_mask=block.mask.unsqueeze(1),
        scale=scaling,
    )
    return mixed.view(rows, groups, per_group, count, -1).permute(1, 2, 0, 3, 4)


@dataclass(frozen=True)
class _Row:
    """Queries of one segment, or of small neighbours with the same parent, and all keys that they see."""

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]
    seen: NDArray[np.bool_]


def _rows(segments: Sequence[Segment]) -> Iterator[_Row]:
    for first, last in _neighbours(segments):
        ancestors = _ancestors(segments, segments[first].parent)
        begin, end = segments[first].begin, segments[last].end
        owner = np.repeat(np.arange(first, last + 1), [s.end - s.begin for s in segments[first : last + 1]])
        own = np.arange(begin, end)
        for start in range(0, end - begin, _QUERIES):
            stop = min(start + _QUERIES, end - begin)
            causal = own[start:stop, None] >= own[None, :stop]
            same = owner[start:stop, None] == owner[None, :stop]
            past = np.ones((stop - start, len(ancestors)), dtype=bool)
            yield _Row(own[start:stop], np.concatenate([ancestors, own[:stop]]), np.hstack([past, causal & same]))


def _neighbours(segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield first and last index of runs of segments with the same parent that are small enough for one row."""
    first = 0
    for index in range(1, len(segments) + 1):
        if (
            index == len(segments)
            or segments[index].parent != segments[first].parent
            or segments[index].end - segments[first].begin > _QUERIES
        ):
            yield first, index - 1
            first = index


def _ancestors(segments: Sequence[Segment], index: int) -> NDArray[np.int64]:
    places: list[NDArray[np.int64]] = []
    while index >= 0:
        places.append(np.arange(segments[index].begin, segments[index].end))
        index = segments[index].parent
    return np.concatenate([*reversed(places)]) if places else np.arange(0)


def _chunks(rows: Sequence[_Row], limit: int) -> Iterator[Sequence[_Row]]:
    """Group rows of similar size: padded to their largest, they hold at most ``limit`` scores, or are one row."""
    first, queries = 0, 0
    for index, row in enumerate(rows):
        queries = max(queries, len(row.queries))
        if index > first and (index + 1 - first) * queries * len(rows[first].keys) > limit:
            yield rows[first:index]
            first, queries = index, len(row.queries)
    if rows:
        yield rows[first:]


def _block(rows: Sequence[_Row], length: int, device: torch.device, dtype: torch.dtype) -> Block:
    count, longest = max(len(row.queries) for row in rows), max(len(row.keys) for row in rows)
    queries = np.full((len(rows), count), length)
    keys = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.full((len(rows), count, longest), -np.inf, dtype=np.float32)
    for number, row in enumerate(rows):
        queries[number, : len(row.queries)] = row.queries
        keys[number, : len(row.keys)] = row.keys
        mask[number, : len(row.queries), : len(row.keys)][row.seen] = 0
        mask[number, len(row.queries) :] = 0  # their output is dropped, but a query that sees no key would give NaN
    single = rows[0] if len(rows) == 1 else None
    return Block(
        torch.from_numpy(queries).to(device),
        torch.from_numpy(keys).to(device),
        torch.from_numpy(mask).to(device, dtype),
        None if single is None else _span(single.queries),
        None if single is None else _span(single.keys),
    )


def _span(places: NDArray[np.int64]) -> slice | None:
    """Return adjacent places as a slice; None for others."""
    begin, end = int(places[0]), int(places[-1]) + 1
    return slice(begin, end) if end - begin == len(places) else None
