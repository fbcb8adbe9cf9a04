"""Parts of a variance, as known components or observed scores would have them."""

from __future__ import annotations

import numpy as np

from unimoe.analysis.statistics.variance import Terms


def known(seed: float, query: float, residual: float, seeds: int, queries: int) -> Terms:
    """Of the mean of one dataset whose runs vary as one group, from the variances of a single run and query."""
    left = residual / (seeds * queries)
    return Terms(
        query=np.array([query / queries + left]),
        run=np.array([seed / seeds + left]),
        residual=np.array([[left]]),
        queries=(queries,),
        runs=(seeds,),
    )
