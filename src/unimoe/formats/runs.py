"""Runs of every make: TREC's, MS MARCO's and ranx's files, tables, dictionaries, predictions of other libraries."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from unimoe.checks import Check, settled
from unimoe.checks.rankings import check_ranks
from unimoe.core.errors import DataError
from unimoe.core.limits import HIGHEST_SCORE, read_score, shortened
from unimoe.core.text import Batch, is_number
from unimoe.core.trec import Run, plain_run
from unimoe.formats.tables import DOCUMENT, GRADE, QUERY, Columns, Nested, opened, pick, places_of

LAYOUT = "a run line has 6 fields (qid Q0 docid rank score tag)"
FIELDS = {"query": QUERY, "document": DOCUMENT, "score": ("score",), "rank": ("rank",)}
META = "mteb_model_meta"  # the key of mteb's files of predictions

_SIX = {"query": 0, "document": 2, "rank": 3, "score": 4}
_NO_Q0 = {"query": 0, "document": 1, "rank": 2, "score": 3}
_NO_RANK = {"query": 0, "document": 2, "score": 3}
_THREE = {"query": 0, "document": 1, "score": 2}


@dataclass(frozen=True)
class RunFile:
    """A run, what its reading found, and the name of its model where the file has it."""

    run: Run
    checks: tuple[Check, ...] = ()
    model: str | None = None


class Predictions(NamedTuple):
    """What mteb wrote of one model on one task: runs by subset and split."""

    model: str
    runs: dict[tuple[str, str], Run]


def read_run(content: object, allow: Collection[str] = ()) -> Run:
    """Read a run, ``{query id: {document id: score}}``, from a file of any make or an object of Python.

    Args:
        content: a path; a frame of pandas, polars or PyTerrier; a ``pyarrow.Table`` or ``datasets.Dataset``; a list of
            dictionaries or named tuples; ``{query: {document: score}}`` or ``{query: [document, ...]}``, best first.
            ``docs/formats.md`` lists the kinds of files.
        allow: what would be refused otherwise: ``ranks``, ranks that contradict scores.

    Raises:
        DataError: a file that cannot be read, columns without known names, a score that is no finite number of
            float32's range, a document listed twice for a query, or ranks that contradict scores.
        UsageError: this is no run, or reading it needs pyarrow, which is not installed.
    """
    found = load_run(content)
    settled(found.checks, allow, offer=False)
    return found.run


def load_run(content: object, name: str = "the run") -> RunFile:
    """Read a run as ``read_run`` does, with what was found; messages call what is no file by its ``name``."""
    source = opened(content, name, LAYOUT)
    if isinstance(source, Columns):
        return _of_columns(source)
    if META not in source.value:
        return RunFile(_of_dictionary(source.value, source.name))
    model, runs = _predictions(source)
    if len(runs) > 1:
        several = f"holds {len(runs)} runs, by subset and split ({', '.join(map('/'.join, runs))})"
        raise DataError(f"{source.name}: {several}; take one of unimoe.formats.runs.read_predictions(FILE).runs")
    return RunFile(next(iter(runs.values())), model=model)


def read_predictions(path: Path | str) -> Predictions:
    """Read a file that mteb wrote to its ``prediction_folder``; a DataError where it holds no rankings."""
    source = opened(path, str(path), LAYOUT)
    if isinstance(source, Columns) or META not in source.value:
        raise DataError(f"{path}: no predictions of mteb; give a TASK_predictions.json of its prediction_folder")
    return _predictions(source)


def _predictions(source: Nested) -> Predictions:
    runs = {}
    for subset, splits in source.value.items():
        for split, rankings in splits.items() if subset != META and isinstance(splits, Mapping) else ():
            if not isinstance(rankings, Mapping):
                raise DataError(f"{source.name}: {subset}/{split} holds no rankings; give those of a retrieval task")
            runs[subset, split] = _of_dictionary(rankings, f"{source.name}: {subset}/{split}")
    if not runs:
        raise DataError(f"{source.name}: no subset and split in it; run mteb.evaluate again")
    meta = source.value[META]
    return Predictions(str(meta.get("model_name") or "") if isinstance(meta, Mapping) else "", runs)


def _of_dictionary(rankings: Mapping[Any, Any], name: str) -> Run:
    """Return a run from scores by document, or documents best first, by query."""
    if any(isinstance(ranking, list | tuple) for ranking in rankings.values()):
        gathered = GatheredRun(_THREE)
        for query, ranking in rankings.items():
            gathered.add(_members(query, ranking, f"{name}: query {query!r}"))
        return gathered.run
    try:
        return plain_run(rankings)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _members(query: Any, ranking: Any, place: str) -> Batch:
    """Return the columns of one query's ranking: ids best first, pairs of id and score, or objects that hold both."""
    is_listed = isinstance(ranking, list | tuple)
    members = list(ranking if is_listed else ranking.items() if isinstance(ranking, Mapping) else [ranking])
    if members and all(isinstance(member, Mapping) for member in members):
        keys = {field: list(members[0])[column] for field, column in pick(list(members[0]), FIELDS).items()}
        members = [(member.get(keys.get("document")), member.get(keys.get("score"))) for member in members]
    elif not any(isinstance(member, list | tuple) for member in members):
        members = [(member, -rank) for rank, member in enumerate(members)]
    for member in members:
        if not isinstance(member, list | tuple) or len(member) != 2:
            raise DataError(f"{place}: {shortened(repr(member))} is no pair of a document's id and its score")
    documents, scores = zip(*members, strict=True) if members else ((), ())
    return Batch([[query] * len(members), documents, scores], lambda _: place, 0)


def _of_columns(source: Columns) -> RunFile:
    """Read a run by the names of its columns, or where they have none by their content."""
    places = pick(source.names, {**FIELDS, "results": ("results",), "grade": GRADE})
    if "grade" in places and places.keys().isdisjoint({"score", "rank"}):
        raise DataError(f"{source.name}: looks like judgments, where a run belongs: are the two swapped?")
    if {"query", "results"} <= places.keys():  # of sentence-transformers' evaluators
        gathered = GatheredRun(_THREE)
        for batch in source.batches:
            rows = zip(batch.columns[places["query"]], batch.columns[places["results"]], strict=True)
            for row, (query, ranking) in enumerate(rows):
                gathered.add(_members(query, ranking, batch.place(row)))
        return RunFile(gathered.run)
    if source.names:
        places = places_of(source, FIELDS, ("query", "document", "rank" if "rank" in places else "score"))
    elif source.sample:
        places = _layout(source)
    gathered = GatheredRun(places)
    for batch in source.batches:
        gathered.add(batch)
    if places == _THREE and not source.names and gathered.is_whole:
        gathered.take_ranks(source.name)
    if {"query-id", "corpus-id", "score"} <= set(source.names) and _looks_graded(gathered.run):
        raise DataError(f"{source.name}: looks like judgments, where a run belongs: are the two swapped?")
    has_both = {"score", "rank"} <= places.keys()
    return RunFile(gathered.run, check_ranks(gathered.run, gathered.ranks, source.name) if has_both else ())


def _layout(source: Columns) -> dict[str, int]:
    """Return the places of fields in rows without names; a DataError where their content does not tell."""
    columns = list(zip(*source.sample, strict=True))
    width, is_q0 = len(columns), len(columns) > 1 and set(columns[1]) <= {"Q0", "q0", "0"}

    def counts(place: int) -> bool:  # whether it may hold ranks
        pairs = list(zip(columns[0], columns[place], strict=True))
        return all(map(str.isdecimal, columns[place])) and len(set(pairs)) == len(pairs)

    def numbers(place: int) -> bool:
        return all(map(is_number, columns[place]))

    if width in {3, 6}:
        return _THREE if width == 3 else _SIX
    if width == 5 and is_q0 and counts(3) and numbers(4):
        return _SIX
    if width == 5 and len(set(columns[4])) == 1 and numbers(3) and (is_q0 or counts(2)):
        return _NO_RANK if is_q0 else _NO_Q0
    if width == 4 and is_q0 and numbers(3):
        raise DataError(f"{source.name}: looks like judgments, where a run belongs: are the two swapped?")
    remedy = "; name the columns in a first line" if width in {4, 5} else ""
    raise DataError(f"{source.first}: {LAYOUT}, this one {width}{remedy}")


def _looks_graded(run: Run) -> bool:
    """Return whether all scores are small whole numbers, and order no query or not all documents of one."""
    grades = all(set(scores.values()) <= set(range(-2, 6)) for scores in run.values())
    ties = any(len(set(scores.values())) < len(scores) for scores in run.values())
    return grades and (ties or all(len(scores) == 1 for scores in run.values()))


# From so many documents on, of which few are in several rankings, finding a text again takes more than another text.
_MANY = 1_000_000
_COUNT = list(map(str, range(1_001)))  # ranks, as most files have them


class GatheredRun:
    """A run as its rows come, a batch at a time; a document's id is one text for all queries.

    Ranks are kept only of queries in which they do not count the rows.
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
