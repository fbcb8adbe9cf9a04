"""Scores under every perturbation on a CPU, from the products of documents and queries with the directions.

The closed forms of ``scoring``, one row of a document after the other: products are read once, and nothing but scores
is written. As tensors, each sum and product is a pass over memory.

Rows of products lie in a longer memory: ``(memory, where the first begins, how far they are apart)``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimoe.training.eggroll.kernels import machine_code
from unimoe.training.eggroll.products import DocumentTerms, Products, QueryTerms, Terms

Array = NDArray[np.floating]
Rows = tuple[Array, int, int]


def score_on_cpu(products: Products, documents: DocumentTerms, queries: QueryTerms, scores: Tensor) -> None:
    """The scores of a block under every perturbation.

    Args:
        products: of the step.
        documents: the block's.
        queries: the block's.
        scores: ``(b, P, 2, *directions)``, float32 or float64, written.
    """
    x, y, out = _rows_of(documents.x[0]), _rows_of(documents.y[0]), scores.numpy()
    is_grid, pools = scores.ndim == 5, scores.shape[:2]
    score = score_grid if is_grid else score_directions
    cx, plus, minus = (_by_rank(terms, is_grid) for terms in (queries.cx, queries.plus, queries.minus))
    score(x, y, documents.base.view(pools).numpy(), cx, plus, minus, out)
    if documents.squared is None:
        return
    divide = divide_grid if is_grid else divide_directions
    gram = products.gram[0][0] if is_grid else torch.stack([torch.stack(row) for row in products.gram])
    of_plus, of_minus = (length.squeeze(1).numpy() for length in queries.lengths)
    limits, kind = torch.finfo(scores.dtype), out.dtype.type
    squared, twice = documents.squared.view(pools).numpy(), kind(products.twice)
    divide(x, y, squared, gram.numpy(), twice, of_plus, of_minus, kind(limits.eps), kind(limits.tiny), out)


def _rows_of(products: Tensor) -> Rows:
    """The rows of products ``(b, P, ...)`` of the first rank; those of other ranks lie behind them."""
    entries = products.untyped_storage().nbytes() // products.element_size()
    memory: Array = products.as_strided((entries,), (1,), 0).numpy()
    return memory, int(products.storage_offset()), products.stride(1)


def _by_rank(terms: Terms, is_grid: bool) -> Array:
    """Terms of queries as ``(b, r, M)``, or a grid's, whose rank is 1, as ``(b, m1)`` or ``(b, m1, m2)``."""
    if is_grid:
        return terms[0].squeeze(-1).squeeze(1).contiguous().numpy()
    return torch.cat(terms, dim=1).numpy()


@machine_code
def score_directions(x: Rows, y: Rows, base: Array, cx: Array, plus: Array, minus: Array, scores: Array) -> None:
    """Dot products under M independent directions of rank r, for b queries with P documents.

    Args:
        x: rows ``(b P, r M)``, the first rank of all directions first.
        y: likewise.
        base: scores under the weight itself, ``(b, P)``.
        cx: what y is multiplied with, ``(b, r, M)``.
        plus: what x is multiplied with under ``W + sigma E``, ``(b, r, M)``.
        minus: under ``W - sigma E``.
        scores: ``(b, P, 2, M)``, written.
    """
    queries, size, _, count = scores.shape
    ranks = cx.shape[1]
    for query in range(queries):
        for place in range(size):
            row, level = query * size + place, base[query, place]
            up, down = scores[query, place, 0], scores[query, place, 1]
            for rank in range(ranks):
                at = rank * count
                xs = x[0][x[1] + row * x[2] + at : x[1] + row * x[2] + at + count]
                ys = y[0][y[1] + row * y[2] + at : y[1] + row * y[2] + at + count]
                to_y, to_up, to_down = cx[query, rank], plus[query, rank], minus[query, rank]
                if rank == 0:
                    for j in range(count):
                        odd = ys[j] * to_y[j]
                        up[j] = level + xs[j] * to_up[j] + odd
                        down[j] = level + xs[j] * to_down[j] - odd
                else:
                    for j in range(count):
                        odd = ys[j] * to_y[j]
                        up[j] += xs[j] * to_up[j] + odd
                        down[j] += xs[j] * to_down[j] - odd


@machine_code
def divide_directions(
    x: Rows, y: Rows, squared: Array, gram: Array, twice: float, of_plus: Array, of_minus: Array, eps: float,
    tiny: float, scores: Array,
) -> None:  # fmt: skip
    """Dot products under independent directions to cosines, in place.

    Args:
        x: as in ``score_directions``.
        y: as in ``score_directions``.
        squared: ``|W d|^2``, ``(b, P)``.
        gram: ``c^2 K``, ``(r, r, M)``.
        twice: ``2 c``.
        of_plus: the queries' squared lengths under ``W + sigma E``, ``(b, M)``.
        of_minus: under ``W - sigma E``.
        eps: share of its squared length below which a document's is rounding error.
        tiny: the least product of squared lengths.
        scores: ``(b, P, 2, M)``.
    """
    queries, size, _, count = scores.shape
    ranks = len(gram)
    odd, even = np.empty(count, scores.dtype), np.empty(count, scores.dtype)
    for query in range(queries):
        for place in range(size):
            row, length = query * size + place, squared[query, place]
            odd[:] = 0
            even[:] = length
            for rank in range(ranks):
                begin = x[1] + row * x[2] + rank * count
                xs = x[0][begin : begin + count]
                begin = y[1] + row * y[2] + rank * count
                ys = y[0][begin : begin + count]
                for j in range(count):
                    odd[j] += xs[j] * ys[j]
                for other in range(ranks):
                    begin = x[1] + row * x[2] + other * count
                    others, products = x[0][begin : begin + count], gram[rank, other]
                    for j in range(count):
                        even[j] += xs[j] * products[j] * others[j]
            up, down, least = scores[query, place, 0], scores[query, place, 1], eps * length
            to_up, to_down = of_plus[query], of_minus[query]
            for j in range(count):
                up[j] /= np.sqrt(max(max(even[j] + twice * odd[j], least) * to_up[j], tiny))
                down[j] /= np.sqrt(max(max(even[j] - twice * odd[j], least) * to_down[j], tiny))


@machine_code
def score_grid(x: Rows, y: Rows, base: Array, cx: Array, plus: Array, minus: Array, scores: Array) -> None:
    """Dot products under every pair of m1 inputs and m2 outputs.

    Args:
        x: rows ``(b P, m1)``.
        y: rows ``(b P, m2)``.
        base: ``(b, P)``.
        cx: ``(b, m1)``.
        plus: ``(b, m1, m2)``.
        minus: likewise.
        scores: ``(b, P, 2, m1, m2)``, written.
    """
    queries, size, _, inputs, outputs = scores.shape
    for query in range(queries):
        for place in range(size):
            row, level = query * size + place, base[query, place]
            ys = y[0][y[1] + row * y[2] : y[1] + row * y[2] + outputs]
            for i in range(inputs):
                along, to_y = x[0][x[1] + row * x[2] + i], cx[query, i]
                to_up, to_down = plus[query, i], minus[query, i]
                up, down = scores[query, place, 0, i], scores[query, place, 1, i]
                for j in range(outputs):
                    odd = ys[j] * to_y
                    up[j] = level + along * to_up[j] + odd
                    down[j] = level + along * to_down[j] - odd


@machine_code
def divide_grid(
    x: Rows, y: Rows, squared: Array, gram: Array, twice: float, of_plus: Array, of_minus: Array, eps: float,
    tiny: float, scores: Array,
) -> None:  # fmt: skip
    """Dot products under a grid to cosines, in place; as ``divide_directions``.

    Args:
        x: as in ``score_grid``.
        y: as in ``score_grid``.
        squared: ``(b, P)``.
        gram: ``c^2 |a|^2``, ``(m2,)``.
        twice: ``2 c``.
        of_plus: ``(b, m1, m2)``.
        of_minus: likewise.
        eps: as there.
        tiny: as there.
        scores: ``(b, P, 2, m1, m2)``.
    """
    queries, size, _, inputs, outputs = scores.shape
    for query in range(queries):
        for place in range(size):
            row, length = query * size + place, squared[query, place]
            ys, least = y[0][y[1] + row * y[2] : y[1] + row * y[2] + outputs], eps * length
            for i in range(inputs):
                along = x[0][x[1] + row * x[2] + i]
                to_up, to_down = of_plus[query, i], of_minus[query, i]
                up, down = scores[query, place, 0, i], scores[query, place, 1, i]
                for j in range(outputs):
                    even, odd = length + along * gram[j] * along, twice * along * ys[j]
                    up[j] /= np.sqrt(max(max(even + odd, least) * to_up[j], tiny))
                    down[j] /= np.sqrt(max(max(even - odd, least) * to_down[j], tiny))
