from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run
from unimoe.retrieval.dense import Backend, search

Floats = NDArray[np.float32]
both_backends = pytest.mark.parametrize("backend", ["torch", "faiss"])
pytestmark = pytest.mark.usefixtures("one_thread")


def random_vectors(rows: int, width: int, seed: int) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def names(what: str, count: int) -> list[str]:
    return [f"{what}{number:05d}" for number in range(count)]


def brute_force(
    queries: Floats, vectors: NDArray[np.floating], ids: list[str], k: int
) -> list[list[tuple[str, float]]]:
    """Every product in float64, rounded to float32; ties by id descending."""
    runs = []
    for query in queries.astype(np.float64):
        scores = [float(np.float32((query * row).sum())) for row in vectors.astype(np.float64)]
        best = sorted(zip(scores, ids, strict=True), reverse=True)[:k]
        runs.append([(key, score) for score, key in best])
    return runs


def in_order(run: Run) -> list[list[tuple[str, float]]]:
    return [list(found.items()) for found in run.values()]


@both_backends
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_the_run_is_that_of_brute_force(backend: Backend, storage: str) -> None:
    queries, vectors = random_vectors(7, 48, 0), random_vectors(3000, 48, 1).astype(storage)
    ids, query_ids = names("d", 3000), names("q", 7)
    run = search(queries, query_ids, vectors, ids, 50, backend=backend, block_bytes=48 * 4 * 700)
    assert list(run) == query_ids
    assert in_order(run) == brute_force(queries, vectors, ids, 50)
    assert all(type(score) is float for score in run["q00000"].values())


def test_long_vectors_of_nearly_equal_scores_are_those_of_brute_force() -> None:
    """Their float32 products err by far more than those of unit length."""
    queries, noise = random_vectors(2, 512, 0), random_vectors(400, 512, 1)
    vectors = (1e4 * (queries[:1] + 1e-6 * noise)).astype(np.float32)
    ids = names("d", 400)
    found = search(queries, ["a", "b"], vectors, ids, 5, block_bytes=512 * 4 * 50)
    assert in_order(found) == brute_force(queries, vectors, ids, 5)


@both_backends
@pytest.mark.parametrize("ids", [["d1", "d10", "d2", "d9", "e"], ["d9", "d2", "e", "d1", "d10"]])
def test_ties_break_by_id_descending_also_at_the_cut(backend: Backend, ids: list[str]) -> None:
    vectors = np.array([[0, 1] if key == "e" else [1, 0] for key in ids], dtype=np.float32)
    for k in range(1, 6):
        found = search(np.array([[2, 1]], dtype=np.float32), ["q"], vectors, ids, k, backend=backend, block_bytes=16)
        assert list(found["q"].items()) == [("d9", 2.0), ("d2", 2.0), ("d10", 2.0), ("d1", 2.0), ("e", 1.0)][:k]


@both_backends
def test_self_matches_go_before_the_cut(backend: Backend) -> None:
    vectors, ids = random_vectors(40, 8, 0), names("d", 40)
    query_ids = [*ids[:5], "elsewhere"]
    kept = search(vectors[:6], query_ids, vectors, ids, 3, backend=backend)
    assert all(next(iter(kept[key])) == key for key in ids[:5])
    without = search(vectors[:6], query_ids, vectors, ids, 3, backend=backend, exclude_self=True, block_bytes=8 * 4 * 7)
    longer = search(vectors[:6], query_ids, vectors, ids, 4, backend=backend)
    for key in ids[:5]:
        assert list(without[key].items()) == list(longer[key].items())[1:]
    assert without["elsewhere"] == kept["elsewhere"]
    alone = search(vectors[:1], ids[:1], vectors[:1], ids[:1], 1, backend=backend, exclude_self=True)
    assert alone == {ids[0]: {}}


def test_vectors_that_are_not_finite_are_named() -> None:
    queries, vectors = random_vectors(3, 8, 0), random_vectors(30, 8, 1)
    for value in (np.nan, np.inf, -np.inf):
        spoilt = vectors.copy()
        spoilt[17, 2] = value
        with pytest.raises(DataError, match="document 'd00017': its vector is not finite"):
            search(queries, names("q", 3), spoilt, names("d", 30), 5, block_bytes=8 * 4 * 4)
        wrong = queries.copy()
        wrong[1, 0] = value
        with pytest.raises(DataError, match="query 'q00001': its vector is not finite"):
            search(wrong, names("q", 3), vectors, names("d", 30), 5)


def test_without_faiss_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match="uv sync --extra faiss"):
        search(random_vectors(1, 8, 0), ["q"], random_vectors(4, 8, 1), names("d", 4), 1, backend="faiss")
