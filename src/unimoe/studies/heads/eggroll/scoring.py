"""The scores of documents under every perturbation of a linear head, without a perturbed weight.

With ``W_s = W + s sigma E``, ``s = +-1``, ``E = sum_k a_k b_k^T / sqrt(r)``, ``c = sigma / sqrt(r)``, and for a vector
h ``x_k = b_k.h``, ``y_k = a_k.(W h)``, ``K_kl = a_k.a_l``:

    (W_s q).(W_s d) = (W q).(W d) + s c sum_k (x_k(q) y_k(d) + y_k(q) x_k(d)) + c^2 sum_kl x_k(q) K_kl x_l(d)
    |W_s h|^2       = |W h|^2 + 2 s c sum_k x_k y_k + c^2 sum_kl x_k K_kl x_l

The x and y of all documents and directions are one matrix product. Queries are taken a block at a time, so that the
products of a block are still in the processor's cache when they are used; smaller blocks would cost more by their
number than they gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from unimoe.core.errors import UsageError
from unimoe.studies.heads.eggroll.cpu_scoring import earned_on_cpu, score_on_cpu
from unimoe.studies.heads.eggroll.kernels import takes_machine_code
from unimoe.studies.heads.eggroll.ndcg import PoolMetric
from unimoe.studies.heads.eggroll.perturbations import Perturbations
from unimoe.studies.heads.eggroll.products import DocumentTerms, Pools, Products, QueryTerms, masked, sum_of_products

Similarity = Literal["dot", "cosine"]


def base_scores(weight: Tensor, pools: Pools, similarity: Similarity) -> Tensor:
    """Return the scores under the weight ``(D_out, D)`` itself.

    Returns:
        ``(B, P)``, ``-inf`` where a pool is padded. A vector of length 0 has cosine 0.

    Raises:
        DataError: a score is not finite.
        UsageError: an unknown similarity.
    """
    _check_similarity(similarity)
    queries, documents = pools.queries @ weight.T, pools.documents @ weight.T
    if similarity == "cosine":
        queries, documents = functional.normalize(queries, dim=-1), functional.normalize(documents, dim=-1)
    return masked(torch.bmm(documents, queries.unsqueeze(-1)).squeeze(-1), pools.valid)


class _Block(NamedTuple):
    """Some queries, and the terms of their scores."""

    part: slice
    products: Products
    documents: DocumentTerms
    queries: QueryTerms


class Scorer:
    """Scores pools under all perturbations; its work buffers are kept from one step to the next.

    Args:
        similarity: dot product or cosine of the projected vectors; both are exact.
        gemm_dtype: dtype of the documents' products with the directions, such as bfloat16 where that is fast; by
            default the documents'. The base scores always keep the documents' dtype.
        block_bytes: of the scores of a block, or of its products where scores are not kept; by default a size that
            suits the device.

    Raises:
        UsageError: an unknown similarity.
    """

    def __init__(
        self, similarity: Similarity, *, gemm_dtype: torch.dtype | None = None, block_bytes: int | None = None
    ) -> None:
        _check_similarity(similarity)
        self.similarity = similarity
        self._gemm_dtype, self._block_bytes = gemm_dtype, block_bytes
        self._buffers: dict[str, Tensor] = {}

    def scores(self, weight: Tensor, pools: Pools, perturbations: Perturbations, sigma: float) -> Tensor:
        """Return all scores at once; arguments and errors as in ``blocks``.

        Returns:
            ``(B, P, 2M)``: under all ``W + sigma E_j`` first, then under all ``W - sigma E_j``; ``-inf`` where a pool
            is padded.
        """
        return torch.cat([scores.clone() for _, scores in self.blocks(weight, pools, perturbations, sigma)])

    def blocks(
        self, weight: Tensor, pools: Pools, perturbations: Perturbations, sigma: float
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield the scores of a few queries at a time.

        Args:
            weight: ``(D_out, D)``.
            pools: B queries and their documents, of the weight's dtype.
            perturbations: M directions, of the weight's dtype.
            sigma: their scale.

        Yields:
            Which queries, and their scores ``(b, P, 2M)`` as in ``scores``, in memory that the next block overwrites.

        Raises:
            DataError: a score is not finite.
        """
        for block in self._blocks(weight, pools, perturbations, sigma):
            with torch.no_grad():
                scores = self._scores(block, perturbations.shape)
            yield block.part, scores.view(*scores.shape[:2], -1)

    def rated(
        self, weight: Tensor, pools: Pools, perturbations: Perturbations, sigma: float, metric: PoolMetric
    ) -> Tensor:
        """Return a metric of these B queries for every ranking, ``(B, 2M)``; arguments and errors as in ``blocks``.

        On a CPU the scores of one pool are counted before those of the next are computed.
        """
        if not (takes_machine_code(weight) and metric.counts_in_machine_code):
            return metric.over(self.blocks(weight, pools, perturbations, sigma))
        found = [
            earned_on_cpu(block.products, block.documents, block.queries, metric.judged(block.part))
            for block in self._blocks(weight, pools, perturbations, sigma, keeps_scores=False)
        ]
        return metric.rounded(torch.cat(found))

    def _blocks(
        self, weight: Tensor, pools: Pools, perturbations: Perturbations, sigma: float, *, keeps_scores: bool = True
    ) -> Iterator[_Block]:
        with torch.no_grad():
            products = Products(weight, pools, perturbations, sigma, self.similarity == "cosine", self._gemm_dtype)
        total, held = len(pools.queries), 2 * prod(perturbations.shape) if keeps_scores else products.width
        budget = 2**28 if weight.device.type != "cpu" else 2**21 if keeps_scores else 2**22
        row_bytes = held * weight.element_size()
        most = (self._block_bytes or budget) // (pools.documents.shape[1] * row_bytes)
        most = max(1, min(most, products.most_queries))
        step = max(1, -(-total // max(1, -(-total // most))))
        for begin in range(0, total, step):
            part = slice(begin, min(begin + step, total))
            with torch.no_grad():
                documents, queries = products.of(part, self._buffer), products.queries.of(part)
            yield _Block(part, products, documents, queries)

    def _scores(self, block: _Block, directions: tuple[int, ...]) -> Tensor:
        """Return scores ``(b, P, 2, *directions)``."""
        documents, queries, gram, twice = block.documents, block.queries, block.products.gram, block.products.twice
        shape = documents.base.shape[:2]
        scores = self._buffer("scores", (*shape, 2, *directions), documents.base)
        if takes_machine_code(scores):
            score_on_cpu(block.products, documents, queries, scores)
            return scores
        plus, minus = scores[:, :, 0], scores[:, :, 1]
        _combine(documents, queries, plus, minus)
        if documents.squared is not None:
            scratch = [self._buffer(name, (*shape, *directions), documents.base) for name in ("odd", "even")]
            _normalise(documents, documents.squared, gram, twice, queries.lengths[0], plus, *scratch)
            _normalise(documents, documents.squared, gram, -twice, queries.lengths[1], minus, *scratch)
        return scores

    def _buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return memory that is used again, unless it is too small or of another kind."""
        need, held = prod(shape), self._buffers.get(name)
        if held is None or held.numel() < need or held.dtype != like.dtype or held.device != like.device:
            held = self._buffers[name] = torch.empty(need, dtype=like.dtype, device=like.device)
        return held[:need].view(shape)


def _combine(documents: DocumentTerms, queries: QueryTerms, plus: Tensor, minus: Tensor) -> None:
    """Write the dot products under both signs."""
    x, y = documents.x, documents.y
    torch.addcmul(documents.base, x[0], queries.plus[0], out=plus)
    torch.addcmul(documents.base, x[0], queries.minus[0], out=minus)
    for rank in range(len(x)):
        if rank:
            plus.addcmul_(x[rank], queries.plus[rank])
            minus.addcmul_(x[rank], queries.minus[rank])
        plus.addcmul_(y[rank], queries.cx[rank])
        minus.addcmul_(y[rank], queries.cx[rank], value=-1)


def _normalise(
    documents: DocumentTerms,
    squared: Tensor,
    gram: list[list[Tensor]],
    twice: Tensor,
    query: Tensor,
    scores: Tensor,
    odd: Tensor,
    lengths: Tensor,
) -> None:
    """Turn dot products under one sign into cosines, in place; ``odd`` and ``lengths`` are scratch.

    A squared length is no smaller than its rounding error: else a vector that a perturbation all but cancels would
    have a cosine beyond reason.
    """
    x, y, limits = documents.x, documents.y, torch.finfo(scores.dtype)
    torch.mul(x[0], y[0], out=odd)
    lengths.copy_(squared.expand(lengths.shape))
    for rank, row in enumerate(gram):
        if rank:
            odd.addcmul_(x[rank], y[rank])
        lengths.addcmul_(x[rank], sum_of_products(row, x))
    lengths.addcmul_(odd, twice)
    torch.maximum(lengths, limits.eps * squared, out=lengths)
    scores.mul_(lengths.mul_(query).clamp_min_(limits.tiny).rsqrt_())


def _check_similarity(similarity: str) -> None:
    if similarity not in get_args(Similarity):
        raise UsageError(f"similarity {similarity!r}: unknown; use {' or '.join(get_args(Similarity))}")
