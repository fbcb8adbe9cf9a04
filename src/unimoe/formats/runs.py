"""Runs of every make: TREC's, MS MARCO's and ranx's files, tables, dictionaries, predictions of other libraries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unimoe.checks import Check, settled
from unimoe.checks.ranks import check_ranks
from unimoe.core.errors import DataError
from unimoe.core.gathered_run import GatheredRun
from unimoe.core.limits import shortened
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
