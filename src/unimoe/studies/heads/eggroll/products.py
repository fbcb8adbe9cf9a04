"""Products of queries and documents with the directions of a step, from which the scorer's closed forms are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.studies.heads.eggroll.perturbations import Perturbations

Terms = list[Tensor]
"""One tensor per rank."""

Buffer = Callable[[str, tuple[int, ...], Tensor], Tensor]
"""Returns memory by name and shape, of another tensor's dtype and device."""

QUERIES_AT_ONCE = 16
"""Queries of a block whose base scores are extra columns of its product: each costs a column for all documents."""


@dataclass(frozen=True)
class Pools:
    """Queries and the documents to rank for each, as the frozen encoder embeds them.

    Attributes:
        queries: ``(B, D)``.
        documents: ``(B, P, D)``, contiguous; each pool in descending order of document ids, so that ties break as the
            evaluator breaks them.
        valid: ``(B, P)`` bool, False where a pool is padded; None where none is.
    """

    queries: Tensor
    documents: Tensor
    valid: Tensor | None = None

    def __post_init__(self) -> None:
        queries, documents = tuple(self.queries.shape), tuple(self.documents.shape)
        if len(documents) != 3 or queries != (documents[0], documents[2]):
            raise DataError(f"pools need queries (B, D) and documents (B, P, D), not {queries} and {documents}")
        if self.valid is not None and tuple(self.valid.shape) != documents[:2]:
            raise DataError(f"pools of shape {documents[:2]} have a mask of shape {tuple(self.valid.shape)}")


@dataclass(frozen=True)
class DocumentTerms:
    """The terms of a block's documents in the closed forms; shapes broadcast over ``(b, P, *directions)``.

    Attributes:
        x: ``b_k.d``.
        y: ``a_k.(W d)``.
        base: scores under W, ``-inf`` where a pool is padded.
        squared: ``|W d|^2``; None for the dot product.
    """

    x: Terms
    y: Terms
    base: Tensor
    squared: Tensor | None


@dataclass(frozen=True)
class QueryTerms:
    """The queries' terms in the closed forms; shapes broadcast over ``(B, P, *directions)``.

    Attributes:
        cx: ``c b_k.q``, the factor of a document's ``y_k``.
        plus: ``c^2 sum_l K_kl b_l.q + c a_k.(W q)``, the factor of its ``x_k`` under ``W + sigma E``.
        minus: the same with a minus, under ``W - sigma E``.
        lengths: ``|(W + sigma E) q|^2`` and ``|(W - sigma E) q|^2``; empty for the dot product.
    """

    cx: Terms
    plus: Terms
    minus: Terms
    lengths: Terms

    def of(self, part: slice) -> QueryTerms:
        """Return the terms of some queries."""
        return QueryTerms(*([term[part] for term in terms] for terms in (self.cx, self.plus, self.minus, self.lengths)))


class Products:
    """The matrix products of a step under a weight ``(D_out, D)``, its pools and M directions.

    Args:
        lengths: whether the lengths of projected documents are needed.
        gemm_dtype: dtype of the documents' products with the directions; None for the documents' dtype.

    Attributes:
        queries: the queries' terms.
        gram: ``c^2 K``.
    """

    def __init__(
        self,
        weight: Tensor,
        pools: Pools,
        perturbations: Perturbations,
        sigma: float,
        lengths: bool,
        gemm_dtype: torch.dtype | None,
    ) -> None:
        self._weight, self._pools, self._perturbations, self._lengths = weight, pools, perturbations, lengths
        self._gemm_dtype = gemm_dtype if gemm_dtype != pools.documents.dtype else None
        self._inputs, self._outputs = perturbations.inputs, perturbations.outputs
        self._projected = pools.queries @ weight.T
        self._onto_documents = self._projected @ weight
        self._c = c = sigma * perturbations.scale
        self.gram = [[c * c * product for product in row] for row in perturbations.gram()]
        d_out, width = weight.shape
        fewer = width * d_out + len(self._outputs) * d_out < len(self._outputs) * width
        self._through_weight = lengths or (fewer and self._gemm_dtype is None)
        # Base scores are a further column for each query of a block: on a CPU that is faster than reading the
        # documents again, though a document is multiplied with all of these queries and needs only its pool's.
        rides = not self._through_weight and self._gemm_dtype is None and weight.device.type == "cpu"
        self._room = min(QUERIES_AT_ONCE, len(pools.queries)) if rides else 0
        self._matrix = torch.cat([self._inputs, weight]) if self._through_weight else self._with_room(weight)
        self.queries = self._query_terms(c)

    @property
    def width(self) -> int:
        """The numbers that ``of`` holds for a document."""
        return len(self._matrix) + (len(self._outputs) if self._through_weight else 0)

    @property
    def most_queries(self) -> int:
        """The most queries that a block can have."""
        return self._room or len(self._pools.queries)

    @property
    def twice(self) -> Tensor:
        """``2 c``."""
        return torch.tensor(2 * self._c, dtype=self._weight.dtype, device=self._weight.device)

    def of(self, block: slice, buffer: Buffer) -> DocumentTerms:
        """Return the terms of a block's documents, in memory that ``buffer`` returns.

        Raises:
            DataError: a score under W is not finite.
        """
        valid = None if self._pools.valid is None else self._pools.valid[block]
        found = self._by_projection(block, buffer) if self._through_weight else self._directly(block, buffer)
        x, y, base, squared = found
        shape = (*base.shape, -1)
        return DocumentTerms(
            self._perturbations.of_inputs(x.view(shape)),
            self._perturbations.of_outputs(y.view(shape)),
            self._spread(masked(base, valid)),
            None if squared is None else self._spread(squared),
        )

    def _directly(self, block: slice, buffer: Buffer) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return rows of x and y as products with ``b`` and ``W^T a``, and base scores."""
        documents, queries = self._pools.documents[block], self._onto_documents[block]
        (count, size, _), split = documents.shape, len(self._inputs)
        rows, total = documents.flatten(0, 1), split + len(self._outputs)
        if not self._room:
            found = self._in_gemm_dtype(rows, self._matrix, buffer)
            return found[:, :split], found[:, split:], _with_own_query(documents, queries), None
        width = total + count
        self._matrix[total:width] = queries
        found = _multiply("products", rows, self._matrix[:width], buffer)
        base = found.as_strided((count, size), (size * width + 1, width), found.storage_offset() + total)
        return found[:, :split], found[:, split:total], base.contiguous(), None

    def _with_room(self, weight: Tensor) -> Tensor:
        """Return rows ``b`` and ``W^T a``, and room for a block's queries if that product gives base scores too."""
        split, total = len(self._inputs), len(self._inputs) + len(self._outputs)
        matrix = weight.new_empty(total + self._room, weight.shape[1])
        matrix[:split] = self._inputs
        torch.mm(self._outputs, weight, out=matrix[split:total])
        return matrix

    def _by_projection(self, block: slice, buffer: Buffer) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return rows of x and y by way of ``W d``, base scores, and the squared lengths where they are needed."""
        documents, split = self._pools.documents[block], len(self._inputs)
        rows = documents.flatten(0, 1)
        if self._gemm_dtype is None:
            found = _multiply("products", rows, self._matrix, buffer)
            x, projected = found[:, :split], found[:, split:]
        else:
            x, projected = self._in_gemm_dtype(rows, self._inputs, buffer), rows @ self._weight.T
        y = _multiply("y", projected, self._outputs, buffer)
        grouped = projected.view(*documents.shape[:2], -1)
        squared = grouped.square().sum(dim=-1) if self._lengths else None
        return x, y, _with_own_query(grouped, self._projected[block]), squared

    def _in_gemm_dtype(self, rows: Tensor, columns: Tensor, buffer: Buffer) -> Tensor:
        """``rows @ columns.T``, computed in ``gemm_dtype``."""
        if self._gemm_dtype is None:
            return _multiply("products", rows, columns, buffer)
        product = rows.to(self._gemm_dtype) @ columns.T.to(self._gemm_dtype)
        return buffer("products", tuple(product.shape), rows).copy_(product)

    def _query_terms(self, c: float) -> QueryTerms:
        of_inputs, of_outputs = self._pools.queries @ self._inputs.T, self._projected @ self._outputs.T
        x = self._perturbations.of_inputs(of_inputs.unsqueeze(1))
        y = self._perturbations.of_outputs(of_outputs.unsqueeze(1))
        cx, cy = [c * term for term in x], [c * term for term in y]
        even = [sum_of_products(row, x) for row in self.gram]
        plus = [level + slope for level, slope in zip(even, cy, strict=True)]
        minus = [level - slope for level, slope in zip(even, cy, strict=True)]
        if not self._lengths:
            return QueryTerms(cx, plus, minus, [])
        squared = self._spread(self._projected.square().sum(dim=-1, keepdim=True)) + sum_of_products(x, even)
        odd = 2 * sum_of_products(y, cx)
        return QueryTerms(cx, plus, minus, [squared + odd, squared - odd])

    def _spread(self, values: Tensor) -> Tensor:
        """``(b, P)`` with a dimension of size 1 for each of the directions'."""
        return values.view(*values.shape, *[1] * len(self._perturbations.shape))


def _with_own_query(documents: Tensor, queries: Tensor) -> Tensor:
    """Return the products ``(b, P)`` of documents ``(b, P, N)`` with their own query ``(b, N)``."""
    return torch.bmm(documents, queries.unsqueeze(-1)).squeeze(-1)


def _multiply(name: str, rows: Tensor, columns: Tensor, buffer: Buffer) -> Tensor:
    """``rows @ columns.T``, in the buffer of this name."""
    return torch.mm(rows, columns.T, out=buffer(name, (len(rows), len(columns)), rows))


def masked(scores: Tensor, valid: Tensor | None) -> Tensor:
    """Return scores ``(b, P)`` with ``-inf`` where a pool is padded.

    Raises:
        DataError: a score is not finite.
    """
    if not math.isfinite(float(scores.detach().sum())):  # a single pass: NaN and infinities survive a sum
        raise DataError("a score is not finite: the weight or a vector is not; lower the learning rate, or embed again")
    return scores if valid is None else scores.masked_fill(~valid, -torch.inf)


def sum_of_products(first: Terms, second: Terms) -> Tensor:
    """Return ``sum_k first_k second_k``."""
    total = first[0] * second[0]
    for left, right in zip(first[1:], second[1:], strict=True):
        total = total + left * right
    return total
