"""Token trees and the plans of batches, on random sequences."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unimoe.models.batching import plan_padded
from unimoe.models.token_tree import build_tree, plan_trees, tree_tokens

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
LENGTHS = st.lists(st.integers(0, 600) | st.integers(0, 8), max_size=60)
BUDGETS = st.integers(1, 4000)
SIZES = st.none() | st.integers(1, 20)


@given(SEQUENCES)
def test_every_sequence_is_read_along_its_path_and_sees_what_is_before_on_it(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences)
    row = np.arange(len(tree.ids))
    assert len(row) == len(tree.positions) == len(tree.ends) == tree_tokens(sequences) <= sum(map(len, sequences))
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert [tree.ids[place] for place in path] == sequence
        assert [tree.positions[place] for place in path] == list(range(len(sequence)))
        for count, place in enumerate(path, start=1):
            assert np.flatnonzero((row <= place) & (place < tree.ends)).tolist() == path[:count].tolist()
    assert len({int(path[-1]) for path in tree.paths}) == len(sequences)  # nobody else's last token
    assert [token for member, shared in tree.parts for token in sequences[member][shared:]] == tree.ids


@given(SEQUENCES, st.integers(1, 400), SIZES, st.randoms(use_true_random=False))
def test_a_plan_of_trees_keeps_neighbours_together_within_its_budget(
    sequences: list[list[int]], budget: int, size: int | None, random: Random
) -> None:
    batches = plan_trees(sequences, budget, size)
    order = [index for batch in batches for index in batch]
    assert order == sorted(range(len(sequences)), key=lambda index: (sequences[index], index))
    for batch in batches:
        tokens = tree_tokens([sequences[index] for index in batch])
        assert len(batch) <= size if size else len(batch) == 1 or tokens <= budget
    assert all(len(batch) == size for batch in batches[:-1] if size)
    shuffled = random.sample(sequences, len(sequences))
    found = [[shuffled[index] for index in batch] for batch in plan_trees(shuffled, budget, size)]
    assert found == [[sequences[index] for index in batch] for batch in batches]


@given(LENGTHS, BUDGETS, SIZES)
def test_a_plan_of_padded_batches_is_full_and_pads_less_than_half(
    lengths: list[int], budget: int, size: int | None
) -> None:
    batches = plan_padded([[0] * length for length in lengths], budget, size)
    order = [index for batch in batches for index in batch]
    assert order == sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for batch in batches:
        members = [lengths[index] for index in batch]
        assert len(batch) <= size if size else len(batch) == 1 or len(batch) * max(members) <= budget
        assert len(members) * max(members) <= 2 * sum(members)
    for batch, following in pairwise(batches):
        longest, next_length = lengths[batch[0]], lengths[following[0]]
        full = len(batch) == size if size else (len(batch) + 1) * max(1, longest) > budget
        assert full or 2 * next_length < longest
