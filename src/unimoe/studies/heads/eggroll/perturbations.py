"""Sets of low-rank directions in the space of a weight ``(D_out, D_in)``: independent ones, or products of factors.

A direction is ``E_j = sum_k a_jk b_jk^T / sqrt(r)`` with entries of zero mean and unit variance, so that
``mean |E_j|^2 = D_out D_in`` at every rank. Each is used twice, as ``W + sigma E_j`` and ``W - sigma E_j``.

Both kinds of sets have the same members, which is all that the scorer and the update use:

``shape``         the dimensions of the set; their product is M, the number of directions
``scale``         the factor of the sum over ranks, ``1 / sqrt(r)``
``inputs``        all ``b`` as rows, ``(C_in, D_in)``; ``outputs`` all ``a``, ``(C_out, D_out)``
``of_inputs``     views products with ``inputs``, ``(..., C_in)``, as one tensor per rank that broadcasts over
                  ``(..., *shape)``; ``of_outputs`` does so for ``outputs``
``gram``          ``a_k . a_l`` of every direction, for all pairs of ranks
``weighted_sum``  ``sum_j weights_j E_j``, ``(D_out, D_in)``, from weights ``(M,)`` of any dtype
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Directions:
    """Independent directions of rank r.

    Attributes:
        a: output factors ``(M, r, D_out)``.
        b: input factors ``(M, r, D_in)``.
    """

    a: Tensor
    b: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """``(M,)``."""
        return (len(self.a),)

    @property
    def scale(self) -> float:
        """``1 / sqrt(r)``."""
        return 1 / math.sqrt(self.a.shape[1])

    @property
    def inputs(self) -> Tensor:
        """``(r M, D_in)``, the first rank of all directions first."""
        return self.b.transpose(0, 1).reshape(-1, self.b.shape[2])

    @property
    def outputs(self) -> Tensor:
        """``(r M, D_out)``, the first rank of all directions first."""
        return self.a.transpose(0, 1).reshape(-1, self.a.shape[2])

    def of_inputs(self, products: Tensor) -> list[Tensor]:
        """View ``(..., r M)`` as r tensors ``(..., M)``."""
        return list(products.view(*products.shape[:-1], -1, len(self.a)).unbind(dim=-2))

    of_outputs = of_inputs

    def gram(self) -> list[list[Tensor]]:
        """Return ``(M,)`` for all pairs of ranks."""
        ranks = self.a.unbind(dim=1)
        return [[(first * second).sum(dim=-1) for second in ranks] for first in ranks]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``(diag(weights) A)^T B``, over all ranks at once."""
        count, rank, outputs = self.a.shape
        scaled = (self.scale * weights).to(self.a.dtype).view(count, 1, 1)
        left = (self.a * scaled).view(count * rank, outputs)
        return left.T @ self.b.reshape(count * rank, -1)


@dataclass(frozen=True)
class ProductDirections:
    """Every ``b`` with every ``a``: ``m1 m2`` directions of rank 1 for the matrix products of ``m1 + m2``.

    Direction ``i m2 + j`` is ``a_j b_i^T``. They are uncorrelated but not independent: for normal factors the estimate
    of a linear objective's gradient has the relative squared error ``(1 + (D_out + 1) / m2) (1 + (D_in + 1) / m1) - 1``
    (with -1 in place of +1 for signs), where ``m1 m2`` independent directions have about ``D_out D_in / (m1 m2)``.

    Attributes:
        a: output factors ``(m2, D_out)``.
        b: input factors ``(m1, D_in)``.
    """

    a: Tensor
    b: Tensor
    scale = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """``(m1, m2)``."""
        return (len(self.b), len(self.a))

    @property
    def inputs(self) -> Tensor:
        """``(m1, D_in)``."""
        return self.b

    @property
    def outputs(self) -> Tensor:
        """``(m2, D_out)``."""
        return self.a

    def of_inputs(self, products: Tensor) -> list[Tensor]:
        """View ``(..., m1)`` as ``(..., m1, 1)``."""
        return [products.unsqueeze(-1)]

    def of_outputs(self, products: Tensor) -> list[Tensor]:
        """View ``(..., m2)`` as ``(..., 1, m2)``."""
        return [products.unsqueeze(-2)]

    def gram(self) -> list[list[Tensor]]:
        """Return ``|a_j|^2``, ``(m2,)``."""
        return [[(self.a * self.a).sum(dim=-1)]]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``A^T F^T B`` with ``F = weights.view(m1, m2)``."""
        return self.a.T @ (weights.to(self.b.dtype).view(self.shape).T @ self.b)


Perturbations = Directions | ProductDirections
