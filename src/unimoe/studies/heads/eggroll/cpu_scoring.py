"""Scores under every perturbation on a CPU, and the metric of each ranking, from the products of a step.

These are the closed forms of ``scoring``, one row of a document after the other: products are read once, and nothing
but scores is written, where tensors would pass over memory for each sum and product. Where only a metric is needed, the
scores of a pool are counted before those of the next are computed: they never leave the processor's cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.studies.heads.eggroll.kernels import machine_code
from unimoe.studies.heads.eggroll.ndcg import Judged, earned_by_pool
from unimoe.studies.heads.eggroll.products import DocumentTerms, Products, QueryTerms, Terms

Array = NDArray[np.floating]


class Rows(NamedTuple):
    """Rows in a longer memory: the first begins at ``first``, and each begins ``apart`` entries behind the last."""

    memory: Array
    first: int
    apart: int


class Factors(NamedTuple):
    """The factors of dot products, for b queries with P documents and M directions: independent ones, or products.

    Attributes:
        is_product: whether the directions are the products of m1 inputs and m2 outputs.
        x: rows ``(b P, r M)``, the first rank of all directions first; of products ``(b P, m1)``.
        y: the same; of products ``(b P, m2)``.
        base: scores under the weight itself, ``(b, P)``.
        cx: the factor of y, ``(b, r, M)``; of products ``(b, m1, 1)``.
        plus: the factor of x under ``W + sigma E``, ``(b, r, M)``; of products ``(b, m1, m2)``.
        minus: the same under ``W - sigma E``.
    """

    is_product: bool
    x: Rows
    y: Rows
    base: Array
    cx: Array
    plus: Array
    minus: Array


class Lengths(NamedTuple):
    """The terms that turn dot products into cosines.

    Attributes:
        squared: ``|W d|^2``, ``(b, P)``.
        gram: ``c^2 K``, ``(r, r, M)``; of products ``(1, 1, m2)``.
        twice: ``2 c``.
        plus: the queries' squared lengths under ``W + sigma E``, ``(b, M)``.
        minus: the same under ``W - sigma E``.
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
    """Write the scores ``(b, P, 2, *directions)`` of a block, float32 or float64, under every perturbation."""
    factors, lengths = _terms(products, documents, queries)
    _score_pools(factors, lengths, scores.view(*scores.shape[:3], -1).numpy())


def earned_on_cpu(products: Products, documents: DocumentTerms, queries: QueryTerms, judged: Judged) -> Tensor:
    """Return the metric of a block's rankings under every perturbation, ``(b, 2M)`` float64."""
    return torch.from_numpy(_earned(*_terms(products, documents, queries), judged))


def _terms(products: Products, documents: DocumentTerms, queries: QueryTerms) -> tuple[Factors, Lengths | None]:
    is_product, pools = documents.base.ndim == 4, documents.base.shape[:2]
    factors = Factors(
        is_product,
        _rows_of(documents.x[0]),
        _rows_of(documents.y[0]),
        documents.base.view(pools).numpy(),
        *(_by_rank(terms, is_product) for terms in (queries.cx, queries.plus, queries.minus)),
    )
    if documents.squared is None:
        return factors, None
    gram = torch.stack([torch.stack(row) for row in products.gram]).numpy()
    kind, limits = factors.base.dtype.type, torch.finfo(documents.base.dtype)
    plus, minus = (length.flatten(1).numpy() for length in queries.lengths)
    squared, twice = documents.squared.view(pools).numpy(), kind(products.twice)
    return factors, Lengths(squared, gram, twice, plus, minus, kind(limits.eps), kind(limits.tiny))


def _rows_of(products: Tensor) -> Rows:
    """Return the rows of products ``(b, P, ...)`` of the first rank; those of other ranks lie behind them."""
    entries = products.untyped_storage().nbytes() // products.element_size()
    memory: Array = products.as_strided((entries,), (1,), 0).numpy()
    return Rows(memory, int(products.storage_offset()), products.stride(1))


def _by_rank(terms: Terms, is_product: bool) -> Array:
    """Shape terms of queries as ``(b, r, M)``, of products (their rank is 1) as ``(b, m1, 1)`` or ``(b, m1, m2)``."""
    if is_product:
        return terms[0].squeeze(1).contiguous().numpy()
    return (terms[0] if len(terms) == 1 else torch.cat(terms, dim=1)).numpy()


@machine_code
def _score_pools(factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Return scores ``(b, P, 2, M)`` of b pools."""
    for query in range(len(scores)):
        _score_pool(query, factors, lengths, scores[query])


@machine_code
def _earned(factors: Factors, lengths: Lengths | None, judged: Judged) -> NDArray[np.float64]:
    """Return the metric of b pools' rankings, ``(b, 2M)``."""
    (queries, size), count = factors.base.shape, factors.plus.shape[2]
    if factors.is_product:
        count *= factors.plus.shape[1]
    scores = np.empty((size, 2, count), factors.base.dtype)
    found, ahead = np.zeros((queries, 2 * count)), np.empty(2 * count, np.int32)
    for query in range(queries):
        if judged.ends[query + 1] > judged.ends[query]:
            _score_pool(query, factors, lengths, scores)
            earned_by_pool(query, scores.reshape(size, 2 * count), judged, ahead, found[query])
    return found


@machine_code
def _score_pool(query: int, factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Compute the scores ``(P, 2, M)`` of one pool."""
    if factors.is_product:
        _score_with_products(query, factors, lengths, scores)
    else:
        _score_with_directions(query, factors, scores)
        if lengths is not None:
            _divide_by_lengths(query, factors, lengths, scores)


@machine_code
def _score_with_directions(query: int, factors: Factors, scores: Array) -> None:
    """Compute the dot products ``(P, 2, M)`` of one pool under independent directions."""
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


@machine_code
def _divide_by_lengths(query: int, factors: Factors, lengths: Lengths, scores: Array) -> None:
    """Turn dot products ``(P, 2, M)`` of one pool into cosines, in place."""
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
    """Return a part of a row, all of whose parts are of one length."""
    begin = rows.first + number * rows.apart + part * length
    return rows.memory[begin : begin + length]


@machine_code
def _score_with_products(query: int, factors: Factors, lengths: Lengths | None, scores: Array) -> None:
    """Compute the scores ``(P, 2, m1 m2)`` of one pool under every pair of an input and an output."""
    size, inputs, outputs = len(scores), factors.plus.shape[1], factors.plus.shape[2]
    for place in range(size):
        level, row = factors.base[query, place], query * size + place
        y = _row(factors.y, row, 0, outputs)
        for i in range(inputs):
            x, to_y = factors.x.memory[factors.x.first + row * factors.x.apart + i], factors.cx[query, i, 0]
            to_up, to_down, part = (
                factors.plus[query, i],
                factors.minus[query, i],
                slice(i * outputs, (i + 1) * outputs),
            )
            up, down = scores[place, 0, part], scores[place, 1, part]
            for j in range(outputs):
                odd = y[j] * to_y
                up[j] = level + x * to_up[j] + odd
                down[j] = level + x * to_down[j] - odd
            if lengths is not None:
                length, gram = lengths.squared[query, place], lengths.gram[0, 0]
                least, plus, minus = lengths.eps * length, lengths.plus[query, part], lengths.minus[query, part]
                for j in range(outputs):
                    even, odd = length + x * gram[j] * x, lengths.twice * x * y[j]
                    up[j] /= np.sqrt(max(max(even + odd, least) * plus[j], lengths.tiny))
                    down[j] /= np.sqrt(max(max(even - odd, least) * minus[j], lengths.tiny))
