from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from unimoe.models.token_tree import MIN_SHARED, TokenTree, build_tree, plan_trees, tree_tokens

# Stems that part early, in the middle, late or never, strung together: beginnings of all lengths are shared.
STEMS = [[1] * 9, [1] * 9 + [2], [1, 2] * 4, [1, 2] * 4 + [3] * 20, [2], [2] * 30]
SEQUENCES = st.lists(
    st.builds(
        lambda stems, tail: [token for stem in stems for token in stem] + tail,
        st.lists(st.sampled_from(STEMS), max_size=5),
        st.lists(st.integers(1, 2), min_size=1, max_size=12),
    ),
    max_size=25,
)
BUDGETS = st.integers(1, 400)
SIZES = st.none() | st.integers(1, 10)

REPEATED = MIN_SHARED - 1
"""Tokens at most that a sequence shares with the one before and repeats, as too few for a segment. Of the N - 1 that
have one before, at least one repeats nothing: it shares just what the segment above it holds."""


def spelled(tree: TokenTree, last: int) -> tuple[list[int], list[int]]:
    """Token ids and positions of the sequence that ends at ``last``, read from there to the root."""
    (index,) = (i for i, segment in enumerate(tree.segments) if segment.begin <= last < segment.end)
    assert last == tree.segments[index].end - 1
    ids: list[int] = []
    positions: list[int] = []
    while index >= 0:
        segment = tree.segments[index]
        ids = tree.ids[segment.begin : segment.end] + ids
        positions = tree.positions[segment.begin : segment.end] + positions
        index = segment.parent
    return ids, positions


@given(SEQUENCES)
def test_every_sequence_is_read_from_its_last_token_to_the_root(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences)
    for sequence, last in zip(sequences, tree.last, strict=True):
        assert spelled(tree, last) == (sequence, list(range(len(sequence))))


@given(SEQUENCES)
def test_no_two_sequences_share_their_last_token(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences)
    assert len(set(tree.last)) == len(sequences)
    ends = {tree.segments[segment.parent].end - 1 for segment in tree.segments if segment.parent >= 0}
    assert not ends & set(tree.last)  # nothing goes on from there


@given(SEQUENCES)
def test_segments_fill_the_row_parents_first(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences)
    assert [0, *(segment.end for segment in tree.segments)] == [*(s.begin for s in tree.segments), len(tree.ids)]
    assert all(segment.begin < segment.end for segment in tree.segments)
    assert all(segment.parent < index for index, segment in enumerate(tree.segments))


@given(SEQUENCES)
def test_what_goes_on_in_several_ways_is_worth_a_segment(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences)
    inner = {segment.parent for segment in tree.segments} - {-1}
    assert all(tree.segments[index].end - tree.segments[index].begin >= MIN_SHARED for index in inner)


@given(SEQUENCES, st.randoms(use_true_random=False))
def test_the_order_given_changes_neither_tree_nor_batches(sequences: list[list[int]], random: Random) -> None:
    order = random.sample(range(len(sequences)), len(sequences))
    shuffled = [sequences[index] for index in order]
    one, other = build_tree(sequences), build_tree(shuffled)
    assert (one.ids, one.positions) == (other.ids, other.positions)
    assert [replace(s, member=0) for s in one.segments] == [replace(s, member=0) for s in other.segments]
    assert [[sequences[i] for i in batch] for batch in plan_trees(sequences, 60)] == [
        [shuffled[i] for i in batch] for batch in plan_trees(shuffled, 60)
    ]


@given(SEQUENCES)
def test_a_tree_holds_the_floor_of_tokens_and_what_is_too_short_to_share(sequences: list[list[int]]) -> None:
    found, floor = len(build_tree(sequences).ids), tree_tokens(sequences)
    assert floor <= found <= floor + REPEATED * max(0, len(sequences) - 2)
    assert found <= sum(map(len, sequences))


@given(SEQUENCES)
def test_the_floor_counts_what_each_shares_with_the_one_before(sequences: list[list[int]]) -> None:
    ordered = sorted(sequences)
    shared = [common_beginning(one, other) for one, other in pairwise(ordered)]
    assert tree_tokens(sequences) == sum(map(len, sequences)) - sum(n for n in shared if n >= MIN_SHARED)


@given(SEQUENCES, BUDGETS, SIZES)
def test_every_index_stands_in_exactly_one_batch(sequences: list[list[int]], budget: int, size: int | None) -> None:
    batches = plan_trees(sequences, budget, size)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sequences)))
    assert all(batches)
    assert batches == plan_trees(sequences, budget, size)


@given(SEQUENCES, BUDGETS)
def test_no_batch_but_a_single_long_sequence_exceeds_the_budget(sequences: list[list[int]], budget: int) -> None:
    for batch in plan_trees(sequences, budget):
        members = [sequences[index] for index in batch]
        assert len(batch) == 1 or tree_tokens(members) <= budget
        assert len(batch) == 1 or len(build_tree(members).ids) <= budget + REPEATED * (len(batch) - 2)


@given(SEQUENCES, BUDGETS, st.integers(1, 10))
def test_a_batch_size_is_met_by_all_batches_but_the_last(sequences: list[list[int]], budget: int, size: int) -> None:
    batches = plan_trees(sequences, budget, size)
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(len(batch) <= size for batch in batches)


@given(SEQUENCES, BUDGETS, SIZES)
def test_neighbours_in_the_plan_are_neighbours_in_their_tokens(
    sequences: list[list[int]], budget: int, size: int | None
) -> None:
    order = [index for batch in plan_trees(sequences, budget, size) for index in batch]
    assert order == sorted(range(len(sequences)), key=lambda index: (sequences[index], index))


def common_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with, the last of either not counted."""
    limit = min(len(one), len(other)) - 1
    return next((place for place in range(limit) if one[place] != other[place]), limit)
