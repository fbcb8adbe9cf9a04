"""What names, ids, texts and numbers may be, wherever they enter: in files, in options, from other programs."""

from __future__ import annotations

import math
import re
import unicodedata

LONGEST_NAME = 100
"""Characters of a name. Files and folders are called by names, and a file system takes 255 bytes."""

HIGHEST_GRADE = 100_000
"""Grades lie between its negative and this: trec_eval reserves memory for every grade up to the highest."""

HIGHEST_SCORE = (2.0 - 2.0**-23) * 2.0**127
"""The largest float32: rankings compare scores as float32, in which larger ones would all be equal."""

MOST = 1e15
"""Measured numbers lie between its negative and this: sums and squares of them are finite."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def name_problem(name: str, *, is_folder: bool = False) -> str | None:
    """Return what keeps a name from tables, figures and file names, or from a folder; None where nothing does."""
    if not name or name != name.strip():
        return "is empty, or begins or ends with white space"
    if len(name) > LONGEST_NAME:
        return f"has {len(name):,} characters, and a name may have {LONGEST_NAME}"
    if _CONTROL.search(name):
        return "holds a control character or half a surrogate pair"
    if is_folder and (name.startswith(".") or re.search(r"[/\\]", name)):
        return "cannot be that of a folder: it begins with a dot, or holds a separator"
    if ".." in re.split(r"[/\\]", name):
        return "leads out of its folder"
    return None


def id_problem(identifier: str) -> str | None:
    """Return what keeps the id of a query or document from TREC files; None where nothing does."""
    if identifier.isalnum() and identifier.isascii():  # most are, and there may be millions
        return None
    if identifier.split() != [identifier]:
        return "is empty or holds white space, which TREC files cannot"
    return "holds a control character or half a surrogate pair" if _CONTROL.search(identifier) else None


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
    """Return the grade that a text holds, an integer where it is whole; raise ``ValueError`` as ``read_number``, too.

    Likewise where the grade is beyond the highest that can be scored.
    """
    value = read_number(text)
    if abs(value) > HIGHEST_GRADE:
        raise ValueError(f"{shortened(text)!r} {grade_problem(value)}")
    return int(value) if value.is_integer() else value


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
