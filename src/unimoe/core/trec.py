"""TREC run and qrels files: the exchange formats of the field.

A run maps query id to ``{document id: score}``, qrels map query id to ``{document id: grade}``. Grades are integers;
where runs are scored they may be real numbers. Judgments by subtopic name a subtopic in the second column.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from unimoe.core.errors import DataError
from unimoe.core.io import atomic_path, named_errors
from unimoe.core.limits import HIGHEST_SCORE, id_problem, read_grade, read_score

Run = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]
Grades: TypeAlias = Mapping[str, Mapping[str, float]]
"""Qrels whose grades may be real numbers."""
Subtopics: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float]]]
"""From query id to ``{document id: {subtopic: grade}}``."""

N = TypeVar("N", int, float)

BLOCK = 1 << 20  # bytes read at a time

_CONTROL = re.compile(r"[\x00-\x08\n-\x1f\x7f-\x9f]")


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Return document ids by score, best first, as trec_eval orders them.

    Scores are compared as float32; ties break by document id, descending.
    """
    by_score = sorted(zip(array("f", scores.values()), scores, strict=True), reverse=True)
    return [document_id for _, document_id in by_score]


def head(scores: Mapping[str, float], depth: int) -> dict[str, float]:
    """Return the first ``depth`` documents of one query's ranking, best first, with their scores."""
    return {document_id: scores[document_id] for document_id in ranked(scores)[:depth]}


def is_unordered(scores: Mapping[str, float]) -> bool:
    """Return whether several documents all have one score in float32, so that only their ids order them."""
    values = array("f", scores.values())
    return len(values) > 1 and all(value == values[0] for value in values)


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """Write ``qid Q0 docid rank score tag`` lines, best first. Scores keep full precision.

    A query without documents has no line. An id or a tag that is no field of such a line, or a score that is not finite
    or beyond float32, is a DataError, and the file keeps its old content.
    """
    _one_field_each([tag], path, "tag")
    _one_field_each(run, path, "query id")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, scores in run.items():
            _one_field_each(scores, path, "document id")
            for document_id, score in scores.items():
                if not abs(score) <= HIGHEST_SCORE:
                    state = "beyond float32" if math.isfinite(score) else "not finite"
                    raise DataError(f"{path}: query {query_id!r}, document {document_id!r}: the score is {state}")
            lines = (
                f"{query_id} Q0 {document_id} {rank} {float(scores[document_id])!r} {tag}\n"
                for rank, document_id in enumerate(ranked(scores), start=1)
            )
            file.write("".join(lines))


def write_qrels(path: Path, qrels: Grades) -> None:
    """Write ``qid 0 docid grade`` lines, TREC's layout of qrels.

    A query without judgments has no line. An id that is no field of such a line is a DataError, and the file keeps its
    old content.
    """
    _one_field_each(qrels, path, "query id")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, grades in qrels.items():
            _one_field_each(grades, path, "document id")
            file.writelines(
                f"{query_id} 0 {document_id} {int(grade) if grade == int(grade) else float(grade)}\n"
                for document_id, grade in grades.items()
            )


def read_run(path: Path | str) -> Run:
    """Read a TREC run.

    Raises:
        DataError: a line without six fields, a score that is no finite number of float32's range, or a document listed
            twice for a query.
    """
    run: Run = {}
    known: dict[str, str] = {}  # of documents that many queries share, one text each
    for number, line in _fields_lines(path):
        fields = line.split()
        if len(fields) != 6:
            raise DataError(
                f"{path}:{number}: a run line has 6 fields (qid Q0 docid rank score tag), this one {len(fields)}"
            )
        query_id, _, document_id, _, text, _ = fields
        scores = run.setdefault(query_id, {})
        if document_id in scores:
            raise DataError(f"{path}:{number}: document {document_id!r} is listed twice for query {query_id!r}")
        scores[known.setdefault(document_id, document_id)] = _number(read_score, text, path, number, "score")
    return run


def read_qrels(path: Path | str) -> dict[str, dict[str, float]]:
    """Read qrels in TREC layout (``qid 0 docid grade``) or BEIR layout (header, then ``qid docid grade``).

    A whole grade is an integer.

    Raises:
        DataError: a line of another shape, a grade that is no number or too high, or a document with two grades for a
            query.
    """
    qrels: dict[str, dict[str, float]] = {}
    known: dict[str, str] = {}
    for number, line in _fields_lines(path):
        fields = line.split()
        if not qrels and fields[0] in {"query-id", "query_id", "qid"} and fields[-1].isalpha():
            continue  # names of columns; the line of a query that is called ``qid`` ends in a number
        if len(fields) > 3 and line.count("\t") == 2:  # ids may hold spaces then
            if len(fields) == 4 and fields[1] in {"0", "Q0"}:
                raise DataError(f"{path}:{number}: separated by tabs and by spaces; use one of them in all lines")
            fields = [field.strip() for field in line.split("\t")]
        if len(fields) not in {3, 4} or not all(fields):
            raise DataError(
                f"{path}:{number}: a qrels line has 3 fields (qid docid grade) or 4, this one {len(fields)}"
            )
        query_id, document_id = fields[0], known.setdefault(fields[-2], fields[-2])
        grade = _number(read_grade, fields[-1], path, number, "grade")
        if qrels.setdefault(query_id, {}).setdefault(document_id, grade) != grade:
            # Subtopics, or else rounds of judging: which of the two, only the user knows.
            remedy = (
                "; for judgments by subtopic ask for a measure such as alpha_nDCG@20" if read_subtopics(path) else ""
            )
            raise DataError(f"{path}:{number}: document {document_id!r} has two grades for query {query_id!r}{remedy}")
    return qrels


def read_subtopics(path: Path | str) -> Subtopics:
    """Read judgments by subtopic (``qid subtopic docid grade``), as TREC's Web tracks have them.

    Empty where no document is judged for two subtopics: then the second column says something else, or nothing.

    Raises:
        DataError: a grade that is no number or too high, or two grades of a document for a subtopic.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for number, line in _fields_lines(path):
        fields = line.split()
        if len(fields) != 4:
            return {}
        query_id, subtopic, document_id, text = fields
        grade = _number(read_grade, text, path, number, "grade")
        if found.setdefault(query_id, {}).setdefault(document_id, {}).setdefault(subtopic, grade) != grade:
            raise DataError(f"{path}:{number}: document {document_id!r} has two grades for query {query_id!r}")
    return found if any(len(of) > 1 for documents in found.values() for of in documents.values()) else {}


def text_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every line that is not blank; a DataError as from ``text_blocks``."""
    number = 0
    for block in text_blocks(path):
        for line in block.removesuffix("\n").split("\n"):
            number += 1
            if line.strip():
                yield number, line.rstrip("\r")


def text_blocks(path: Path | str) -> Iterator[str]:
    """Yield a file's text, some mebibyte of whole lines at a time; unpack ``.gz``, drop a byte order mark.

    Raises:
        DataError: the file is missing, cannot be read, or is not UTF-8 text.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    parts, encoding = list[bytes](), "utf-8-sig"
    try:
        with named_errors(path), opened(path, "rb") as file:
            while chunk := file.read(BLOCK):
                cut = chunk.rfind(b"\n") + 1
                parts.append(chunk[:cut] if cut else chunk)
                if cut:
                    yield b"".join(parts).decode(encoding)
                    parts, encoding = [chunk[cut:]], "utf-8"
            if last := b"".join(parts):
                yield last.decode(encoding)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path}: not a complete gzip file; fetch it again") from None
    except UnicodeDecodeError:
        with path.open("rb") as file:
            packed = opened is open and file.read(2) == b"\x1f\x8b"
        remedy = "packed by gzip; end its name in .gz" if packed else "not UTF-8 text; convert it first"
        raise DataError(f"{path}: {remedy}") from None


def _one_field_each(texts: Collection[str], path: Path, what: str) -> None:
    """Refuse the first text that is not exactly one field of a line."""
    if " ".join(texts).split() != list(texts) or not all(map(str.isprintable, texts)):
        for text in texts:
            if problem := id_problem(text):
                raise DataError(f"{path}: {what} {text!r} {problem}; rename it")


def _fields_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of ids and numbers, as ``text_lines`` does, and refuse control characters but tabs."""
    for number, line in text_lines(path):
        if not line.isprintable() and (found := _CONTROL.search(line)):
            raise DataError(f"{path}:{number}: holds the control character {found[0]!a}; remove it")
        yield number, line


def _number(read: Callable[[str], N], text: str, path: Path | str, number: int, what: str) -> N:
    try:
        return read(text)
    except ValueError as error:
        raise DataError(f"{path}:{number}: {what} {error}") from None
