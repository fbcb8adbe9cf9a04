"""Attention over a token tree in blocks of some queries and the keys that at least one of them sees, under masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.models.batching import arrays_to_device
from unimoe.models.token_tree import Segment, path

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
class Blocks:
    """Computes the attention of a tree block by block.

    Attributes:
        blocks: which queries see which keys.
    """

    blocks: list[Block]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend: queries ``(H, T, D)``, keys ``(G, T, D)``, values ``(G, T, V)``; return ``(T, H, V)``."""
        heads, groups, width = len(query), len(key), value.shape[-1]
        queries = query.view(groups, heads // groups, *query.shape[1:])
        output = query.new_empty(query.shape[1] + 1, groups, heads // groups, width)  # the last: of padded queries
        attend = _attend_on_cpu if query.device.type == "cpu" else _attend_fused
        for block in self.blocks:
            mixed = attend(block.queries_of(queries), block.keys_of(key), block.keys_of(value), block, scaling)
            if block.query_span is None:
                output[block.queries] = mixed.permute(2, 3, 0, 1, 4)
            else:
                output[block.query_span] = mixed[:, :, 0].permute(2, 0, 1, 3)
        return output[:-1].flatten(1, 2)


def build_blocks(segments: Sequence[Segment], device: torch.device, dtype: torch.dtype) -> Blocks:
    """Return the blocks of a tree's segments, with masks in ``dtype`` that the device makes from indices."""
    limit = _CPU_SCORES if device.type == "cpu" else _GPU_SCORES
    rows = sorted(_rows(segments), key=lambda row: (-len(row.keys), -len(row.queries)))
    lengths = [segment.end - segment.begin for segment in segments]
    begins = np.repeat(np.array([segment.begin for segment in segments], dtype=np.int64), lengths)
    (begin_of,) = arrays_to_device([np.append(begins, 0)], device)  # the last: padded queries see all
    return Blocks([_block(chunk, begin_of, dtype) for chunk in _chunks(rows, limit)])


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
    """Adjacent queries of one segment, or of small neighbours with the same parent, and all keys that they may see.

    Attributes:
        queries: their places.
        keys: first those of all ancestors, then from the beginning of the first neighbour on.
        begin: where the first neighbour begins; smaller keys are ancestors'.
    """

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]
    begin: int


def _rows(segments: Sequence[Segment]) -> Iterator[_Row]:
    for first, last in _neighbours(segments):
        ancestors = path(segments, segments[first].parent)
        begin, end = segments[first].begin, segments[last].end
        own = np.arange(begin, end)
        for start in range(0, end - begin, _QUERIES):
            stop = min(start + _QUERIES, end - begin)
            yield _Row(own[start:stop], np.concatenate([ancestors, own[:stop]]), begin)


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
    single = rows[0] if len(rows) == 1 else None
    return Block(
        queries,
        keys.masked_fill(keys == length, 0),
        torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(visible.logical_not_(), -torch.inf),
        None if single is None else _span(single.queries),
        None if single is None else _span(single.keys),
    )


def _span(places: NDArray[np.int64]) -> slice | None:
    """Return adjacent places as a slice; None for others."""
    begin, end = int(places[0]), int(places[-1]) + 1
    return slice(begin, end) if end - begin == len(places) else None
