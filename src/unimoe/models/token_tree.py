"""Token trees: a beginning that several sequences share is held once and computed once.

A reranker's prompts for one query begin alike: the same instruction and query, or the same instruction and document. A
batch of them is packed into one row without padding, as segments: each continues its parent, and its tokens see the
tokens of its ancestors and their own past, as in the sequence alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_SHARED = 8
"""Shared tokens from which a segment pays."""


@dataclass(frozen=True)
class Segment:
    """A run of tokens that one or more sequences share, from ``begin`` to before ``end`` in the packed row."""

    parent: int  # the segment that it continues; -1 where sequences begin
    begin: int
    end: int
    member: int  # one of the sequences that share it; -1 for filling


@dataclass(frozen=True)
class TokenTree:
    """N sequences in one packed row of T tokens, parents before children."""

    ids: list[int]
    positions: list[int]  # of each token in its sequences, from 0
    segments: list[Segment]
    last: list[int]  # places of the N sequences' last tokens in the row; no two sequences share one


def build_tree(sequences: Sequence[list[int]]) -> TokenTree:
    """Pack sequences of token ids, none of them empty, into a tree."""
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    shared = [0, *(_shared(sequences[a], sequences[b]) for a, b in pairwise(order)), 0]
    tree = TokenTree([], [], [], [0] * len(sequences))

    def append(member: int, begin: int, end: int, parent: int) -> None:
        place = len(tree.ids)
        tree.ids.extend(sequences[member][begin:end])
        tree.positions.extend(range(begin, end))
        tree.segments.append(Segment(parent, place, len(tree.ids), member))

    # Ranges of ``order`` whose sequences share their first ``depth`` tokens, which the tree holds.
    pending = [(0, len(order), 0, -1)] if order else []
    while pending:
        low, high, depth, parent = pending.pop()
        if high - low == 1:
            append(order[low], depth, len(sequences[order[low]]), parent)
            tree.last[order[low]] = len(tree.ids) - 1
            continue
        common = min(shared[low + 1 : high])
        if common >= depth + MIN_SHARED:
            append(order[low], depth, common, parent)
            depth, parent = common, len(tree.segments) - 1
        cuts = [low, *(i for i in range(low + 1, high) if shared[i] < depth + MIN_SHARED), high]
        pending.extend((a, b, depth, parent) for a, b in reversed(list(pairwise(cuts))))
    return tree


def with_filling(tree: TokenTree, count: int) -> TokenTree:
    """Return a tree with so many more tokens, which belong to no sequence."""
    if not count:
        return tree
    end = len(tree.ids)
    filling = Segment(-1, end, end + count, -1)
    return TokenTree(tree.ids + [0] * count, [*tree.positions, *range(count)], [*tree.segments, filling], tree.last)


def places(tree: TokenTree) -> list[NDArray[np.int64]]:
    """Return for each sequence where its tokens are in the packed row."""
    begins = np.array([segment.begin for segment in tree.segments])
    return [path(tree.segments, int(np.searchsorted(begins, last, "right")) - 1) for last in tree.last]


def path(segments: Sequence[Segment], index: int) -> NDArray[np.int64]:
    """Return the places of the tokens of a segment and all its ancestors, from the first on; none for index -1."""
    found: list[NDArray[np.int64]] = []
    while index >= 0:
        found.append(np.arange(segments[index].begin, segments[index].end))
        index = segments[index].parent
    return np.concatenate([*reversed(found)]) if found else np.arange(0)


def plan_trees(sequences: Sequence[list[int]], token_budget: int, batch_size: int | None = None) -> list[list[int]]:
    """Group the indices of sequences, none empty, into batches for ``build_tree``, those that begin alike together.

    A batch holds ``batch_size`` sequences, else a tree of ``token_budget`` tokens or one longer sequence. It depends on
    the token ids alone; equal sequences keep their order.
    """
    entries = list(_entries(sequences))
    batches, begin = [], 0
    while begin < len(entries):
        end = begin + batch_size if batch_size else _batch_end(entries, begin, token_budget)
        batches.append([entry.number for entry in entries[begin:end]])
        begin = end
    return batches


def tree_tokens(sequences: Sequence[list[int]]) -> int:
    """Return the tokens to compute if every shared beginning is computed once: the minimum of any batching."""
    return sum(entry.length - entry.shared for entry in _entries(sequences))


class _Entry(NamedTuple):
    """A sequence in sorted order, and how many tokens it shares with the one before."""

    number: int
    shared: int
    length: int


def _entries(sequences: Sequence[list[int]]) -> Iterator[_Entry]:
    before: list[int] = []
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[index]
        shared = _shared(before, sequence) if before else 0
        yield _Entry(index, shared if shared >= MIN_SHARED else 0, len(sequence))
        before = sequence


def _batch_end(entries: Sequence[_Entry], begin: int, token_budget: int) -> int:
    """Return where to end a batch: tokens shared across its end are computed twice, so groups are seldom cut."""
    tokens = [entries[begin].length]
    for entry in entries[begin + 1 :]:
        if tokens[-1] + entry.length - entry.shared > token_budget:
            break
        tokens.append(tokens[-1] + entry.length - entry.shared)
    else:
        return len(entries)
    return min(
        range(begin + len(tokens), begin, -1),
        key=lambda end: (entries[end].shared + MIN_SHARED) / tokens[end - begin - 1],
    )


def _shared(first: list[int], second: list[int]) -> int:
    """Return how many first tokens two sequences share, without the last token of either."""
    low, high = 0, min(len(first), len(second)) - 1
    while low < high:  # comparing slices is quicker than comparing tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low
