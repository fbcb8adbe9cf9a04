"""The scores of documents under every perturbation of a linear head, without a perturbed weight.

With ``W_s = W + s sigma E``, ``s = +-1``, ``E = sum_k a_k b_k^T / sqrt(r)``, ``c = sigma / sqrt(r)``, and for a vector
h ``x_k = b_k.h``, ``y_k = a_k.(W h)``, ``K_kl = a_k.a_l``:

    (W_s q).(W_s d) = (W q).(W d) + s c sum_k (x_k(q) y_k(d) + y_k(q) x_k(d)) + c^2 sum_kl x_k(q) K_kl x_l(d)
    |W_s h|^2       = |W h|^2 + 2 s c sum_k x_k y_k + c^2 sum_kl x_k K_kl x_l

The x and y of all documents and directions are three matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import Similarity
from unimoe.studies.heads.eggroll.noise import Perturbations
from unimoe.studies.heads.model import head_scores
from unimoe.studies.heads.pools import Pools

_BLOCK_BYTES = {"cpu": 2**21}  # of the scores of a block: those fit the processor's cache
_MOST_BYTES = 2**28


def base_scores(weight: Tensor, pools: Pools, scoring: Similarity) -> Tensor:
    """Return the scores under the weight ``(D_out, D)`` itself, ``(B, P)``, ``-inf`` where a pool is padded."""
    return _masked(head_scores(weight, pools.queries, pools.documents, scoring), pools.valid)


class _Terms(NamedTuple):
    """What the closed forms know of some vectors: ``W h``, and x and y as a tensor per rank."""

    projected: Tensor
    x: list[Tensor]
    y: list[Tensor]


def _terms(
    vectors: Tensor, weight: Tensor, perturbations: Perturbations, gemm_dtype: torch.dtype | None = None
) -> _Terms:
    projected, inputs = vectors @ weight.T, perturbations.inputs.T
    x = vectors @ inputs if gemm_dtype is None else (vectors.to(gemm_dtype) @ inputs.to(gemm_dtype)).to(vectors.dtype)
    return _Terms(projected, perturbations.of_inputs(x), perturbations.of_outputs(projected @ perturbations.outputs.T))


@dataclass(frozen=True)
class HeadScorer:
    """Scores pools under all perturbations.

    Attributes:
        scoring: dot product or cosine of the projected vectors; both are exact.
        gemm_dtype: dtype of the documents' products with the directions, such as bfloat16 where that is fast; None for
            the documents'. ``W h`` always keeps their dtype.
    """

    scoring: Similarity
    gemm_dtype: torch.dtype | None = None

    def blocks(
        self, weight: Tensor, pools: Pools, perturbations: Perturbations, sigma: float
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield a few queries at a time: which, and their scores under all perturbations of a weight ``(D_out, D)``.

        The scores ``(b, P, 2M)`` are those under all ``W + sigma E_j`` first, then under all ``W - sigma E_j``, and
        ``-inf`` where a pool is padded.
        """
        count, size, _ = pools.documents.shape
        budget = _BLOCK_BYTES.get(weight.device.type, _MOST_BYTES)
        step = max(1, budget // (size * 2 * math.prod(perturbations.shape) * weight.element_size()))
        for begin in range(0, count, step):
            part = slice(begin, min(begin + step, count))
            valid = None if pools.valid is None else pools.valid[part]
            queries = _terms(pools.queries[part].unsqueeze(1), weight, perturbations)
            documents = _terms(pools.documents[part], weight, perturbations, self.gemm_dtype)
            yield part, self._scores(queries, documents, valid, perturbations, sigma).flatten(2)

    def _scores(self, q: _Terms, d: _Terms, valid: Tensor | None, perturbations: Perturbations, sigma: float) -> Tensor:
        """Return scores ``(b, P, 2, *directions)``."""
        c, spread = sigma * perturbations.scale, [1] * len(perturbations.shape)
        base = _masked((d.projected @ q.projected.mT).squeeze(2), valid)
        gram = [[c * c * product for product in row] for row in perturbations.gram()]
        scores = base.new_empty(*base.shape, 2, *perturbations.shape)
        for sign, into in ((1, scores[:, :, 0]), (-1, scores[:, :, 1])):
            into.copy_(base.view(*base.shape, *spread))
            for k, row in enumerate(gram):
                into.addcmul_(d.x[k], _sum_of_products(row, q.x) + sign * c * q.y[k])
                into.addcmul_(d.y[k], sign * c * q.x[k])
        if self.scoring == "cosine":
            self._divide_by_lengths(scores, q, d, gram, 2 * c)
        return scores

    def _divide_by_lengths(self, scores: Tensor, q: _Terms, d: _Terms, gram: list[list[Tensor]], twice: float) -> None:
        """Turn dot products into cosines, in place.

        A squared length is no smaller than its rounding error: else a vector that a perturbation all but cancels would
        have a cosine beyond reason.
        """
        limits, parts = torch.finfo(scores.dtype), []
        for projected, x, y in (q, d):
            squared = projected.square().sum(2).view(*projected.shape[:2], *[1] * (scores.ndim - 3))
            even = squared + _sum_of_products(x, [_sum_of_products(row, x) for row in gram])
            parts.append((even, twice * _sum_of_products(x, y), limits.eps * squared))
        for sign, into in ((1, scores[:, :, 0]), (-1, scores[:, :, 1])):
            of_query, of_document = (torch.maximum(even + sign * odd, least) for even, odd, least in parts)
            into.mul_((of_document * of_query).clamp_min_(limits.tiny).rsqrt_())


def _masked(scores: Tensor, valid: Tensor | None) -> Tensor:
    if not math.isfinite(float(scores.detach().sum())):  # a single pass: NaN and infinities survive a sum
        raise DataError("a score is not finite: the weight or a vector is not; lower the learning rate, or embed again")
    return scores if valid is None else scores.masked_fill(~valid, -torch.inf)


def _sum_of_products(first: list[Tensor], second: list[Tensor]) -> Tensor:
    total = first[0] * second[0]
    for left, right in zip(first[1:], second[1:], strict=True):
        total = total + left * right
    return total
