"""The two BM25 indexes: Lucene's, indexed by bm25s and searched here, and rank_bm25's BM25Okapi.

Both read the same words of a text and order documents by score, ties by id descending, as in trec_eval.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from unimoe.config import BM25Config
from unimoe.data.collection import Collection


class BM25Index:
    """The inverted index of one corpus, held in memory: bm25s scores every posting when the corpus is indexed.

    The search adds up bm25s' postings in its order, so scores equal bm25s' to the last bit. Its own search visits words
    one by one and sorts all documents that hold one of them, which takes longer.
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
        """Return the best ``depth`` documents for one query text, best first, ``without`` one document id."""
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
        """Return a score that the best ``depth`` documents reach, because as many holders of one word do; else 0.

        Most of the corpus then needs no sorting. The rarest word with enough holders gives the best bound.
        """
        enough = [place for place in places if place.stop - place.start >= depth]
        if not enough:
            return 0.0
        rarest = min(enough, key=lambda place: place.stop - place.start)
        return float(nth_best(scores[self._holders[rarest]], depth))


class OkapiIndex:
    """BM25Okapi over the words of ``BM25Index``, to compare with numbers that were made with rank_bm25.

    Its idf differs from Lucene's and is floored where it would be negative. Every search visits all documents in
    Python, which suits corpora of some ten thousand documents.
    """

    def __init__(self, collection: Collection, params: BM25Config) -> None:
        from rank_bm25 import BM25Okapi

        self._ranker = Ranker(collection.corpus)
        self._analyzer = Analyzer(params.stemmer)
        documents = self._analyzer.documents(collection.corpus[key].full_text for key in self._ranker.ids)
        # BM25Okapi divides by the number of words it knows.
        self._okapi = BM25Okapi(documents, k1=params.k1, b=params.b) if self._analyzer.vocabulary else None

    def search(self, text: str, depth: int, *, without: str | None = None) -> dict[str, float]:
        """Return the best ``depth`` documents for one query text, best first, ``without`` one document id."""
        words = self._analyzer.query(text)
        if self._okapi is None or not words:
            return {}
        shares_word = np.array([any(word in counts for word in words) for counts in self._okapi.doc_freqs])
        if without is not None:
            shares_word[self._ranker.place(without)] = False
        scores = self._okapi.get_scores(words).astype(np.float32)
        return self._ranker.best(scores, np.flatnonzero(shares_word), depth)


class Analyzer:
    r"""Splits texts into numbered words: lower case, runs of word characters (``\w+``), no stop words, stemmed.

    The stop words are Lucene's 33 English ones. Words are numbered in the order of their first document.

    Args:
        stemmer: a Snowball stemmer such as ``english``; ``none`` leaves words unchanged.
    """

    def __init__(self, stemmer: str) -> None:
        import bm25s
        import Stemmer

        # bm25s sets its own logger to DEBUG on import.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._tokenizer = bm25s.tokenization.Tokenizer(
            splitter=r"\w+",
            stopwords="english",
            stemmer=None if stemmer == "none" else Stemmer.Stemmer(stemmer),
        )

    @property
    def vocabulary(self) -> dict[str, int]:
        """The words of the documents so far, and their numbers."""
        words: dict[str, int] = self._tokenizer.get_vocab_dict()
        return words

    def documents(self, texts: Iterable[str]) -> list[array[int]]:
        """Return the words of each text, in arrays: they take a quarter of the memory of lists."""
        return [array("i", numbers) for numbers in self._words(texts, learn=True)]

    def query(self, text: str) -> list[int]:
        """Return the words of a query that some document holds, in order, with repetitions."""
        return next(self._words([text], learn=False))

    def _words(self, texts: Iterable[str], learn: bool) -> Iterator[list[int]]:
        # Without allow_empty=False an empty query would match every empty document.
        words: Iterator[list[int]] = self._tokenizer.streaming_tokenize(texts, update_vocab=learn, allow_empty=False)
        return words


class Ranker:
    """Numbers documents by ascending id, so that of two equal scores the higher number comes first.

    Args:
        ids: the documents' ids, in any order.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = np.array(sorted(ids), dtype=object)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.ids)

    def place(self, document_id: str) -> slice:
        """Return the document's number as a slice, empty where there is no such document."""
        number = bisect_left(self.ids, document_id)
        known = number < len(self.ids) and self.ids[number] == document_id
        return slice(number, number + known)

    def best(self, scores: NDArray[np.float32], candidates: NDArray[np.int64], depth: int) -> dict[str, float]:
        """Rank some documents.

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
    """Return the ``n``-th highest of at least ``n`` scores, counted from 1."""
    place = len(scores) - n
    highest: np.float32 = np.partition(scores, place)[place]
    return highest
