"""What a table is made of, before any format."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

Mark = Literal["best", "second"]

ABSENT = "–"
"""Shown where there is no number; empty in CSV."""

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what is shown; numbers with an ASCII minus, which becomes a real one where the format has it.
        spread: shown small behind the text, without its sign ±; a standard deviation.
        mark: best or second best of the numbers it is compared with.
        value: the number behind the text in full precision, for CSV; None where the text is no number.
        spread_value: the number behind ``spread``.
        symbols: raised behind the text, such as † for significance; the table's notes say what they mean.
    """

    text: str
    spread: str = ""
    mark: Mark | None = None
    value: float | None = None
    spread_value: float | None = None
    symbols: str = ""

    @property
    def typeset(self) -> str:
        """The text with a real minus sign where it is a number."""
        return self.text if self.value is None else self.text.replace("-", "−")


@dataclass(frozen=True)
class RowGroup:
    """Rows that belong together under one heading; the first cell of a row names it."""

    heading: str
    rows: tuple[tuple[Cell, ...], ...]


def visible(text: str) -> str:
    """One line in which every character can be seen and written.

    White space becomes single spaces. Control characters become their pictures (U+2400 to U+2421); lone surrogates,
    which UTF-8 cannot hold, and the marks that turn the direction of the text around them become U+FFFD.
    """
    return _UNSEEN.sub(_picture, " ".join(unicodedata.normalize("NFC", text).split()))


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
