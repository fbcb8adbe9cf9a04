"""Late interaction, such as ColBERT: a vector for each token, and MaxSim, the sum of each query token's best match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.models.matcher import Matcher, Scores


class LateModel(Matcher):
    """A ``MultiVectorEncoder`` of sentence-transformers; texts become vectors of tokens, which stay on its device."""

    kind, stated, bare = "late", ("MultiVectorEncoder", "ColBERT"), ("HF_ColBERT", "ForRetrieval")

    def similarity(self, queries: Any, documents: Any) -> Scores:
        """Return MaxSim of all queries and documents, which the library computes in blocks; see ``Matcher``."""
        order = sorted(range(len(documents)), key=lambda place: len(documents[place]))  # so that little is padded
        scores = np.empty((len(queries), len(documents)), dtype=np.float32)
        scores[:, order] = self.model.similarity(queries, [documents[place] for place in order]).cpu().numpy()
        return scores

    def _pairwise(self, queries: Any, first: list[int], documents: Any, second: list[int]) -> Scores:
        sides = [queries[place] for place in first], [documents[place] for place in second]
        scores: Scores = self.model.similarity_pairwise(*sides).cpu().numpy()
        return scores

    def _compute(self, encode: Callable[..., Any]) -> Any:
        return [vectors.float() for vectors in encode()]

    def _joined(self, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
        together = [vectors for part in parts for vectors in part]
        return [together[place] for place in order]
