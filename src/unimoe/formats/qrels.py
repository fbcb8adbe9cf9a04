"""Judgments of every make: TREC's, BEIR's and MS MARCO's files, tables, dictionaries."""

from __future__ import annotations

from pathlib import Path

from unimoe.core.errors import DataError
from unimoe.core.limits import HIGHEST_GRADE, read_grade
from unimoe.core.text import Batch, is_number
from unimoe.core.trec import Subtopics, plain_grades
from unimoe.formats.tables import DOCUMENT, GRADE, QUERY, Columns, Nested, opened, pick, places_of

LAYOUT = "a qrels line has 3 fields (qid docid grade) or 4"
FIELDS = {"query": QUERY, "document": DOCUMENT, "grade": (*GRADE, "score")}


def read_qrels(content: object) -> dict[str, dict[str, float]]:
    """Read judgments, ``{query id: {document id: grade}}``, from a file of any make or an object of Python.

    Whole grades are integers.

    Args:
        content: a path; a frame, a ``pyarrow.Table`` or ``datasets.Dataset``; a list of dictionaries or named tuples;
            ``{query: {document: grade}}``. ``docs/formats.md`` lists the kinds of files.

    Raises:
        DataError: a file that cannot be read, columns without known names, a grade that is no number or too high, or
            a document with two grades for a query.
        UsageError: these are no judgments, or reading them needs pyarrow, which is not installed.
    """
    return load_qrels(content)


def load_qrels(content: object, name: str = "the qrels") -> dict[str, dict[str, float]]:
    """Read judgments as ``read_qrels`` does, or what is ``opened``; messages call what is no file by its ``name``."""
    source = content if isinstance(content, Columns | Nested) else opened(content, name, LAYOUT)
    if isinstance(source, Columns):
        return _of_columns(source)
    try:
        return plain_grades(source.value)
    except DataError as error:
        raise DataError(f"{source.name}: {error}") from None


def read_subtopics(path: Path) -> Subtopics:
    """Read judgments by subtopic (``qid subtopic docid grade``), as TREC's Web tracks have them.

    Empty where no document is judged for two subtopics: then the second column says something else, or nothing.

    Raises:
        DataError: a grade that is no number or too high, or two grades of a document for a subtopic.
    """
    source, found = opened(path, str(path), LAYOUT), dict[str, dict[str, dict[str, float]]]()
    if not isinstance(source, Columns) or source.names or not source.sample or len(source.sample[0]) != 4:
        return {}
    for batch in source.batches:
        queries, documents = batch.ids(0, "query id"), batch.ids(2, "document id")
        grades = _grades(batch, 3)
        for row, (query, document, grade) in enumerate(zip(queries, documents, grades, strict=True)):
            subtopic = str(batch.columns[1][row])
            if found.setdefault(query, {}).setdefault(document, {}).setdefault(subtopic, grade) != grade:
                where = f"query {query!r}, subtopic {subtopic!r}"
                raise DataError(f"{batch.place(row)}: document {document!r} has two grades for {where}")
    return found if any(len(of) > 1 for documents in found.values() for of in documents.values()) else {}


def _of_columns(source: Columns) -> dict[str, dict[str, float]]:
    """Read judgments by the names of their columns, or where they have none by their content."""
    by_subtopic = "; for judgments by subtopic ask for a measure such as alpha_nDCG@20"
    qrels, known = dict[str, dict[str, float]](), dict[str, str]()
    if {"rank", "score"} <= pick(source.names, {"rank": ["rank"], "score": ["score"]}).keys():
        raise DataError(f"{source.name}: looks like a run, where judgments belong: are the two swapped?")
    places = places_of(source, FIELDS, FIELDS) if source.names else _layout(source) if source.sample else {}
    for batch in source.batches:
        queries, documents = (batch.ids(places[field], f"{field} id") for field in ("query", "document"))
        grades = _grades(batch, places["grade"])
        for row, (query, document, grade) in enumerate(zip(queries, documents, grades, strict=True)):
            if qrels.setdefault(query, {}).setdefault(known.setdefault(document, document), grade) != grade:
                # The second column may hold subtopics, or rounds of judging: which of the two, only the user knows.
                remedy = by_subtopic if not source.names and {*batch.columns[1]} > {batch.columns[1][0]} else ""
                raise DataError(f"{batch.place(row)}: document {document!r} has two grades for query {query!r}{remedy}")
    return qrels


def _grades(batch: Batch, place: int) -> list[float]:
    """Return the grades of a column, whole ones as integers: a grade that is none is a real number to all who ask."""
    grades = batch.numbers(place, "grade", read_grade, HIGHEST_GRADE)
    return [int(grade) if grade == int(grade) else grade for grade in grades]


def _layout(source: Columns) -> dict[str, int]:
    """Return the places of fields in rows without names; a DataError where their content does not tell."""
    columns = list(zip(*source.sample, strict=True))
    width, q0 = len(columns), {"0", "Q0"}
    if width == 3:
        return {"query": 0, "document": 1, "grade": 2}
    if width == 4:  # in the order of ir_datasets the iteration, always 0, comes last
        iteration_last = not set(columns[1]) <= q0 and set(columns[3]) <= q0 and all(map(is_number, columns[2]))
        return {"query": 0, "document": 1 if iteration_last else 2, "grade": 2 if iteration_last else 3}
    if width in {5, 6} and (set(columns[1]) <= q0 or all(map(is_number, columns[width - 2]))):
        raise DataError(f"{source.name}: looks like a run, where judgments belong: are the two swapped?")
    raise DataError(f"{source.first}: {LAYOUT}, this one {width}")
