"""Will it hold on other collections? Datasets as draws from those like them: a random effect, and its mean.

The variance between datasets is Paule & Mandel's (1982), the interval Hartung & Knapp's (2001), as meta-analyses have
it. Seeds are no part of that: a training run moves its scores on all datasets alike, which their scatter cannot show,
so the covariance between datasets that runs cause is added.
"""

from __future__ import annotations

import numpy as np

from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.statistics.variance import Array, Estimand, Moments, Terms

FEWEST = 5  # datasets: of fewer the variance between them is hardly known
_NOTHING = 1e-12  # below this a variance, of scores between 0 and 1, is rounding


def over_collections(found: Moments, each: Array, estimand: Estimand) -> Estimate | None:
    """Estimate the mean difference of two arms over collections like these; None where nothing varies.

    ``each`` are the weights of the datasets in every collection, ``(collections, datasets)``; each row adds up to 1.
    """
    contrasts = np.stack([each, -each], axis=2)
    parts = [found.terms(contrast, estimand) for contrast in contrasts]
    values = np.einsum("cda,da->c", contrasts, found.means)
    groups = found.groups if estimand != "queries" else ()
    runs = [np.einsum("rda,cda->rc", group.means, contrasts) for group in groups]
    by_group = [of.T @ of / (len(of) * (len(of) - 1)) for of in runs]
    apart = ~np.eye(len(each), dtype=bool)
    shared = sum(float(covariance[apart].mean()) for covariance in by_group)
    own = np.array([max(part.variance - max(shared, 0.0), part.query.sum(), _NOTHING) for part in parts])
    between = variance_between(values, own)
    weights = 1.0 / (own + between) / (1.0 / (own + between)).sum()
    mean = float(weights @ values)
    scatter = hartung_knapp(values, own + between)
    if scatter < _NOTHING**2:
        return None
    pairs = np.outer(weights, weights)[apart] / (1.0 - weights @ weights)
    run = [max(0.0, float(pairs @ covariance[apart])) for covariance in by_group]
    terms = Terms(
        query=np.array([scatter]),
        run=np.array(run),
        residual=np.zeros((len(run), 1)),
        queries=(len(each),),
        runs=tuple(map(len, runs)),
    )

    def excess(cutoff: float) -> tuple[float, Terms]:
        return mean - cutoff, terms

    return Estimate(mean, estimand, "", terms.error, terms.freedom, terms, excess)


def variance_between(values: Array, variances: Array) -> float:
    """Return Paule & Mandel's estimate: with it the weighted squares add up to one less than there are values."""
    from scipy.optimize import brentq

    def excess(between: float) -> float:
        weights = 1.0 / (variances + between)
        return float(weights @ (values - weights @ values / weights.sum()) ** 2) - (len(values) - 1)

    if excess(0.0) <= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, float(((values - values.mean()) ** 2).sum()), xtol=1e-15))


def hartung_knapp(values: Array, variances: Array) -> float:
    """Return the variance of the mean weighted by ``1 / variances``, by the scatter of the values around it."""
    weights = 1.0 / variances / (1.0 / variances).sum()
    return float(weights @ (values - weights @ values) ** 2) / (len(values) - 1)
