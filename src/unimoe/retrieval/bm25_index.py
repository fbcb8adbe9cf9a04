"""Lucene's BM25 through bm25s."""

from __future__ import annotations

import numpy as np

from unimoe.config import BM25Config
from unimoe.data.collection import Collection
from unimoe.retrieval.analyzer import Analyzer
from unimoe.retrieval.ranking import Ranker


class BM25Index:
    """The inverted index of one corpus, held in memory: every posting is scored when the corpus is indexed."""

    def __init__(self, collection: Collection, params: BM25Config) -> None:
        import bm25s

        self._ranker = Ranker(collection.corpus)
        self._analyzer = Analyzer(params.stemmer)
        documents = self._analyzer.documents(collection.corpus[key].full_text for key in self._ranker.ids)
        self._index: bm25s.BM25 | None = None
        if self._analyzer.vocabulary:
            self._index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene", csc_backend="scipy")
            tokenized = bm25s.tokenization.Tokenized(ids=documents, vocab=self._analyzer.vocabulary)
            self._index.index(tokenized, create_empty_token=False, show_progress=False)

    def search(self, text: str, depth: int, *, without: str | None = None) -> dict[str, float]:
        """The best ``depth`` documents for one query text, best first, ``without`` one document id."""
        words = self._analyzer.query(text)
        if self._index is None or not words:
            return {}
        scores = self._index.get_scores_from_ids(words)
        if without is not None:
            scores[self._ranker.place(without)] = 0.0
        return self._ranker.best(scores, np.flatnonzero(scores > 0), depth)
