"""The verdict on one ratio when seeds and queries are both samples: interval, confidence, label.

Also the intervals of the narrower questions, where only seeds or only queries vary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Label = Literal["PASS", "FAIL", "MARGINAL", "INCONCLUSIVE"]

PASS_AT = 0.02
FAIL_BELOW = 0.01
CONFIDENCE = 0.90
LEVEL = 0.95

Array: TypeAlias = NDArray[np.float64]


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
    """Interval of TIR or of another mean; the function that made it says what was regarded as a sample.

    Attributes:
        estimate: the centre of the interval.
        standard_error: of the estimate; 0 where nothing varies, as between arms that differ by a constant factor.
        degrees_of_freedom: of Student's t; infinite where the standard error is 0.
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

    def as_json(self) -> dict[str, float | None]:
        """As plain data; infinite degrees of freedom, where nothing varies, are null: JSON has no infinity."""
        freedom = self.degrees_of_freedom
        return {
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
            "standard_error": self.standard_error,
            "degrees_of_freedom": freedom if math.isfinite(freedom) else None,
            "seed_share": self.seed_share,
            "query_share": self.query_share,
        }

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


def crossed_interval(specialist: Array, joint: Array) -> CrossedInterval | None:
    """95 % interval of TIR when seeds and queries are both samples, crossed: every seed meets every query.

    Rows pair by position, although equal seed numbers do not make two training runs a pair. Where the arms' seeds are
    independent this is valid all the same: the mean square between rows estimates the sum of both arms' variances, with
    ``S - 1`` degrees of freedom where two separate estimates would have more. Where they are not (same data order, same
    initial weights), only paired rows hold the covariance.

    Args:
        specialist: main metric, ``(seeds, queries)``.
        joint: the same shape, queries in the same order.

    Returns:
        None with fewer than two seeds or two queries: one of the two variances cannot be estimated.
    """
    return crossed_mean(linearised_tir(specialist, joint))


def linearised_tir(specialist: Array, joint: Array) -> Array:
    """Numbers by seed and query whose mean is TIR and, to first order, varies with the sample as TIR does.

    ``T + ((1 - T) * specialist - joint) / mean(specialist)``, T the ratio of means (delta method): the second part has
    mean 0 here, and its mean over other seeds and queries is the error of T.

    Args:
        specialist: main metric, ``(seeds, queries)``.
        joint: the same shape, queries in the same order.
    """
    base = float(specialist.mean())
    tir = (base - float(joint.mean())) / base
    return np.asarray(tir + ((1.0 - tir) * specialist - joint) / base)


def crossed_mean(values: Array) -> CrossedInterval | None:
    """95 % interval of the mean of ``(seeds, queries)`` numbers when both are samples.

    Returns:
        None with fewer than two seeds or two queries.
    """
    return interval_from(float(values.mean()), mean_squares(values)) if min(values.shape) > 1 else None


def interval_from(estimate: float, squares: MeanSquares) -> CrossedInterval:
    """95 % interval of a mean over seeds and queries from its mean squares.

    ``Var = (MS_seed + MS_query - MS_residual) / (S * n)``, each one-way variance counting the residual once too often
    (Owen 2007, The pigeonhole bootstrap; Cameron, Gelbach & Miller 2011). Degrees of freedom after Satterthwaite
    (1946). Below its level with two seeds that carry most of the variance: ``benchmarks/tir_coverage.py``.
    """
    n_seeds, n_queries = squares.n_seeds, squares.n_queries
    # A sum of estimates may fall below its parts by chance; the larger one-way variance is then the safe one.
    total = max(squares.seed + squares.query - squares.residual, squares.seed, squares.query)
    if _clean(total) == 0.0:
        return _certain(estimate, squares)
    freedom = total**2 / (
        squares.seed**2 / (n_seeds - 1)
        + squares.query**2 / (n_queries - 1)
        + squares.residual**2 / ((n_seeds - 1) * (n_queries - 1))
    )
    return _t_interval(
        estimate,
        math.sqrt(total / (n_seeds * n_queries)),
        # A sum of variances has at least the degrees of freedom of its poorest part; the subtraction can fall below.
        max(freedom, min(n_seeds, n_queries) - 1),
        shares=(max(0.0, squares.seed - squares.residual) / total, max(0.0, squares.query - squares.residual) / total),
        squares=squares,
    )


def seeds_mean(values: Array) -> CrossedInterval | None:
    """95 % interval of the mean of one number per seed, ``(seeds,)``: Student's t, queries regarded as fixed."""
    return _student(values, shares=(1.0, 0.0))


def queries_mean(values: Array) -> CrossedInterval | None:
    """95 % interval of the mean of one number per query, ``(queries,)``: Student's t, for arms without seeds."""
    return _student(values, shares=(0.0, 1.0))


def mean_squares(r: Array) -> MeanSquares:
    """Mean squares between seeds (rows), between queries (columns), and of the residual."""
    n_seeds, n_queries = r.shape
    centred = (r - r.mean()).ravel()
    rows, columns = (centred.reshape(r.shape).mean(axis=axis) for axis in (1, 0))
    of_rows, of_columns = n_queries * float(rows @ rows), n_seeds * float(columns @ columns)
    residual = max(0.0, float(centred @ centred) - of_rows - of_columns)
    return MeanSquares(
        seed=of_rows / (n_seeds - 1),
        query=of_columns / (n_queries - 1),
        residual=residual / ((n_seeds - 1) * (n_queries - 1)),
        n_seeds=n_seeds,
        n_queries=n_queries,
    )


def _student(sample: Array, shares: tuple[float, float]) -> CrossedInterval | None:
    """None with fewer than two numbers."""
    n = len(sample)
    if n < 2:
        return None
    estimate, deviation = float(sample.mean()), float(sample.std(ddof=1))
    if _clean(deviation) == 0.0:
        return _certain(estimate, None)
    return _t_interval(estimate, deviation / math.sqrt(n), n - 1, shares, None)


def _t_interval(
    estimate: float, error: float, freedom: float, shares: tuple[float, float], squares: MeanSquares | None
) -> CrossedInterval:
    reach = float(stdtrit(freedom, (1.0 + LEVEL) / 2.0)) * error
    return CrossedInterval(estimate, error, freedom, estimate - reach, estimate + reach, *shares, squares)


def _certain(estimate: float, squares: MeanSquares | None) -> CrossedInterval:
    """The interval of what does not vary, but for the representation of decimals."""
    return CrossedInterval(estimate, 0.0, math.inf, estimate, estimate, 0.0, 0.0, squares)


def _clean(value: float) -> float:
    """Rounded where only the representation of decimals differs, so that .6 against .588 is 2 % exactly."""
    return round(value, 12)
