"""Searches vectors of other sizes that come from one encoding: cut to their first dimensions, int8, and bits.

float32         the cut vectors, scaled to unit length again where the whole ones have it
int8            a byte a dimension, by the corpus's range of each; a float query is compared with all of them
binary          a bit a dimension; Hamming distance chooses candidates, which the float query ranks by int8 or float32

Quantisation is that of sentence-transformers. The scores of int8 lack a constant of the query, which no rank shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unimoe.config import DenseConfig
from unimoe.config.base import Precision
from unimoe.core.errors import UsageError
from unimoe.core.trec import Run
from unimoe.results import VectorIndex
from unimoe.retrieval.dense import Corpus, EmbeddedCollection, RowNumbers

_BLOCK = 2**16
"""Rows that are cut and quantised at a time."""


@dataclass(frozen=True)
class Size:
    """The first ``dims`` dimensions of vectors, all of them where None, at a precision."""

    dims: int | None = None
    precision: Precision = "float32"

    @property
    def name(self) -> str:
        """What the name of a system has behind its model's, such as ``d128-int8``."""
        return self.precision if self.dims is None else f"d{self.dims}-{self.precision}"


FULL = Size()
"""The vectors as they are kept."""


def sizes_of(config: DenseConfig, width: int | None) -> list[Size]:
    """Return the sizes that a config asks for with the full one; ``width`` is the model's, None where not known."""
    for dims in config.dims:
        _refuse_wider(dims, width)
    widths: list[int | None] = [*config.dims] or [None]
    product = (Size(dims, precision) for dims in widths for precision in config.precisions)
    return [size for size in dict.fromkeys(product) if size not in (FULL, Size(width))]


def search_size(size: Size, embedded: EmbeddedCollection, config: DenseConfig) -> tuple[Run, VectorIndex]:
    """Find the documents nearest to each query by vectors of a size, as ``dense.search``, and say what they take."""
    queries, vectors, bits = embedded.queries, embedded.documents.vectors, None
    dims = size.dims or vectors.shape[1]
    _refuse_wider(dims, vectors.shape[1])
    if size != FULL:
        queries, vectors, bits = _of_size(size, dims, queries, vectors, config.rescore)
    start = time.perf_counter()  # the vectors are in memory now
    left_out = max(map(len, embedded.excluded.values()), default=0)
    wanted, starts = config.depth * config.rescore_multiplier + left_out, embedded.documents.starts
    found = None if bits is None else nearest_by_hamming(*bits, wanted, starts)
    sized = replace(embedded, queries=queries, documents=replace(embedded.documents, vectors=vectors))
    run = sized.nearest(config, candidates=found)
    milliseconds = 1000 * (time.perf_counter() - start) / max(1, len(queries))
    width = vectors.itemsize * dims if bits is None else bits[1].shape[1]
    precision = str(vectors.dtype) if bits is None else "binary"
    return run, VectorIndex(
        dims=dims, precision=precision, bytes_per_vector=width, documents=len(vectors), search_ms=milliseconds
    )


def _of_size(
    size: Size, dims: int, queries: NDArray[np.float32], vectors: Corpus, rescore: Precision
) -> tuple[NDArray[np.float32], Corpus, tuple[NDArray[np.uint8], NDArray[np.uint8]] | None]:
    """Return queries and documents to be compared by products, and the bits of both if wanted.

    An int8 value v stands for ``v * step`` and a constant of its dimension, so the query takes the step.
    """
    from sentence_transformers.util.quantization import quantize_embeddings

    unit = bool(np.allclose(np.linalg.norm(queries, axis=1), 1.0, atol=1e-3))

    def blocks() -> Iterator[NDArray[np.float32]]:
        for begin in range(0, len(vectors), _BLOCK):
            yield cut(vectors[begin : begin + _BLOCK], dims, unit=unit)

    asked, bits = cut(queries, dims, unit=unit), None
    if size.precision == "binary":
        bits = packed(asked), np.concatenate([packed(block) for block in blocks()])
    if (rescore if bits else size.precision) == "float32":
        return asked, np.concatenate([*blocks()]), bits
    ends = [(block.min(axis=0), block.max(axis=0)) for block in blocks()]
    ranges = np.stack([np.min([low for low, _ in ends], axis=0), np.max([high for _, high in ends], axis=0)])
    held = np.concatenate([quantize_embeddings(block, "int8", ranges=ranges) for block in blocks()])
    return asked * ((ranges[1] - ranges[0]) / 255), held, bits


def cut(vectors: Corpus, dims: int, *, unit: bool) -> NDArray[np.float32]:
    """Return the first dimensions of vectors, of ``unit`` length again where asked; one of zeros stays as it is."""
    part = np.array(vectors[:, :dims], dtype=np.float32)
    if unit:
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return part


def packed(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a bit for each dimension, 1 where it is positive: ``(N, D)`` floats to ``(N, ceil(D / 8))`` bytes."""
    return np.packbits(vectors > 0, axis=1)


def nearest_by_hamming(
    queries: NDArray[np.uint8], documents: NDArray[np.uint8], k: int, starts: RowNumbers | None = None
) -> RowNumbers:
    """Return for each query the places of the ``k`` documents with the fewest other bits, ``(Q, k)``, nearest first.

    Of equal distances the later document comes first; there are as many columns as documents where these are fewer.
    ``starts`` has the first row of each document where some have several, the nearest of which counts.
    """
    # Words of 64 bits, filled up with zeros.
    asked, held = (np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64) for bits in (queries, documents))
    count = len(held if starts is None else starts)
    places, k = np.arange(count)[::-1], min(k, count)
    found = np.empty((len(asked), k), dtype=np.int64)
    for row, own in enumerate(asked):
        distances = np.bitwise_count(held ^ own).sum(axis=1, dtype=np.int64)
        if starts is not None:
            distances = np.minimum.reduceat(distances, starts)
        order = distances * count + places  # no two are equal
        nearest = np.argpartition(order, k - 1)[:k]
        found[row] = nearest[np.argsort(order[nearest])]
    return found


def _refuse_wider(dims: int, width: int | None) -> None:
    if width is not None and dims > width:
        raise UsageError(f"retrieval.dims {dims} (--dims): the model's vectors have {width} dimensions; use fewer")
