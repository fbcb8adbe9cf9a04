"""A run from rows of any table: many at a time, as millions of rows take seconds in Python."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from unimoe.core.errors import DataError
from unimoe.core.limits import HIGHEST_SCORE, read_score
from unimoe.core.text import Batch
from unimoe.core.trec import Run

# From so many documents on, of which few are in several rankings, finding a text again takes more than another text.
_MANY = 1_000_000
_COUNT = list(map(str, range(1_001)))  # ranks, as most files have them


class GatheredRun:
    """A run as its rows come, a batch at a time; a document's id is one text for all queries.

    Ranks are kept only of queries whose rows they do not count.
    """

    def __init__(self, places: Mapping[str, int]) -> None:
        self.run: Run = {}
        self.ranks: dict[str, array[float]] = {}
        self.is_whole = True  # whether all numbers are written as whole ones
        self._places, self._rows = places, 0
        self._known: dict[str, str] | None = {}

    def add(self, batch: Batch) -> None:
        """Add rows; a DataError for a score that is no number, and for a document that is listed twice for a query."""
        places, kind = self._places, "score" if "score" in self._places else "rank"
        queries, documents = (batch.ids(places[field], f"{field} id") for field in ("query", "document"))
        scores = batch.numbers(places[kind], kind, read_score, HIGHEST_SCORE)
        if kind == "rank":
            scores = [-rank for rank in scores]
        ranks = batch.columns[places["rank"]] if kind == "score" and "rank" in places else ()
        if self.is_whole:
            self.is_whole = not ranks and all(str(cell).isdecimal() for cell in batch.columns[places[kind]])
        if self._known is not None:
            documents = list(map(self._known.setdefault, documents, documents))
            self._rows += len(documents)
            if len(self._known) > _MANY and self._rows < 3 * len(self._known):
                self._known = None
        start = 0
        for query, rows in groupby(queries):
            stop = start + len(list(rows))
            found = dict(zip(documents[start:stop], scores[start:stop], strict=True))
            held = self.run.get(query, {})
            if len(found) < stop - start or not held.keys().isdisjoint(found):
                row = next(row for row in range(start, stop) if documents[row] in {*held, *documents[start:row]})
                raise DataError(f"{batch.place(row)}: document {documents[row]!r} is listed twice for query {query!r}")
            if ranks:
                self._keep_ranks(query, len(held), list(ranks[start:stop]))
            if held:
                held.update(found)
            else:
                self.run[query] = found
            start = stop

    def _keep_ranks(self, query: str, before: int, ranks: list[Any]) -> None:
        after = before + len(ranks)
        while len(_COUNT) <= after:
            _COUNT.extend(map(str, range(len(_COUNT), 2 * len(_COUNT))))
        if query not in self.ranks:
            if ranks in (_COUNT[before:after], _COUNT[before + 1 : after + 1]):
                return
            self.ranks[query] = array("f", range(1, before + 1))
        try:
            self.ranks[query].extend(list(map(float, ranks)))
        except (TypeError, ValueError):  # the field is not read elsewhere: what is no number says nothing
            self.ranks[query].extend([0.0] * len(ranks))

    def take_ranks(self, name: str) -> None:
        """Make scores of the ranks 1 to n of each query; a DataError where whole numbers are others."""
        for query, scores in self.run.items():
            if sorted(scores.values()) != list(range(1, len(scores) + 1)):
                raise DataError(
                    f"{name}: the third column holds whole numbers that are not the ranks 1 to n of query {query!r}; "
                    "name the columns in a first line, such as query_id doc_id score"
                )
            self.run[query] = {document: -rank for document, rank in scores.items()}
