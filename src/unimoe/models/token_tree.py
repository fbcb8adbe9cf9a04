"""Token trees: what sequences have in common at their beginning stands once, and is computed once.

Reranking asks a hundred questions that begin alike: the same instruction and query, or the same instruction and
document. A batch of them is packed into one row without padding, as segments: each continues its parent, and its tokens
see the parents' tokens and their own past, exactly as in the sequence alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MIN_SHARED = 8
"""Fewer tokens than these are not worth a segment of their own."""


@dataclass(frozen=True)
class Segment:
    """A run of tokens that one or more sequences share.

    Attributes:
        parent: index of the segment it continues; -1 where sequences begin.
        begin: where it begins in the packed row.
        end: where it ends there, exclusive.
    """

    parent: int
    begin: int
    end: int


@dataclass(frozen=True)
class TokenTree:
    """N sequences in one packed row of T tokens, parents before children.

    Attributes:
        ids: T token ids.
        positions: place of each in its sequences, from 0.
        segments: the runs of the row, in order.
        last: N indices into the row: the last token of each sequence, which no two sequences share.
    """

    ids: list[int]
    positions: list[int]
    segments: list[Segment]
    last: list[int]


def build_tree(sequences: Sequence[list[int]]) -> TokenTree:
    """Pack sequences of token ids, none of them empty; the tree depends on their tokens and order alone."""
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    shared = [0, *(_shared(sequences[a], sequences[b]) for a, b in pairwise(order)), 0]
    tree = TokenTree([], [], [], [0] * len(sequences))
    # Ranges of ``order`` whose sequences share their first ``depth`` tokens, which stand in the tree already.
    pending = [(0, len(order), 0, -1)] if order else []
    while pending:
        low, high, depth, parent = pending.pop()
        if high - low == 1:
            _append(tree, sequences[order[low]], depth, len(sequences[order[low]]), parent)
            tree.last[order[low]] = len(tree.ids) - 1
            continue
        common = min(shared[low + 1 : high])
        if common >= depth + MIN_SHARED:
            _append(tree, sequences[order[low]], depth, common, parent)
            depth, parent = common, len(tree.segments) - 1
        cuts = [low, *(i for i in range(low + 1, high) if shared[i] < depth + MIN_SHARED), high]
        pending.extend((a, b, depth, parent) for a, b in reversed(list(pairwise(cuts))))
    return tree


def plan_trees(sequences: Sequence[list[int]], token_budget: int, batch_size: int | None = None) -> list[list[int]]:
    """Indices grouped into batches for ``build_tree``: sequences that begin alike stand together.

    Args:
        sequences: token ids, none empty.
        token_budget: tokens of a tree; a single longer sequence is a batch of its own.
        batch_size: sequences of a tree, instead of the budget.

    Returns:
        Every index exactly once. Depends on the token ids alone, ties in the order given.
    """
    entries = list(_entries(sequences))
    batches, begin = [], 0
    while begin < len(entries):
        end = begin + batch_size if batch_size else _batch_end(entries, begin, token_budget)
        batches.append([entry.number for entry in entries[begin:end]])
        begin = end
    return batches


def tree_tokens(sequences: Sequence[list[int]]) -> int:
    """Tokens that are left to compute when all shared beginnings stand once: the floor of any batching."""
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
    """Where a batch ends best: what is shared across its end is computed twice, so that a group is seldom cut."""
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
    """Tokens two sequences share at their beginning, the last token of either left to itself."""
    limit = min(len(first), len(second)) - 1
    low, high = 0, limit
    while low < high:  # comparing slices is quicker than comparing tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def _append(tree: TokenTree, sequence: list[int], begin: int, end: int, parent: int) -> None:
    place = len(tree.ids)
    tree.ids.extend(sequence[begin:end])
    tree.positions.extend(range(begin, end))
    tree.segments.append(Segment(parent, place, len(tree.ids)))
