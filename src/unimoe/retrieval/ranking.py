"""The order of documents: by score, ties by id descending, as in trec_eval."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Ranker:
    """Numbers documents by id, ascending, so that of two equal scores the higher number goes first.

    Args:
        ids: the documents' ids, in any order.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = np.array(sorted(ids), dtype=object)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ids)

    def place(self, document_id: str) -> slice:
        """The document's number as a slice, empty where there is no such document."""
        number = bisect_left(self.ids, document_id)
        known = number < len(self.ids) and self.ids[number] == document_id
        return slice(number, number + known)

    def best(self, scores: NDArray[np.float32], candidates: NDArray[np.int64], depth: int) -> dict[str, float]:
        """The best of some documents.

        Args:
            scores: (documents,).
            candidates: numbers of the documents to rank, ascending.
            depth: documents wanted, at most.

        Returns:
            ``{document id: score}``, best first.
        """
        found = scores[candidates]
        if len(candidates) > depth:
            candidates = candidates[found >= nth_best(found, depth)]
        candidates = candidates[::-1]
        order = candidates[np.argsort(-scores[candidates], kind="stable")[:depth]]
        return dict(zip(self.ids[order].tolist(), scores[order].tolist(), strict=True))


def nth_best(scores: NDArray[np.float32], n: int) -> np.float32:
    """The ``n``-th highest of at least ``n`` scores, counted from 1."""
    place = len(scores) - n
    highest: np.float32 = np.partition(scores, place)[place]
    return highest
