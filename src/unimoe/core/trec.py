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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from unimoe.core.errors import DataError
from unimoe.core.io import atomic_path, named_errors
from unimoe.core.limits import (
    HIGHEST_GRADE,
    HIGHEST_SCORE,
    are_within,
    checked_number,
    id_problem,
    read_grade,
    read_score,
)

Run = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]
Grades: TypeAlias = Mapping[str, Mapping[str, float]]
"""Qrels with grades that may be real numbers."""
Subtopics: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float]]]
"""From query id to ``{document id: {subtopic: grade}}``."""

LONGEST_LINE = 1 << 26
"""Bytes of a line: packed files of a few kilobytes may unpack to one that fills the memory."""

_MOST_UNPACKED = 50  # bytes from a byte of a packed file; one of texts becomes about three, one of a run up to ten

_PACKED = {
    b"\x1f\x8b": "packed by gzip; end its name in .gz",
    b"BZh": "packed by bzip2; unpack it first",
    b"\xfd7zX": "packed by xz; unpack it first",
    b"(\xb5/\xfd": "packed by Zstandard; unpack it first",
    b"PK\x03\x04": "a zip; unpack it first",
}
"""Remedies by the first bytes of a file."""

BLOCK = 1 << 16  # bytes read at a time: few enough that what is made of them stays in a processor's cache


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


def plain_grades(qrels: Grades) -> dict[str, dict[str, float]]:
    """Return judgments with Python numbers as grades, without the queries that have none; refuse what is no grade.

    Whole grades are integers.
    """
    return _plain(qrels, "grade", int, HIGHEST_GRADE, read_grade)


def plain_subtopics(subtopics: Subtopics) -> Subtopics:
    """Return judgments by subtopic with Python numbers as grades; refuse what is no grade."""
    shape = "give {query id: {document id: {subtopic: grade}}}"
    if not isinstance(subtopics, Mapping):
        raise DataError(f"subtopics are a {type(subtopics).__name__}; {shape}")
    found = {}
    for query_id, of_query in subtopics.items():
        try:
            found[query_id] = plain_grades(of_query)
        except DataError:
            raise DataError(f"subtopics of query {query_id!r} cannot be read; {shape}") from None
    return found


def plain_run(run: Mapping[str, Mapping[str, float]]) -> Run:
    """Return a run with Python floats as scores, without the queries that have none; refuse what is no score."""
    return _plain(run, "score", float, HIGHEST_SCORE, read_score)


def _plain(
    content: Any, value: str, kind: type[float], most: float, read: Callable[[str], float]
) -> dict[str, dict[str, float]]:
    """Return qrels or a run of Python numbers, which pytrec_eval wants; refuse what it would take in silence."""
    what, shape = "a run" if value == "score" else "qrels", f"{{document id: {value}}}"
    if not isinstance(content, Mapping):
        raise DataError(
            f"{type(content).__name__} where {what} should be; give {{query id: {shape}}}, or read the file first"
        )
    plain: dict[str, dict[str, float]] = {}
    given: Any
    for query_id, given in content.items():
        where = f"query {query_id!r}"
        if not isinstance(given, Mapping):
            raise DataError(f"{where}: {type(given).__name__} where {what} should be; give {shape}")
        try:
            are_plain = "".join((query_id, *given)).isascii()
        except TypeError:
            are_plain = False
        for key in () if are_plain else (query_id, *given):
            if not isinstance(key, str):
                raise DataError(f"{where}: the id {key!r} is no text; write {str(key)!r}")
            if not key.isascii() and re.search("[\ud800-\udfff]", key):  # which crashes pytrec_eval
                raise DataError(f"{where}: the id {key!r} holds half a surrogate pair; rename it")
        values: dict[str, float]
        numbers = given.values()
        if type(given) is dict and set(map(type, numbers)) == {kind} and are_within(numbers, most):
            values = given
        else:  # a copy, and only here: a million of them take memory
            values = {key: checked_number(x, read, f"{where}, document {key!r}: {value}") for key, x in given.items()}
        if values:
            plain[query_id] = values
    return plain


def check_unpacked(path: Path, unpacked: int) -> None:
    """Refuse a packed file that unpacks to this many bytes, where texts and runs do not."""
    if unpacked > _MOST_UNPACKED * path.stat().st_size:
        raise DataError(
            f"{path}: unpacks to {unpacked:,} bytes or more, over {_MOST_UNPACKED} times its size, which texts do not; "
            "fetch it again, or unpack it yourself"
        )


def text_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every line that is not blank; a DataError as from ``text_blocks``."""
    return block_lines(text_blocks(path))


def block_lines(blocks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line that is not blank, of blocks of whole lines."""
    number = 0
    for block in blocks:
        for line in block.removesuffix("\n").split("\n"):
            number += 1
            if line.strip():
                yield number, line.rstrip("\r")


def text_blocks(path: Path | str) -> Iterator[str]:
    """Yield a file's text, some whole lines at a time; unpack ``.gz``, drop a byte order mark.

    Raises:
        DataError: the file is missing, cannot be read, or is not UTF-8 text.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    parts, encoding, total = list[bytes](), "utf-8-sig", 0
    try:
        with named_errors(path), opened(path, "rb") as file:
            while chunk := file.read(BLOCK):
                cut = chunk.rfind(b"\n") + 1
                parts.append(chunk[:cut] if cut else chunk)
                if len(parts) * BLOCK > LONGEST_LINE:
                    raise DataError(f"{path}: a line of more than {LONGEST_LINE:,} bytes; no record is that long")
                total += len(chunk)
                if opened is gzip.open and total > LONGEST_LINE:
                    check_unpacked(path, total)
                if cut:
                    yield b"".join(parts).decode(encoding)
                    parts, encoding = [chunk[cut:]], "utf-8"
            if last := b"".join(parts):
                yield last.decode(encoding)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path}: not a complete gzip file; fetch it again") from None
    except UnicodeDecodeError:
        with path.open("rb") as file:
            begins = file.read(4) if opened is open else b""
        packed = (remedy for start, remedy in _PACKED.items() if begins.startswith(start))
        raise DataError(f"{path}: {next(packed, 'not UTF-8 text; convert it first')}") from None


def _one_field_each(texts: Collection[str], path: Path, what: str) -> None:
    """Refuse the first text that is not exactly one field of a line."""
    if " ".join(texts).split() != list(texts) or not all(map(str.isprintable, texts)):
        for text in texts:
            if problem := id_problem(text):
                raise DataError(f"{path}: {what} {text!r} {problem}; rename it")
