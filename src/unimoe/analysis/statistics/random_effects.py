"""Will it hold on other collections? Datasets as draws from those like them: a random effect, and its mean.

Every dataset counts the same, and Student's t over their differences gives the interval: over queries alone, it covers
at least 95 %, however much datasets differ in size (Bakirov & Szekely 2006; Ibragimov & Mueller 2010). With weights by
estimated variances it does not (Paule & Mandel 1982 with Hartung & Knapp 2001: 80 to 95 % in simulations). Seeds are no
part of that: a training run moves its scores on all datasets alike, which their scatter cannot show, so the covariance
between datasets that runs cause is added.
"""

from __future__ import annotations

import numpy as np

from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.statistics.variance import Array, Estimand, Moments, Terms

FEWEST = 5  # datasets: of fewer the variance between them is hardly known


def over_collections(found: Moments, each: Array, estimand: Estimand) -> Estimate | None:
    """Estimate the mean difference of two arms over collections like these; None where nothing varies.

    ``each`` are the weights of the datasets in every collection, ``(collections, datasets)``; each row adds up to 1.
    """
    contrasts = np.stack([each, -each], axis=2)
    values = np.einsum("cda,da->c", contrasts, found.means)
    groups = found.groups if estimand != "queries" else ()
    runs = [np.einsum("rda,cda->rc", group.means, contrasts) for group in groups]
    apart = ~np.eye(len(each), dtype=bool)
    terms = Terms(
        query=np.array([values.var(ddof=1) / len(values)]),
        run=np.array([max(0.0, (of.T @ of)[apart].mean() / (len(of) * (len(of) - 1))) for of in runs]),
        residual=np.zeros((len(runs), 1)),
        queries=(len(values),),
        runs=tuple(map(len, runs)),
    )
    mean = float(values.mean())

    def excess(cutoff: float) -> tuple[float, Terms]:
        return mean - cutoff, terms

    return Estimate(mean, estimand, "", terms.error, terms.freedom, terms, excess) if terms.variance else None
