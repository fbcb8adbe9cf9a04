"""Long documents by their best passage (MaxP): a model scores each passage, and the best is the document's score.

From Dai and Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019: passages
of 150 words, a new one every 75, each after the document's title. What models get is a collection of passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from unimoe.config import EvaluationConfig
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.retrieval.analyzers import SPACELESS

_WORD = re.compile(rf"[{SPACELESS}]|[^\s{SPACELESS}]+")
"""A word, or a character of a script without spaces."""


class Passages(NamedTuple):
    """How documents are cut: into passages of so many words, a new one every ``stride`` words."""

    words: int
    stride: int

    def __str__(self) -> str:
        return f"{self.words} words, stride {self.stride}"

    @classmethod
    def of(cls, settings: EvaluationConfig) -> Passages | None:
        """Return what the settings say; None where documents are read whole."""
        words = settings.passage_words
        return None if words is None else cls(words, settings.passage_stride or max(1, words // 2))

    def cut(self, text: str) -> list[str]:
        """Return the passages of a text, of which the last ends with it; a short text is one."""
        spans = [found.span() for found in _WORD.finditer(text)]
        if len(spans) <= self.words:
            return [text]
        begins = range(0, len(spans) - self.words + self.stride, self.stride)
        return [text[spans[begin][0] : spans[begin : begin + self.words][-1][1]] for begin in begins]

    def of_candidates(self, collection: Collection, candidates: Mapping[str, Iterable[str]]) -> tuple[Collection, Run]:
        """Return a collection of the candidates' passages, ``d1#1`` and on, and these as candidates, without scores."""
        ids, corpus = dict[str, list[str]](), dict[str, Document]()
        for key in dict.fromkeys(chain.from_iterable(candidates.values())):
            title, text = collection.corpus[key]
            parts = {f"{key}#{number}": Document(title, part) for number, part in enumerate(self.cut(text), start=1)}
            ids[key] = list(parts)
            corpus |= parts
        cut = {query: {part: 0.0 for key in found for part in ids[key]} for query, found in candidates.items()}
        return replace(collection, corpus=corpus), cut


def best_passages(run: Run) -> Run:
    """Return a run of documents, each with the score of its best passage, from one of passages."""
    best: Run = {query: {} for query in run}
    for query, scores in run.items():
        for part, score in scores.items():
            key = part.rpartition("#")[0]
            best[query][key] = max(score, best[query].get(key, score))
    return best
