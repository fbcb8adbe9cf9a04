"""Token trees, in which a beginning that several sequences share is held and computed once.

A reranker's prompts for one query begin alike: the same instruction and query, or the same instruction and document. A
batch of them is packed into one row without padding. Sorted by their tokens, each sequence adds what it does not share
with the one before; its tokens see those of its own path, as in the sequence alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_SHARED = 8
"""Shared tokens from which a branch pays."""


@dataclass(frozen=True)
class TokenTree:
    """N sequences in one packed row of T tokens.

    The row goes down each branch before the next, so what continues a token is all in one piece behind it.
    """

    ids: list[int]
    positions: list[int]  # of each token in its sequences, from 0
    ends: NDArray[np.int64]  # (T,), the place before which all tokens that continue a token are
    paths: list[NDArray[np.int64]]  # of each of the N sequences, the places of its tokens; no two share the last one
    parts: list[tuple[int, int]]  # in the row's order: a sequence, and how many of its first tokens were there before

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.paths))


def build_tree(sequences: Sequence[list[int]]) -> TokenTree:
    """Pack sequences of token ids, none of them empty, into a tree."""
    tree = TokenTree([], [], np.zeros(tree_tokens(sequences), np.int64), [np.arange(0)] * len(sequences), [])
    path = np.arange(0)
    for number, shared, length in _entries(sequences):
        begin = len(tree.ids)
        tree.ends[path[shared:]] = begin  # the branch before ends here
        tree.ids.extend(sequences[number][shared:])
        tree.positions.extend(range(shared, length))
        tree.parts.append((number, shared))
        path = tree.paths[number] = np.concatenate([path[:shared], np.arange(begin, len(tree.ids))])
    tree.ends[path] = len(tree.ids)
    return tree


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
    """Return the tokens of a tree of sequences: the fewest of any batches, since what is shared is computed once."""
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
