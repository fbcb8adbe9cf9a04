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
from unimoe.core.grouping import gathered
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.retrieval.postings import SPACELESS

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

    def parts(self, corpus: Mapping[str, Document]) -> dict[str, Document]:
        """Return the passages of documents, each after the title, by id: ``d1``, ``d1 2``, ``d1 3``.

        No id of a document holds a space, and none sorts between those of a document's passages.
        """
        return {
            f"{key} {number}" if number > 1 else key: Document(title, part)
            for key, (title, text) in corpus.items()
            for number, part in enumerate(self.cut(text), start=1)
        }

    def of_candidates(self, collection: Collection, candidates: Mapping[str, Iterable[str]]) -> tuple[Collection, Run]:
        """Return a collection of the candidates' passages, and these as candidates, without scores."""
        keys = dict.fromkeys(chain.from_iterable(candidates.values()))
        read = as_read(replace(collection, corpus={key: collection.corpus[key] for key in keys}), self)
        ids = by_document(read.corpus)
        return read, {query: {part: 0.0 for key in found for part in ids[key]} for query, found in candidates.items()}


def as_read(collection: Collection, cut: Passages | None) -> Collection:
    """Return a collection of what models read of its documents: their passages, or whole ones where nothing is cut."""
    return replace(collection, corpus=cut.parts(collection.corpus)) if cut else collection


def by_document(passages: Iterable[str]) -> dict[str, list[str]]:
    """Return the ids of passages by that of their document."""
    return gathered((part.partition(" ")[0], part) for part in passages)


def best_passages(run: Run) -> Run:
    """Return a run of documents, each with the score of its best passage, from one of passages."""
    return {
        query: {key: max(map(scores.__getitem__, parts)) for key, parts in by_document(scores).items()}
        for query, scores in run.items()
    }
