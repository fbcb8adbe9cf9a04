"""TREC run and qrels files: the exchange formats of the field.

A run maps query id to ``{document id: score}``, qrels map query id to ``{document id: grade}``.
"""

from __future__ import annotations

import gzip
import math
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from unimoe.errors import DataError
from unimoe.io import atomic_path

Run = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]


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
    return len(scores) > 1 and len(set(array("f", scores.values()))) == 1


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """Write ``qid Q0 docid rank score tag`` lines, best first. Scores keep full precision.

    A query without documents has no line.

    Raises:
        DataError: an id or the tag is empty or holds white space, which the format cannot express, or a score is not
            finite. The file keeps its old content.
    """
    _one_field_each([tag], path, "tag")
    _one_field_each(run, path, "query id")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, scores in run.items():
            _one_field_each(scores, path, "document id")
            for document_id, score in scores.items():
                if not math.isfinite(score):
                    raise DataError(f"{path}: query {query_id!r}, document {document_id!r}: the score is not finite")
            lines = (
                f"{query_id} Q0 {document_id} {rank} {float(scores[document_id])!r} {tag}\n"
                for rank, document_id in enumerate(ranked(scores), start=1)
            )
            file.write("".join(lines))


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Write ``qid 0 docid grade`` lines, TREC's layout of qrels.

    A query without judgments has no line.

    Raises:
        DataError: an id is empty or holds white space, which the format cannot express, or a grade is no whole number.
            The file keeps its old content.
    """
    _one_field_each(qrels, path, "query id")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, grades in qrels.items():
            _one_field_each(grades, path, "document id")
            for document_id, grade in grades.items():
                if not float(grade).is_integer():
                    raise DataError(
                        f"{path}: query {query_id!r}, document {document_id!r}: grade {grade} is not a whole number"
                    )
                file.write(f"{query_id} 0 {document_id} {int(grade)}\n")


def read_run(path: Path | str) -> Run:
    """Read a TREC run.

    Raises:
        DataError: a line without six fields, a score that is no finite number, or a document listed twice for a query.
    """
    run: Run = {}
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) != 6:
            raise DataError(
                f"{path}:{number}: a run line has 6 fields (qid Q0 docid rank score tag), this one {len(fields)}"
            )
        query_id, _, document_id, _, text, _ = fields
        scores = run.setdefault(query_id, {})
        if document_id in scores:
            raise DataError(f"{path}:{number}: document {document_id!r} is listed twice for query {query_id!r}")
        scores[document_id] = _number(text, path, number, "score")
    return run


def read_qrels(path: Path | str) -> Qrels:
    """Read qrels in TREC layout (``qid 0 docid grade``) or BEIR layout (header, then ``qid docid grade``).

    Raises:
        DataError: a line of another shape, a grade that is no whole number, or a document with two grades for a query.
    """
    qrels: Qrels = {}
    for number, line in text_lines(path):
        fields = line.split("\t") if line.count("\t") == 2 else line.split()
        if number == 1 and _is_header(fields):
            continue
        if len(fields) not in {3, 4} or not all(fields):
            raise DataError(
                f"{path}:{number}: a qrels line has 3 fields (qid docid grade) or 4, this one {len(fields)}"
            )
        query_id, document_id, grade = fields[0], fields[-2], fields[-1]
        value = _number(grade, path, number, "grade")
        if value != int(value):
            raise DataError(f"{path}:{number}: grade {grade!r} is not a whole number")
        if qrels.setdefault(query_id, {}).setdefault(document_id, int(value)) != value:
            raise DataError(f"{path}:{number}: document {document_id!r} has two grades for query {query_id!r}")
    return qrels


def text_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every line that is not blank; unpack ``.gz``, drop a byte order mark.

    Raises:
        DataError: the file is missing, cannot be read, or is not UTF-8 text.
    """
    path = Path(path)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path}: not a complete gzip file; fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text; convert it first") from None


def _one_field_each(texts: Collection[str], path: Path, what: str) -> None:
    """Refuse the first text that is not exactly one field of a line."""
    if " ".join(texts).split() != list(texts):
        text = next(text for text in texts if text.split() != [text])
        raise DataError(f"{path}: {what} {text!r} is empty or holds white space; a TREC file cannot hold it")


def _is_header(fields: list[str]) -> bool:
    """Return whether these are names of columns; a query may be called ``qid`` too, but its line ends in a number."""
    return fields[0] in {"query-id", "query_id", "qid"} and fields[-1].strip().isalpha()


def _number(text: str, path: Path | str, number: int, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{path}:{number}: {what} {text.strip()!r} is not a number") from None
    if not math.isfinite(value):
        raise DataError(f"{path}:{number}: {what} {text.strip()!r} is not finite")
    return value
