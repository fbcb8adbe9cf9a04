"""The verdict on one ratio when seeds and queries are both samples: interval, confidence, label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Label = Literal["PASS", "FAIL", "MARGINAL", "INCONCLUSIVE"]

PASS_AT = 0.02
FAIL_BELOW = 0.01
CONFIDENCE = 0.90
LEVEL = 0.95


@dataclass(frozen=True)
class MeanSquares:
    """Two-way mean squares of an error matrix, ``(n_seeds, n_queries)``, in the squared unit of the estimate.

    Expected values: ``seed`` is ``n_queries * v_seed + v_residual``, ``query`` is ``n_seeds * v_query + v_residual``,
    ``residual`` is ``v_residual``, the interaction of seed and query. Both sizes are at least 2.
    """

    seed: float
    query: float
    residual: float
    n_seeds: int
    n_queries: int

    @property
    def seed_variance(self) -> float:
        """Variance component of seeds; 0 where chance put its estimate below."""
        return max(0.0, self.seed - self.residual) / self.n_queries

    @property
    def query_variance(self) -> float:
        """Variance component of queries; 0 where chance put its estimate below."""
        return max(0.0, self.query - self.residual) / self.n_seeds


@dataclass(frozen=True)
class CrossedInterval:
    """TIR over seeds and queries, both regarded as samples.

    Attributes:
        estimate: ratio of the means over seeds and queries.
        standard_error: of the estimate; 0 where the arms differ by a constant factor.
        degrees_of_freedom: Satterthwaite's; infinite where the standard error is 0.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        seed_share: fraction of the variance that more seeds would shrink and more queries would not.
        query_share: fraction of the variance that more queries would shrink and more seeds would not.
        mean_squares: what variance and shares were computed from; None where only one of the two varies.
    """

    estimate: float
    standard_error: float
    degrees_of_freedom: float
    low: float
    high: float
    seed_share: float
    query_share: float
    mean_squares: MeanSquares | None = None

    def confidence_below(self, cutoff: float) -> float:
        """Confidence that the true TIR lies below ``cutoff``: the level of the one-sided interval that ends there."""
        if self.standard_error == 0.0:
            return float(_clean(self.estimate) < cutoff)
        return float(stdtr(self.degrees_of_freedom, (cutoff - self.estimate) / self.standard_error))

    @property
    def confidence(self) -> dict[Label, float]:
        """Confidence in each of the three regions; they add up to 1."""
        below_fail, below_pass = self.confidence_below(FAIL_BELOW), self.confidence_below(PASS_AT)
        return {"PASS": 1.0 - below_pass, "FAIL": below_fail, "MARGINAL": below_pass - below_fail}

    @property
    def label(self) -> Label:
        """The region that holds at least 90 % confidence, else INCONCLUSIVE."""
        return next((label for label, held in self.confidence.items() if held >= CONFIDENCE), "INCONCLUSIVE")


def rule_label(tir: float) -> Label:
    """PASS from 2 %, FAIL below 1 %, MARGINAL between; PASS means that interference is confirmed."""
    tir = _clean(tir)
    if tir >= PASS_AT:
        return "PASS"
    return "FAIL" if tir < FAIL_BELOW else "MARGINAL"


def crossed_interval(specialist: NDArray[np.float64], joint: NDArray[np.float64]) -> CrossedInterval | None:
    """95 % interval of TIR when seeds and queries are both samples, crossed: every seed meets every query.

    Linearises the ratio: ``r = ((1 - T) * specialist - joint) / mean(specialist)`` has mean 0, and its mean over other
    seeds and queries is, to first order, the error of T (delta method). The two-way mean squares of r then give
    ``Var(T) = (MS_seed + MS_query - MS_residual) / (S * n)``, each one-way variance counting the residual once too
    often (Owen 2007, The pigeonhole bootstrap; Cameron, Gelbach & Miller 2011). Degrees of freedom after Satterthwaite
    (1946).

    Args:
        specialist: main metric, ``(seeds, queries)``.
        joint: the same shape, queries in the same order; rows pair with the specialist's by position.

    Returns:
        None with fewer than two seeds or two queries: one of the two variances cannot be estimated.
    """
    n_seeds, n_queries = specialist.shape
    if n_seeds < 2 or n_queries < 2:
        return None
    base = float(specialist.mean())
    estimate = (base - float(joint.mean())) / base
    r = ((1.0 - estimate) * specialist - joint) / base
    squares = mean_squares(r)
    # A sum of estimates may fall below its parts by chance; the larger one-way variance is then the safe one.
    total = max(squares.seed + squares.query - squares.residual, squares.seed, squares.query)
    if _clean(total) == 0.0:
        return CrossedInterval(estimate, 0.0, math.inf, estimate, estimate, 0.0, 0.0, squares)
    freedom = total**2 / (
        squares.seed**2 / (n_seeds - 1)
        + squares.query**2 / (n_queries - 1)
        + squares.residual**2 / ((n_seeds - 1) * (n_queries - 1))
    )
    # A sum of variances has at least the degrees of freedom of its poorest part; the subtraction can fall below that.
    freedom = max(freedom, min(n_seeds, n_queries) - 1)
    error = math.sqrt(total / (n_seeds * n_queries))
    reach = float(stdtrit(freedom, (1.0 + LEVEL) / 2.0)) * error
    return CrossedInterval(
        estimate=estimate,
        standard_error=error,
        degrees_of_freedom=freedom,
        low=estimate - reach,
        high=estimate + reach,
        seed_share=max(0.0, squares.seed - squares.residual) / total,
        query_share=max(0.0, squares.query - squares.residual) / total,
        mean_squares=squares,
    )


def mean_squares(r: NDArray[np.float64]) -> MeanSquares:
    """Mean squares between seeds (rows), between queries (columns), and of the residual."""
    n_seeds, n_queries = r.shape
    rows, columns = r.mean(axis=1), r.mean(axis=0)
    residual = r - rows[:, None] - columns[None, :] + r.mean()
    return MeanSquares(
        seed=n_queries * float(rows.var(ddof=1)),
        query=n_seeds * float(columns.var(ddof=1)),
        residual=float((residual**2).sum()) / ((n_seeds - 1) * (n_queries - 1)),
        n_seeds=n_seeds,
        n_queries=n_queries,
    )


def _clean(value: float) -> float:
    """Rounded where only the representation of decimals differs, so that .6 against .588 is 2 % exactly."""
    return round(value, 12)
