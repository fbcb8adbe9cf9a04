"""What names, ids, texts and numbers may be, wherever they enter: in files, in options, from other programs."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from unimoe.core.errors import DataError

N = TypeVar("N", int, float)

LONGEST_NAME = 100
"""Characters of a name. Files and folders are called by names, and a file system takes 255 bytes."""

LONGEST_ID = 4_096
"""Characters of the id of a query or document; addresses of pages, the longest that are known, have half as many."""

HIGHEST_GRADE = 100_000
"""Grades lie between its negative and this: trec_eval reserves memory for every grade up to the highest."""

HIGHEST_SCORE = (2.0 - 2.0**-23) * 2.0**127
"""The largest float32: rankings compare scores as float32, in which larger ones would all be equal."""

MOST = 1e15
"""Measured numbers lie between its negative and this: sums and squares of them are finite."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def name_problem(name: str, *, is_folder: bool = False) -> str | None:
    """Return what keeps a name from tables, figures and file names, or from a folder; None where nothing does."""
    if not name or name != name.strip():
        return "is empty, or begins or ends with white space"
    if len(name) > LONGEST_NAME:
        return f"has {len(name):,} characters, and a name may have {LONGEST_NAME}"
    if CONTROL.search(name):
        return "holds a control character or half a surrogate pair"
    if is_folder and (name.startswith(".") or re.search(r"[/\\]", name)):
        return "cannot be that of a folder: it begins with a dot, or holds a separator"
    if ".." in re.split(r"[/\\]", name):
        return "leads out of its folder"
    return None


def path_problem(path: str) -> str | None:
    """Return what lets a path that others wrote leave its folder, on any system; None where nothing does."""
    if CONTROL.search(path):
        return "holds a control character or half a surrogate pair"
    parts = re.split(r"[/\\]", path)
    if ".." in parts or path.startswith(("/", "\\", "~")) or ":" in parts[0]:  # a drive of Windows
        return "leads out of its folder"
    return None


def id_problem(identifier: str) -> str | None:
    """Return what keeps the id of a query or document from TREC files; None where nothing does."""
    if len(identifier) > LONGEST_ID:
        return f"has {len(identifier):,} characters, and an id may have {LONGEST_ID:,}"
    if identifier.isalnum() and identifier.isascii():  # most are, and there may be millions
        return None
    if not identifier or " " in identifier or "\t" in identifier:  # what separates, and nothing else does
        return "is empty or holds white space, which TREC files cannot"
    return "holds a control character or half a surrogate pair" if CONTROL.search(identifier) else None


def read_number(text: str) -> float:
    """Return the number that a text holds in ASCII digits; raise ``ValueError``, which completes a sentence."""
    try:
        value = float(text if text.isascii() and "_" not in text else "")
    except ValueError:
        raise ValueError(f"{shortened(text.strip())!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{shortened(text.strip())!r} is not finite")
    return value


def read_score(text: str) -> float:
    """Return the score that a text holds; raise ``ValueError`` as ``read_number``, or where float32 cannot hold it."""
    value = read_number(text)
    if abs(value) > HIGHEST_SCORE:
        raise ValueError(f"{shortened(text)!r} is beyond float32, in which rankings compare; scale the scores")
    return value


def read_grade(text: str) -> float:
    """Return the grade that a text holds, an integer where it is whole.

    Raise ``ValueError`` as ``read_number``, or where the grade is beyond the highest that can be scored.
    """
    value = read_number(text)
    if abs(value) > HIGHEST_GRADE:
        raise ValueError(f"{shortened(text)!r} {grade_problem(value)}")
    return int(value) if value.is_integer() else value


def checked_text(text: str, read: Callable[[str], N], where: str) -> N:
    """Return the number that a text holds, as ``read`` takes it; a DataError that begins with ``where`` otherwise."""
    try:
        return read(text)
    except ValueError as error:
        raise DataError(f"{where} {error}") from None


def checked_number(value: Any, read: Callable[[str], N], where: str) -> N:
    """Return any kind of number, but no text, as Python's, if ``read`` takes it from a file; a DataError otherwise."""
    try:
        math.isfinite(value)  # unlike float, it takes no text
        return checked_text(repr(float(value)), read, where)
    except (TypeError, OverflowError):
        raise DataError(f"{where} {value!r} is no number") from None


def are_within(numbers: Collection[float], most: float) -> bool:
    """Return whether there are numbers, and all are finite and between the negative of ``most`` and this."""
    return bool(numbers) and -most <= min(numbers) and max(numbers) <= most and not math.isnan(sum(numbers))


def checked_numbers(
    cells: Sequence[Any], read: Callable[[str], float], most: float, where: Callable[[int], str], *, plain: bool = False
) -> list[float]:
    """Return the numbers of texts, or of any kind; a DataError for the first that ``read`` refuses, with its place.

    Cells are ``plain`` where all are texts in ASCII without an underscore: ``float`` takes other digits, and 1_0.
    """
    try:
        values = list(map(float, cells))
        text = "".join(cells) if cells and not plain and type(cells[0]) is str else ""
        if text.isascii() and "_" not in text and are_within(values, most):
            return values
    except (TypeError, ValueError, OverflowError):
        pass
    check: tuple[Callable[..., float], ...] = (checked_number, checked_text)
    return [check[isinstance(cell, str)](cell, read, where(row)) for row, cell in enumerate(cells)]


def checked_ids(cells: Sequence[Any], where: Callable[[int], str]) -> list[str]:
    """Return ids as texts; a DataError for the first that is no text or whole number, or cannot be written."""
    found = [cell.strip(" ") if type(cell) is str else str(cell) for cell in cells]
    if set(map(type, cells)) <= {str, int} and all(found) and are_short(found) and "".join(found).isprintable():
        return found
    for row, (cell, text) in enumerate(zip(cells, found, strict=True)):
        if not isinstance(cell, str) and (isinstance(cell, bool) or not hasattr(cell, "__index__")):
            raise DataError(f"{where(row)} {shortened(repr(cell))} is no text; write ids as texts")
        if not text or CONTROL.search(text):
            raise DataError(f"{where(row)} {shortened(text)!r} is empty or holds a control character; rename it")
        if len(text) > LONGEST_ID:
            raise DataError(f"{where(row)} {shortened(text)!r} {id_problem(text)}; rename it")
    return found


def are_short(ids: Sequence[str]) -> bool:
    """Return whether no id has more characters than one may have."""
    return not ids or max(map(len, ids)) <= LONGEST_ID


def grade_problem(grade: float) -> str:
    """Return what is wrong with a grade that is not a whole number up to the highest."""
    if abs(grade) > HIGHEST_GRADE and math.isfinite(grade):
        return f"is beyond {HIGHEST_GRADE:,}, the highest that can be scored"
    return "is not a whole number"


def shortened(text: str, length: int = 80) -> str:
    """Return a text for a message, its middle left out where it is long."""
    if len(text) <= length:
        return text
    kept = length // 2
    return f"{text[:kept]}...{text[-kept:]} ({len(text):,} characters)"


def visible(text: str) -> str:
    """Return one line in which every character can be seen and written.

    White space becomes single spaces. Control characters become their pictures (U+2400 to U+2421); lone surrogates,
    which UTF-8 cannot hold, and the marks that turn the direction of the text around them become U+FFFD.
    """
    return harmless(" ".join(unicodedata.normalize("NFC", text).split()))


def harmless(text: str) -> str:
    """Return a text without characters that steer a terminal; ends of lines and tabs stay."""
    return _UNSEEN.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
