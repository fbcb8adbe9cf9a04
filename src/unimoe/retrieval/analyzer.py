"""From text to words, as numbers: what Lucene calls an analyzer."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator


class Analyzer:
    r"""Lower case; runs of word characters (``\w+``); without Lucene's 33 English stop words; stems.

    Words are numbered in the order in which documents bring them.

    Args:
        stemmer: a Snowball stemmer such as ``english``; ``none`` leaves words as they are.
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
        """Words that documents brought so far, and their numbers."""
        words: dict[str, int] = self._tokenizer.get_vocab_dict()
        return words

    def documents(self, texts: Iterable[str]) -> list[array[int]]:
        """The words of each text; arrays take a quarter of the memory of lists, which counts at 9 million passages."""
        return [array("i", numbers) for numbers in self._words(texts, learn=True)]

    def query(self, text: str) -> list[int]:
        """The words of a query that some document holds, in order, repetitions included."""
        return next(self._words([text], learn=False))

    def _words(self, texts: Iterable[str], learn: bool) -> Iterator[list[int]]:
        # Without allow_empty=False an empty query would match every empty document.
        words: Iterator[list[int]] = self._tokenizer.streaming_tokenize(texts, update_vocab=learn, allow_empty=False)
        return words
