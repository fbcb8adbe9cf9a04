"""Attention over a token tree by torch's kernels for sequences of many lengths, without any mask.

A token sees the earlier tokens of its own segment and all tokens of the segments above. The kernel is called once for
the segments themselves, causal, and once for each level of the tree that has segments below it: the tokens below attend
to it. What the calls find is merged by the log of their sums of exponentials, as flash attention merges its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.models.batching import to_device
from unimoe.models.token_tree import Segment

MAX_LEVELS = 16
"""Levels above which a tree's calls would be too many; such trees are computed in blocks."""

Places = slice | Tensor
"""Tokens of the packed row: adjacent, or by their indices."""


class Varlen(Protocol):
    """Attention of S sequences packed in a row, each among itself."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        most_queries: int,
        most_keys: int,
        *,
        scaling: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: ``(T, H, D)``.
            key: ``(U, G, D)``, one head for ``H / G`` of the queries'.
            value: ``(U, G, D)``.
            query_ends: ``(S + 1,)``, int32: 0 and where each sequence's queries end.
            key_ends: ``(S + 1,)``, int32: 0 and where its keys end.
            most_queries: of one sequence.
            most_keys: of one sequence.
            scaling: factor of the scores.
            causal: whether a query sees only the keys up to its own place.

        Returns:
            The output ``(T, H, D)``, and for each head and query the log of the sum of its scores' exponentials,
            ``(H, T)`` in float32.
        """


@dataclass(frozen=True)
class Level:
    """The tokens below the segments of one level, and the tokens of these segments.

    Attributes:
        queries: the tokens below.
        keys: the tokens that they see.
        query_ends: as in ``Varlen``.
        key_ends: as in ``Varlen``.
        most_queries: of one segment.
        most_keys: of one segment.
    """

    queries: Places
    keys: Places
    query_ends: Tensor
    key_ends: Tensor
    most_queries: int
    most_keys: int


@dataclass(frozen=True)
class Levels:
    """Computes the attention of a tree level by level.

    Attributes:
        own: every segment as the tokens that it sees itself.
        above: a level for each depth that has segments below it.
        varlen: the kernel.
    """

    own: Level
    above: list[Level]
    varlen: Varlen

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend: queries ``(H, T, D)``, keys and values ``(G, T, D)``; return ``(T, H, D)``."""
        rows = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        output, total = self._attend(self.own, *rows, scaling, causal=True)
        for level in self.above:
            part, sums = self._attend(level, *rows, scaling, causal=False)
            before = total[:, level.queries]
            share = torch.sigmoid(sums - before).T.unsqueeze(-1).to(output.dtype)
            output[level.queries] = output[level.queries].lerp(part, share)
            total[:, level.queries] = torch.logaddexp(sums, before)
        return output

    def _attend(
        self, level: Level, query: Tensor, key: Tensor, value: Tensor, scaling: float, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        return self.varlen(
            query[level.queries],
            key[level.keys],
            value[level.keys],
            level.query_ends,
            level.key_ends,
            level.most_queries,
            level.most_keys,
            scaling=scaling,
            causal=causal,
        )


def fused_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scaling: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Attend by torch's kernel, a ``Varlen``.

    Raises:
        ImportError: this torch has none.
        RuntimeError: the device or dtype has none.
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    output, sums = varlen_attn(
        query,
        key,
        value,
        query_ends,
        key_ends,
        most_queries,
        most_keys,
        return_aux=AuxRequest(lse=True),
        scale=scaling,
        window_size=(-1, 0) if causal else (-1, -1),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output, sums


def build_levels(segments: Sequence[Segment], device: torch.device, varlen: Varlen) -> Levels | None:
    """Return the levels of a tree's segments, each followed by all that is below it; None for more than MAX_LEVELS."""
    depths, below = _depths(segments), _ends_below(segments)
    if not segments or max(depths) >= MAX_LEVELS:
        return None
    own = [(segment.begin, segment.end) for segment in segments]
    runs = [(own, own)]
    for depth in range(max(depths)):
        parents = [i for i in range(len(segments)) if depths[i] == depth and below[i] > segments[i].end]
        runs.append(([(segments[i].end, below[i]) for i in parents], [own[i] for i in parents]))
    first, *above = _to_levels(runs, device)
    # cuDNN's kernel is causal only where queries and keys have the very same ends.
    return Levels(replace(first, key_ends=first.query_ends), above, varlen)


_Runs = Sequence[tuple[int, int]]
"""Runs of adjacent tokens: where each begins and ends."""


def _depths(segments: Sequence[Segment]) -> list[int]:
    depths: list[int] = []
    for segment in segments:
        depths.append(depths[segment.parent] + 1 if segment.parent >= 0 else 0)
    return depths


def _ends_below(segments: Sequence[Segment]) -> list[int]:
    """Return where the last of the tokens below each segment ends; its own end where there are none."""
    ends = [segment.end for segment in segments]
    for index in range(len(segments) - 1, -1, -1):
        parent = segments[index].parent
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[index])
    return ends


def _to_levels(runs: Sequence[tuple[_Runs, _Runs]], device: torch.device) -> list[Level]:
    """Return a level for each pair of queries and keys; all indices are copied to the device at once."""
    sides = [side for pair in runs for side in pair]
    lengths = [np.array([end - begin for begin, end in side]) for side in sides]
    places = [_places(side) for side in sides]
    ends = [np.concatenate([[0], count.cumsum()]) for count in lengths]
    tensors = to_device([*ends, *(place for place in places if not isinstance(place, slice))], device)
    listed = iter(tensors[len(ends) :])
    on_device = [place if isinstance(place, slice) else next(listed) for place in places]
    return [
        Level(
            queries=on_device[i],
            keys=on_device[i + 1],
            query_ends=tensors[i].int(),
            key_ends=tensors[i + 1].int(),
            most_queries=int(lengths[i].max()),
            most_keys=int(lengths[i + 1].max()),
        )
        for i in range(0, len(sides), 2)
    ]


def _places(runs: _Runs) -> slice | NDArray[np.int64]:
    """Return the tokens of some runs, as a slice where one run follows the other."""
    if all(before[1] == after[0] for before, after in pairwise(runs)):
        return slice(runs[0][0], runs[-1][1])
    return np.concatenate([np.arange(begin, end) for begin, end in runs])
