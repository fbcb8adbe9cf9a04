from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unimoe.core.trec import head
from unimoe.retrieval.dense import search

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 60), st.integers(1, 40))
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(SHAPES, SEEDS, st.integers(1, 70), st.integers(1, 4000), st.booleans())
def test_the_run_does_not_depend_on_blocks_or_backend(
    shape: tuple[int, int, int], seed: int, k: int, block_bytes: int, exclude_self: bool
) -> None:
    count, rows, width = shape
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((count, width), dtype=np.float32)
    vectors = rng.standard_normal((rows, width), dtype=np.float32)[rng.integers(0, rows, rows)]  # some rows twice
    ids = [str(number) for number in rng.permutation(1000)[:rows]]
    query_ids = [str(number) for number in rng.permutation(1000)[:count]]

    def found(**how: object) -> list[tuple[str, list[tuple[str, float]]]]:
        run = search(queries, query_ids, vectors, ids, k, exclude_self=exclude_self, longest=20, **how)  # type: ignore[arg-type]
        return [(key, list(scores.items())) for key, scores in run.items()]

    whole = found()
    assert found(block_bytes=block_bytes) == whole
    assert found(backend="faiss", block_bytes=block_bytes) == whole


@settings(max_examples=60)
@given(SHAPES, SEEDS, st.integers(1, 70), st.integers(1, 2000), st.booleans())
def test_small_whole_numbers_are_ranked_as_trec_eval_ranks_them(
    shape: tuple[int, int, int], seed: int, k: int, block_bytes: int, exclude_self: bool
) -> None:
    """Their products are exact, and most scores tie."""
    count, rows, width = shape
    rng = np.random.default_rng(seed)
    queries = rng.integers(-1, 2, (count, width)).astype(np.float32)
    vectors = rng.integers(-1, 2, (rows, width)).astype(np.float32)
    ids = [str(number) for number in range(rows)]
    query_ids = [str(number) for number in range(0, 2 * count, 2)]
    run = search(queries, query_ids, vectors, ids, k, block_bytes=block_bytes, exclude_self=exclude_self, longest=7)
    for query_id, scores in zip(query_ids, (queries @ vectors.T).tolist(), strict=True):
        every = dict(zip(ids, scores, strict=True))
        if exclude_self:
            every.pop(query_id, None)
        assert list(run[query_id].items()) == list(head(every, k).items())
