"""rank_bm25's BM25Okapi as a first stage."""

from __future__ import annotations

import numpy as np

from unimoe.config import BM25Config
from unimoe.data.collection import Collection
from unimoe.retrieval.analyzer import Analyzer
from unimoe.retrieval.ranking import Ranker


class OkapiIndex:
    """BM25Okapi over the tokens of ``BM25Index``, to compare with numbers that were made with it.

    Its idf differs from Lucene's and is floored where it would be negative. Every search visits all documents in
    Python: fit for corpora of some ten thousand documents.
    """

    def __init__(self, collection: Collection, params: BM25Config) -> None:
        from rank_bm25 import BM25Okapi

        self._ranker = Ranker(collection.corpus)
        self._analyzer = Analyzer(params.stemmer)
        documents = self._analyzer.documents(collection.corpus[key].full_text for key in self._ranker.ids)
        # BM25Okapi divides by the number of words it knows.
        self._okapi = BM25Okapi(documents, k1=params.k1, b=params.b) if self._analyzer.vocabulary else None

    def search(self, text: str, depth: int, *, without: str | None = None) -> dict[str, float]:
        """The best ``depth`` documents for one query text, best first, ``without`` one document id."""
        words = self._analyzer.query(text)
        if self._okapi is None or not words:
            return {}
        shares_word = np.array([any(word in counts for word in words) for counts in self._okapi.doc_freqs])
        if without is not None:
            shares_word[self._ranker.place(without)] = False
        scores = self._okapi.get_scores(words).astype(np.float32)
        return self._ranker.best(scores, np.flatnonzero(shares_word), depth)
