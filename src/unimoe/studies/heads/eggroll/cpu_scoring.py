"""Scores under every perturbation on a CPU, and what rankings by them earn, from the products of a step.

The closed forms of ``scoring``, one row of a document after the other: products are read once, and nothing but scores
is written. As tensors, each sum and product is a pass over memory. Where only a metric is wanted, the scores of a pool
are counted before those of the next are computed: they never leave the processor's cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.studies.heads.eggroll.counting import Judged, earned_by_pool
from unimoe.studies.heads.eggroll.kernels import machine_code
from unimoe.studies.heads.eggroll.products import DocumentTerms, Products, QueryTerms, Terms

Array = NDArray[np.floating]


class Rows(NamedTuple):
    """Rows in a longer memory.

    Attributes:
        memory: all of it, flat.
        first: where the first row begins.
        apart: how far the rows' beginnings are apart.
    """

    memory: Array
    first: int
    apart: int


class Factors(NamedTuple):
    """What dot products are made of, for b queries with P documents, M independent directions of rank r, or a grid.

    Attributes:
        x: rows ``(b P, r M)``, the first rank of all directions first; of a grid ``(b P, m1)``.
        y: likewise; of a grid ``(b P, m2)``.
        base: scores under the weight itself, ``(b, P)``.
        cx: what y is multiplied with, ``(b, r, M)``; of a grid ``(b, m1)``.
        plus: what x is multiplied with under ``W + sigma E``, ``(b, r, M)``; of a grid ``(b, m1, m2)``.
        minus: under ``W - sigma E``.
    """

    x: Rows
    y: Rows
    base: Array
    cx: Array
    plus: Array
    minus: Array


class Lengths(NamedTuple):
    """What makes cosines of them.

    Attributes:
        squared: ``|W d|^2``, ``(b, P)``.
        gram: ``c^2 K``, ``(r, r, M)``; of a grid ``(m2,)``.
        twice: ``2 c``.
        plus: the queries' squared lengths under ``W + sigma E``, ``(b, M)``; of a grid ``(b, m1, m2)``.
        minus: under ``W - sigma E``.
        eps: share of its squared length below which a document's is rounding error.
        tiny: the least product of squared lengths.
    """

    squared: Array
    gram: Array
    twice: np.floating
    plus: Array
    minus: Array
    eps: np.floating
    tiny: np.floating


def score_on_cpu(products: Products, documents: DocumentTerms, queries: QueryTerms, scores: Tensor) -> None:
    """The scores of a block under every perturbation.

    Args:
        products: of the step.
        documents: the block's.
        queries: the block's.
        scores: ``(b, P, 2, *directions)``, float32 or float64, written.
    """
    factors, lengths = _terms(products, documents, queries)
    (_score_grid if _is_grid(documents) else _score_directions)(factors, lengths, scores.numpy())


def earned_on_cpu(products: Products, documents: DocumentTerms, queries: QueryTerms, judged: Judged) -> Tensor:
    """What the rankings of a block under every perturbation earn.

    Args:
        products: of the step.
        documents: the block's.
        queries: the block's.
        judged: the block's.

    Returns:
        ``(b, 2M)``, float64.
    """
    factors, lengths = _terms(products, documents, queries)
    found = (_earned_on_grid if _is_grid(documents) else _earned_by_directions)(factors, lengths, judged)
    return torch.from_numpy(found)


def _is_grid(documents: DocumentTerms) -> bool:
    return documents.base.ndim == 4


def _terms(products: Products, documents: DocumentTerms, queries: QueryTerms) -> tuple[Factors, Lengths | None]:
    is_grid, pools = _is_grid(documents), documents.base.shape[:2]
    factors = Factors(
        _rows_of(documents.x[0]),
        _rows_of(documents.y[0]),
        documents.base.view(pools).numpy(),
        *(_by_rank(terms, is_grid) for terms in (queries.cx, queries.plus, queries.minus)),
    )
    if documents.squared is None:
        return factors, None
    gram = products.gram[0][0] if is_grid else torch.stack([torch.stack(row) for row in products.gram])
    kind, limits = factors.base.dtype.type, torch.finfo(documents.base.dtype)
    plus, minus = (length.squeeze(1).numpy() for length in queries.lengths)
    squared, twice = documents.squared.view(pools).numpy(), kind(products.twice)
    return factors, Lengths(squared, gram.numpy(), twice, plus, minus, kind(limits.eps), kind(limits.tiny))


def _rows_of(products: Tensor) -> Rows:
    """The rows of products ``(b, P, ...)`` of the first rank; those of other ranks lie behind them."""
    entries = products.untyped_storage().nbytes() // products.element_size()
    memory: Array = products.as_strided((entries,), (1,), 0).numpy()
    return Rows(memory, int(products.storage_offset()), products.stride(1))


def _by_rank(terms: Terms, is_grid: bool) -> Array:
    """Terms of queries as ``(b, r, M)``, or a grid's, whose rank is 1, as ``(b, m1)`` or ``(b, m1, m2)``."""
    if is_grid:
        return terms[0].squeeze(-1).squeeze(1).contiguous().numpy()
    return (terms[0] if len(terms) == 1 else torch.cat(terms, dim=1)).numpy()


@machine_code
def _score_directions(factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Scores ``(b, P, 2, M)`` of b pools."""
    for query in range(len(scores)):
        _score_pool(query, factors, lengths, scores[query])


@machine_code
def _earned_by_directions(factors: Factors, lengths: Lengths | None, judged: Judged) -> NDArray[np.float64]:
    """What the rankings of b pools earn, ``(b, 2M)``."""
    (queries, size), count = factors.base.shape, factors.cx.shape[2]
    scores = np.empty((size, 2, count), factors.base.dtype)
    found, ahead = np.zeros((queries, 2 * count)), np.empty(2 * count, np.int32)
    for query in range(queries):
        if judged.ends[query + 1] > judged.ends[query]:
            _score_pool(query, factors, lengths, scores)
            earned_by_pool(query, scores.reshape(size, 2 * count), judged, ahead, found[query])
    return found


@machine_code
def _score_pool(query: int, factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Scores ``(P, 2, M)`` of one pool under independent directions."""
    size, _, count = scores.shape
    for place in range(size):
        up, down, level = scores[place, 0], scores[place, 1], factors.base[query, place]
        for rank in range(factors.cx.shape[1]):
            x = _row(factors.x, query * size + place, rank, count)
            y = _row(factors.y, query * size + place, rank, count)
            to_y, to_up, to_down = factors.cx[query, rank], factors.plus[query, rank], factors.minus[query, rank]
            if rank == 0:
                for j in range(count):
                    odd = y[j] * to_y[j]
                    up[j] = level + x[j] * to_up[j] + odd
                    down[j] = level + x[j] * to_down[j] - odd
            else:
                for j in range(count):
                    odd = y[j] * to_y[j]
                    up[j] += x[j] * to_up[j] + odd
                    down[j] += x[j] * to_down[j] - odd
    if lengths is not None:
        _divide_pool(query, factors, lengths, scores)


@machine_code
def _divide_pool(query: int, factors: Factors, lengths: Lengths, scores: Array) -> None:
    """Dot products ``(P, 2, M)`` of one pool to cosines, in place."""
    size, _, count = scores.shape
    odd, even = np.empty(count, scores.dtype), np.empty(count, scores.dtype)
    to_up, to_down = lengths.plus[query], lengths.minus[query]
    for place in range(size):
        length, row = lengths.squared[query, place], query * size + place
        odd[:] = 0
        even[:] = length
        for rank in range(len(lengths.gram)):
            x, y = _row(factors.x, row, rank, count), _row(factors.y, row, rank, count)
            for j in range(count):
                odd[j] += x[j] * y[j]
            for other in range(len(lengths.gram)):
                others, gram = _row(factors.x, row, other, count), lengths.gram[rank, other]
                for j in range(count):
                    even[j] += x[j] * gram[j] * others[j]
        up, down, least = scores[place, 0], scores[place, 1], lengths.eps * length
        for j in range(count):
            up[j] /= np.sqrt(max(max(even[j] + lengths.twice * odd[j], least) * to_up[j], lengths.tiny))
            down[j] /= np.sqrt(max(max(even[j] - lengths.twice * odd[j], least) * to_down[j], lengths.tiny))


@machine_code
def _row(rows: Rows, number: int, part: int, length: int) -> Array:
    """Part of a row, all of whose parts are of one length."""
    begin = rows.first + number * rows.apart + part * length
    return rows.memory[begin : begin + length]


@machine_code
def _score_grid(factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Scores ``(b, P, 2, m1, m2)`` of b pools."""
    for query in range(len(scores)):
        _score_pool_on_grid(query, factors, lengths, scores[query])


@machine_code
def _earned_on_grid(factors: Factors, lengths: Lengths | None, judged: Judged) -> NDArray[np.float64]:
    """What the rankings of b pools earn, ``(b, 2 m1 m2)``."""
    queries, inputs, outputs = factors.plus.shape
    size, count = factors.base.shape[1], inputs * outputs
    scores = np.empty((size, 2, inputs, outputs), factors.base.dtype)
    found, ahead = np.zeros((queries, 2 * count)), np.empty(2 * count, np.int32)
    for query in range(queries):
        if judged.ends[query + 1] > judged.ends[query]:
            _score_pool_on_grid(query, factors, lengths, scores)
            earned_by_pool(query, scores.reshape(size, 2 * count), judged, ahead, found[query])
    return found


@machine_code
def _score_pool_on_grid(query: int, factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Scores ``(P, 2, m1, m2)`` of one pool under every pair of an input and an output."""
    size, _, inputs, outputs = scores.shape
    for place in range(size):
        level, row = factors.base[query, place], query * size + place
        y = _row(factors.y, row, 0, outputs)
        for i in range(inputs):
            x, to_y = factors.x.memory[factors.x.first + row * factors.x.apart + i], factors.cx[query, i]
            to_up, to_down = factors.plus[query, i], factors.minus[query, i]
            up, down = scores[place, 0, i], scores[place, 1, i]
            for j in range(outputs):
                odd = y[j] * to_y
                up[j] = level + x * to_up[j] + odd
                down[j] = level + x * to_down[j] - odd
            if lengths is not None:
                length, gram = lengths.squared[query, place], lengths.gram
                least, plus, minus = lengths.eps * length, lengths.plus[query, i], lengths.minus[query, i]
                for j in range(outputs):
                    even, odd = length + x * gram[j] * x, lengths.twice * x * y[j]
                    up[j] /= np.sqrt(max(max(even + odd, least) * plus[j], lengths.tiny))
                    down[j] /= np.sqrt(max(max(even - odd, least) * minus[j], lengths.tiny))
