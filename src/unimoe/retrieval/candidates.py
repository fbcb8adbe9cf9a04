"""Chooses the best documents of some queries by exact scores, whatever computed the first, approximate ones.

Float32 products depend in their last bits on the shape of a block, the number of threads and the device. So a search
adds every document whose float32 score could still be among the best, and the scores of a run are computed again, in
float64 and rounded once. Equal documents tie, and ties break by id descending as in trec_eval.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError

Rows = NDArray[np.int64]

EXACT_BYTES = 2**22
"""Float64 rows held at a time while scores are computed again; more would leave the caches."""


class CandidatePool:
    """Candidates of Q queries, a few times k for each at most.

    Let e be the most that a float32 score can err. The k best scores seen, the lowest of them t, belong to documents
    whose exact scores are at least t - e; a document below t - 2e cannot be among the best and is dropped.

    Args:
        queries: ``(Q, D)`` float32.
        vectors: ``(N, D)``: the corpus, in memory or mapped.
        places: number of each row in the ascending order of ids; None where rows are in that order.
        k: documents wanted per query, at least 1.
    """

    def __init__(
        self, queries: NDArray[np.float32], vectors: NDArray[np.floating], places: Rows | None, k: int
    ) -> None:
        self._queries, self._vectors, self._places, self._k = queries, vectors, places, k
        self._query: Rows = np.empty(0, dtype=np.int64)
        self._row: Rows = np.empty(0, dtype=np.int64)
        self._score: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._kth = np.full(len(queries), -np.inf)
        self._lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        self._longest = 0.0

    def widen(self, length: float) -> None:
        """Allow for documents of this vector length: the error of a score grows with both vectors' lengths."""
        self._longest = max(self._longest, length)

    def raise_kth(self, scores: NDArray[np.float32]) -> None:
        """Raise, for each query, the score that k documents are known to reach, before they are added."""
        self._kth = np.maximum(self._kth, scores)

    @property
    def decided(self) -> bool:
        """Whether a bound is known for every query."""
        return bool(np.isfinite(self._kth).all())

    @property
    def bounds(self) -> NDArray[np.float32]:
        """For each query the float32 score below which a document cannot be among the best, ``(Q,)``."""
        width = self._queries.shape[1]
        # Sums in any order err by (D - 1) u; the rest is for the roundings of score, bound and lengths.
        relative = 1.01 * (width + 8) * 2.0**-24
        error = relative * self._lengths * self._longest + width * float(np.finfo(np.float32).tiny)
        bounds: NDArray[np.float32] = (self._kth - 2 * error).astype(np.float32)
        return bounds

    def add(self, query: Rows, row: Rows, score: NDArray[np.float32]) -> None:
        """Add candidates: numbers of query and row, and float32 score, ``(M,)`` each; a score of -inf is no candidate.

        Every pair may be added once.
        """
        real = score > -np.inf
        self._query = np.concatenate([self._query, query[real]])
        self._row = np.concatenate([self._row, row[real]])
        self._score = np.concatenate([self._score, score[real]])
        wanted = self._k * len(self._queries)
        if len(self._query) > 2 * wanted:
            self.tighten()
            # This many within the error of each other: the embeddings have collapsed.
            if len(self._query) > 1.5 * wanted:
                self._settle()

    def tighten(self) -> None:
        """Update the k-th best scores and drop what cannot be among the best."""
        self._keep(np.lexsort((-self._score, self._query)))
        self._learn_kth()
        self._keep(np.flatnonzero(self._score >= self.bounds[self._query]))

    def best(self) -> list[tuple[Rows, NDArray[np.float32]]]:
        """Return rows and exact scores of the k best documents of each query, best first.

        Raises:
            DataError: a score is not finite in float32.
        """
        self.tighten()
        self._settle()
        if not np.isfinite(self._score).all():
            raise DataError("a score is not finite in float32; scale the vectors to unit length")
        cuts = np.searchsorted(self._query, np.arange(1, len(self._queries)))
        return list(zip(np.split(self._row, cuts), np.split(self._score, cuts), strict=True))

    def _settle(self) -> None:
        """Replace the first scores by exact ones, and keep the k best of each query."""
        self._keep(np.argsort(self._row, kind="stable"))  # rows in the order of the file
        self._score = exact_scores(self._queries, self._query, self._vectors, self._row)
        place = self._row if self._places is None else self._places[self._row]
        self._keep(np.lexsort((-place, -self._score, self._query)))
        starts = np.searchsorted(self._query, self._query)
        self._keep(np.flatnonzero(np.arange(len(self._query)) - starts < self._k))
        self._learn_kth()

    def _learn_kth(self) -> None:
        """Read the k-th best scores off candidates in the order of queries and falling scores."""
        everyone = np.arange(len(self._queries))
        last = np.searchsorted(self._query, everyone) + self._k - 1
        enough = last < np.searchsorted(self._query, everyone, side="right")
        self._kth[enough] = self._score[last[enough]]

    def _keep(self, order: NDArray[np.intp]) -> None:
        self._query, self._row, self._score = self._query[order], self._row[order], self._score[order]


def exact_scores(
    queries: NDArray[np.floating], query: Rows, vectors: NDArray[np.floating], row: Rows
) -> NDArray[np.float32]:
    """Return float64 inner products rounded to float32, each summed over its own row alone.

    Args:
        queries: ``(Q, D)`` float32.
        query: of each of M pairs, the number of its query.
        vectors: ``(N, D)``, in memory or mapped.
        row: of each pair, the row of its document.
    """
    scores = np.empty(len(row), dtype=np.float32)
    step = max(1, EXACT_BYTES // (8 * max(1, queries.shape[1])))
    for begin in range(0, len(scores), step):
        part = slice(begin, begin + step)
        # A mapped file without its class: a subclass would make every operation slower.
        products = np.asarray(vectors[row[part]]).astype(np.float64, order="C")
        products *= queries[query[part]]
        scores[part] = products.sum(axis=1)
    return scores
