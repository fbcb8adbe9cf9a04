"""Plain text for pdfLaTeX."""

from __future__ import annotations

import re
from itertools import groupby

from unimoe.analysis.tables.cells import visible

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # behind \\ or \midrule a bare one opens an optional argument
    "]": "{]}",
    "*": "{*}",  # \\* is another command
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "∞": r"$\infty$",
    "–": r"\textendash{}",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
}

_NOT_IN_T1 = set("\u00a8\u00ad\u00af\u00b4\u00b8ĦħĸĿŀŉŦŧſĵŊŋ")
_IN_T1 = {chr(code) for code in range(0x20, 0x7F)} | {chr(code) for code in range(0xA1, 0x180)} - _NOT_IN_T1
_IN_T1 |= set("ȘșȚț—‘’‚“”„•…€™")

_RUN = re.compile(r"([-',])(?=\1)")
"""Two of these in a row would become one glyph: a dash or a quotation mark."""


_LONG_WORD = 40
"""A word of so many characters may be broken, lest it stick out of the page."""


def escape_latex(text: str) -> str:
    r"""Plain text for pdfLaTeX with T1 fonts, whose letters are those of European languages.

    Every other character stands as its code point, ``\texttt{U+4E2D}``: nothing is lost, and the document compiles.
    """
    pieces, unbroken = [], 0
    for unknown, run in groupby(visible(text), key=_unknown):
        if unknown:
            pieces.append(rf"\texttt{{{' '.join(f'U+{ord(character):04X}' for character in run)}}}")
            continue
        for character in run:
            unbroken = 0 if character == " " else unbroken + 1
            pieces.append(_SPECIAL.get(character, character))
            if unbroken % _LONG_WORD == _LONG_WORD - 1:
                pieces.append(r"\allowbreak{}")
    return _RUN.sub(r"\1{}", "".join(pieces))


def has_code_points(text: str) -> bool:
    """Whether a text has characters that ``escape_latex`` can only name."""
    return any(map(_unknown, visible(text)))


def _unknown(character: str) -> bool:
    return character not in _SPECIAL and character not in _IN_T1
