"""Lucene's BM25: indexed by bm25s, searched here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unimoe.config import BM25Config
from unimoe.data.collection import Collection
from unimoe.retrieval.analyzer import Analyzer
from unimoe.retrieval.ranking import Ranker, nth_best


class BM25Index:
    """The inverted index of one corpus, held in memory: bm25s scores every posting when the corpus is indexed.

    Searching adds up bm25s' postings in bm25s' order, so scores are its to the last bit. Its own search visits words
    one by one and sorts all documents that hold one of them, which takes longer than both together here.
    """

    def __init__(self, collection: Collection, params: BM25Config) -> None:
        import bm25s

        self._ranker = Ranker(collection.corpus)
        self._analyzer = Analyzer(params.stemmer)
        documents = self._analyzer.documents(collection.corpus[key].full_text for key in self._ranker.ids)
        self._starts: list[int] = [0]
        if vocabulary := self._analyzer.vocabulary:
            index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene", csc_backend="scipy")
            tokenized = bm25s.tokenization.Tokenized(ids=documents, vocab=vocabulary)
            index.index(tokenized, create_empty_token=False, show_progress=False)
            # A sparse matrix by columns: word w adds scores[k] to holders[k] for k from starts[w] up to starts[w + 1].
            self._scores: NDArray[np.float32] = index.scores["data"]
            self._holders: NDArray[np.int32] = index.scores["indices"]
            self._starts = index.scores["indptr"].tolist()

    def search(self, text: str, depth: int, *, without: str | None = None) -> dict[str, float]:
        """The best ``depth`` documents for one query text, best first, ``without`` one document id."""
        places = [slice(self._starts[word], self._starts[word + 1]) for word in self._analyzer.query(text)]
        if not places:
            return {}
        scores = np.zeros(len(self._ranker), dtype=np.float32)
        holders = np.concatenate([self._holders[place] for place in places], dtype=np.intp)
        np.add.at(scores, holders, np.concatenate([self._scores[place] for place in places]))
        if without is not None:
            scores[self._ranker.place(without)] = 0.0
        bound = self._lower_bound(scores, places, depth)
        candidates = np.flatnonzero(scores >= bound if bound > 0 else scores > 0)
        return self._ranker.best(scores, candidates, depth)

    def _lower_bound(self, scores: NDArray[np.float32], places: list[slice], depth: int) -> float:
        """A score that the best ``depth`` documents reach, because as many holders of one word do; else 0.

        It spares sorting most of the corpus; the rarest word that has enough holders gives the best bound.
        """
        enough = [place for place in places if place.stop - place.start >= depth]
        if not enough:
            return 0.0
        rarest = min(enough, key=lambda place: place.stop - place.start)
        return float(nth_best(scores[self._holders[rarest]], depth))
