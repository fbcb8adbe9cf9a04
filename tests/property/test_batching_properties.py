from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from unimoe.models.batching import plan_batches

LENGTHS = st.lists(st.integers(0, 600) | st.integers(0, 8), max_size=60)
BUDGETS = st.integers(1, 4000)
SIZES = st.none() | st.integers(1, 20)


@given(LENGTHS, BUDGETS, SIZES)
def test_every_index_stands_in_exactly_one_batch(lengths: list[int], budget: int, size: int | None) -> None:
    batches = plan_batches(lengths, budget, size)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(batches)


@given(LENGTHS, BUDGETS)
def test_no_batch_but_a_single_long_sequence_exceeds_the_budget(lengths: list[int], budget: int) -> None:
    for batch in plan_batches(lengths, budget):
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


@given(LENGTHS, BUDGETS, SIZES)
def test_less_than_half_of_a_batch_is_padding(lengths: list[int], budget: int, size: int | None) -> None:
    for batch in plan_batches(lengths, budget, size):
        members = [lengths[index] for index in batch]
        assert len(members) * max(members) <= 2 * sum(members)


@given(LENGTHS, BUDGETS, SIZES)
def test_a_batch_ends_only_where_the_next_would_not_fit(lengths: list[int], budget: int, size: int | None) -> None:
    for batch, following in pairwise(plan_batches(lengths, budget, size)):
        longest, next_length = lengths[batch[0]], lengths[following[0]]
        full = len(batch) == size if size else (len(batch) + 1) * max(1, longest) > budget
        assert full or 2 * next_length < longest


@given(LENGTHS, BUDGETS, st.integers(1, 20))
def test_a_batch_size_is_never_exceeded(lengths: list[int], budget: int, size: int) -> None:
    assert all(len(batch) <= size for batch in plan_batches(lengths, budget, size))


@given(LENGTHS, BUDGETS, SIZES)
def test_lengths_fall_from_batch_to_batch_and_ties_keep_their_order(
    lengths: list[int], budget: int, size: int | None
) -> None:
    order = [index for batch in plan_batches(lengths, budget, size) for index in batch]
    assert order == sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
