"""Vectors of other sizes against sentence-transformers and FAISS, and a search by bits and int8 worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.quantization import _dequantize_embeddings, quantize_embeddings
from support.tiny_encoders import save_tiny_encoder

from unimoe.config import DenseConfig
from unimoe.retrieval.dense import EmbeddedCollection
from unimoe.retrieval.embeddings import Embedded
from unimoe.retrieval.sizes import Size, cut, nearest_by_hamming, packed, search_size

Floats = NDArray[np.float32]


def unit(rows: Any) -> Floats:
    found = np.asarray(rows, dtype=np.float32)
    normed: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
    return normed


def random_unit(rows: int, dims: int, seed: int) -> Floats:
    return unit(np.random.default_rng(seed).standard_normal((rows, dims)))


def embedded(queries: Floats, documents: Floats) -> EmbeddedCollection:
    ids = [f"d{row:03}" for row in range(len(documents))]
    return EmbeddedCollection(
        [f"q{i}" for i in range(len(queries))], queries, Embedded(ids, documents), torch.device("cpu")
    )


def rankings(size: Size, held: EmbeddedCollection, **settings: Any) -> list[list[int]]:
    run, _ = search_size(size, held, DenseConfig(cutoffs=[1], **settings))
    return [[int(key[1:]) for key in run[query_id]] for query_id in held.query_ids]


def test_cut_vectors_are_those_that_the_library_truncates_and_normalises(tmp_path: Path) -> None:
    texts = ["a heron", "the tide and the moon", "rain", "red fox den"]
    theirs = SentenceTransformer(str(save_tiny_encoder(tmp_path / "encoder")), device="cpu")
    for normalised in (True, False):
        whole = theirs.encode(texts, normalize_embeddings=normalised)
        for dims in (1, 8, whole.shape[1]):
            expected = theirs.encode(texts, truncate_dim=dims, normalize_embeddings=normalised)
            assert cut(whole, dims, unit=normalised) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dims", [None, 20, 7])
def test_int8_ranks_by_what_the_library_makes_of_the_vectors(dims: int | None) -> None:
    queries, documents = random_unit(8, 24, 0), random_unit(300, 24, 1)
    asked, held = (unit(vectors[:, :dims]) for vectors in (queries, documents))
    ranges = np.stack([held.min(axis=0), held.max(axis=0)])
    quantised = np.asarray(quantize_embeddings(held, "int8", ranges=ranges))
    theirs = _dequantize_embeddings(quantised, "int8", ranges)
    run, index = search_size(Size(dims, "int8"), embedded(queries, documents), DenseConfig(depth=300, cutoffs=[1]))
    assert (index.bytes_per_vector, index.documents) == (dims or 24, 300)
    for own, scores in zip(asked @ theirs.T, run.values(), strict=True):
        shifts = [own[int(key[1:])] - score for key, score in scores.items()]
        assert len(shifts) == 300
        assert shifts == pytest.approx([shifts[0]] * 300, abs=2e-6), "a constant of the query"


@pytest.mark.parametrize("dims", [24, 64, 100])
def test_hamming_distances_are_those_of_faiss(dims: int) -> None:
    faiss = pytest.importorskip("faiss")
    queries, documents = (packed(random_unit(rows, dims, rows)) for rows in (6, 200))
    index = faiss.IndexBinaryFlat(8 * documents.shape[1])
    index.add(documents)
    distances, _ = index.search(queries, 30)
    rows = nearest_by_hamming(queries, documents, 30)
    ours = np.bitwise_count(documents[rows] ^ queries[:, None]).sum(axis=-1)
    assert ours.tolist() == distances.tolist()


@given(*(strategies.integers(1, most) for most in (9, 60, 140, 70, 2**32)))
def test_bits_are_ranked_by_the_number_that_differs_and_ties_by_row(
    count: int, rows: int, width: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    queries, documents = (rng.integers(-1, 2, (number, width)).astype(np.float32) for number in (count, rows))
    found = nearest_by_hamming(packed(queries), packed(documents), k)
    for query, nearest in zip(queries > 0, found.tolist(), strict=True):
        distances = [int((query != document).sum()) for document in documents > 0]
        assert nearest == sorted(range(rows), key=lambda row: (distances[row], -row))[:k]


def test_bits_choose_and_int8_ranks_by_hand() -> None:
    """The query is (.8, .6), bits 11. Ranges of the corpus are -.6 to 1 and -.8 to 1; a step is a 255th of them.

    Distances of the documents 0 to 4 are 0, 1, 1, 2, 0: two candidates are 0 and 4, although document 1, with one bit
    wrong, is nearer to the query than 0 (.8 against .6). Four candidates hold it; of equal distances the higher row
    comes first.
    """
    documents = unit([[0.0001, 1], [1, -0.0001], [-0.0001, 1], [-0.6, -0.8], [0.6, 0.8]])
    held = embedded(unit([[0.8, 0.6]]), documents)
    assert nearest_by_hamming(packed(held.queries), packed(documents), 4).tolist() == [[4, 0, 2, 1]]
    assert rankings(Size(None, "float32"), held, depth=2) == [[4, 1]]
    for rescore in ("int8", "float32"):
        assert rankings(Size(None, "binary"), held, depth=1, rescore=rescore, rescore_multiplier=2) == [[4]]
        assert rankings(Size(None, "binary"), held, depth=2, rescore=rescore, rescore_multiplier=2) == [[4, 1]]
        assert rankings(Size(None, "binary"), held, depth=2, rescore=rescore, rescore_multiplier=1) == [[4, 0]]
    _, index = search_size(Size(None, "binary"), held, DenseConfig(depth=2, cutoffs=[1]))
    assert (index.dims, index.precision, index.bytes_per_vector) == (2, "binary", 1)


def test_all_candidates_ranked_again_are_the_ranking_of_their_precision() -> None:
    held = embedded(random_unit(5, 32, 2), random_unit(90, 32, 3))
    for dims in (None, 16):
        assert rankings(Size(dims, "binary"), held, depth=10, rescore_multiplier=9) == rankings(
            Size(dims, "int8"), held, depth=10
        )
        whole = rankings(Size(dims, "binary"), held, depth=10, rescore_multiplier=9, rescore="float32")
        assert whole == rankings(Size(dims, "float32"), held, depth=10)
