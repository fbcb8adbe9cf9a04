r"""Tables as LaTeX that can be pasted into a paper, whatever its class.

Neither ``longtable``, which two-column classes refuse, nor fixed widths, which differ from class to class: a long table
becomes several floats of at most a page, and a wide one shrinks to the line it is set on, and only then. Where to cut
comes from estimates of width and height, for ``article``, whose lines and pages are shorter than those of conferences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from unimoe.analysis.tables.cells import Cell, Content, RowGroup
from unimoe.core.limits import visible

# Ours, since neither pandas' Styler nor great-tables cuts a table into floats or names what pdfLaTeX's fonts lack.

_SPECIAL = {
    **{character: f"\\{character}" for character in "{}$&%#_"},
    "\\": r"\textbackslash{}",
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
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "∞": r"$\infty$",
    "–": r"\textendash{}",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
}

_MARKS = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", None: "{}"}

_NOT_IN_T1 = set("\u00a8\u00ad\u00af\u00b4\u00b8ĦħĸĿŀŉŦŧſĵŊŋ")
_IN_T1 = {chr(code) for code in range(0x20, 0x7F)} | {chr(code) for code in range(0xA1, 0x180)} - _NOT_IN_T1
_IN_T1 |= set("ȘșȚț—‘’‚“”„•…€™")

_RUN = re.compile(r"([-',])(?=\1)")  # two in a row would become one glyph: a dash or a quotation mark
_LONG_WORD = 40  # a word of so many characters may be broken, so that it does not stick out of the page
_LONG_HEADING = 70  # a heading of more characters is broken into lines of 0.8 of the width
_PAGE = 42  # lines of \small text on a page
_LINE, _COLUMN = 345.0, 230.0  # width of the text, and what fits one of two columns, in points
_CHARACTER, _GAP = 4.6, 6.0  # mean width of a character in \small, and space between two columns, in points
_CODE_POINTS = (
    "% U+4E2D and the like: characters that pdfLaTeX's fonts lack. With XeLaTeX or LuaLaTeX and a font that has them,\n"
    "% put the characters back.\n"
)


@dataclass
class _Part:
    """What goes into one float, and how many lines it takes; ``notes`` are LaTeX already."""

    lines: float
    groups: list[RowGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Widths:
    """Which columns have a suffix, whether headings stand upright, and the width of the table that follows, in points.

    ``shrunk`` is the factor by which the table shrinks on the narrowest line, at most 1.
    """

    def __init__(self, table: Content) -> None:
        self.suffixed = table.suffixed
        cells = [max(map(_cell_width, column)) for column in table.by_column]
        heads = [_CHARACTER * len(column) for column in table.columns]
        level = sum(max(widths) + _GAP for widths in zip(cells, heads, strict=False))
        upright = sum(width + _GAP for width in (max(cells[0], heads[0]), *cells[1:])) if cells else 0.0
        self.upright = level > _LINE and upright < 0.8 * level
        total = upright if self.upright else level
        self.one_column = total <= _COLUMN
        self.head_lines = math.ceil(max(heads[1:]) / 11.0) if self.upright else 1
        self.shrunk = min(1.0, _LINE / total) if total else 1.0


def _cell_width(cell: Cell) -> float:
    spread = 3.2 * len(cell.spread) + 5.0 if cell.spread else 0.0
    return _CHARACTER * len(cell.text) + spread + 3.5 * len(cell.symbols)


def render(table: Content) -> str:
    """Return floats for booktabs: best bold, second underlined, symbols raised, spread as a subscript."""
    widths = _Widths(table)
    parts = _cut(table, widths)
    names = [table.caption, *table.columns, *table.notes, *(group.heading for group in table.groups)]
    names += [row[0].text for group in table.groups for row in group.rows]
    comment = "% Needs \\usepackage[T1]{fontenc}, \\usepackage{booktabs} and \\usepackage{graphicx}.\n"
    if any(_unknown(character) for name in names for character in visible(name)):
        comment += _CODE_POINTS
    return comment + "\n".join(_float(table, widths, part, i, len(parts)) for i, part in enumerate(parts, start=1))


def escape_latex(text: str) -> str:
    r"""Return plain text for pdfLaTeX with T1 fonts, whose letters are those of European languages.

    Every other character becomes its code point, ``\texttt{U+4E2D}``: nothing is lost, and the document compiles.
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


def _cut(table: Content, widths: _Widths) -> list[_Part]:
    """Cut a table into floats: between groups where it can be, within a group that is longer than a page."""
    line = (_COLUMN if widths.one_column else _LINE) / 4.1
    start = math.ceil(len(table.caption) / line) + (widths.head_lines + 2) * widths.shrunk
    parts = [_Part(start)]
    for group in table.groups:
        _append(parts, group, start, widths.shrunk)
    notes = [piece for note in table.notes for piece in _pieces(note, int(line * (_PAGE - start)))]
    needed = [math.ceil(len(note) / line) for note in notes]
    if parts[-1].lines + sum(needed) > _PAGE and len(parts[-1].groups) > 1:  # notes alone would make a poor page
        parts.append(_Part(start))
        _append(parts, parts[-2].groups.pop(), start, widths.shrunk)
    for note, lines in zip(notes, needed, strict=True):
        if parts[-1].lines + lines > _PAGE:
            parts.append(_Part(start))
        parts[-1].notes.append(note)
        parts[-1].lines += lines
    return parts


def _pieces(note: str, longest: int) -> Iterator[str]:
    """Yield a note as LaTeX, in pieces of about ``longest`` characters at most: a page cannot hold more."""
    piece = ""
    for word in map(escape_latex, visible(note).split()):
        if piece and len(piece) + len(word) >= longest:
            yield piece
            piece = ""
        piece = f"{piece} {word}" if piece else word
    yield piece


def _append(parts: list[_Part], group: RowGroup, start: float, height: float) -> None:
    """Add a group to the last float, or to new ones; ``height`` is that of a row, in lines."""
    heading, rows = group.heading, group.rows
    around = 1 + _heading_lines(heading)  # and a rule
    while rows:
        free = int((_PAGE - parts[-1].lines) / height) - around
        fits_elsewhere = len(rows) <= (_PAGE - start) / height - around
        if parts[-1].groups and len(rows) > free and (fits_elsewhere or free < 5):
            parts.append(_Part(start))
            continue
        taken, rows = rows[: max(free, 1)], rows[max(free, 1) :]
        parts[-1].groups.append(RowGroup(heading, taken))
        parts[-1].lines += (len(taken) + around) * height
        heading = f"{group.heading} (continued)" if group.heading else ""


def _float(table: Content, widths: _Widths, part: _Part, number: int, of: int) -> str:
    environment = "table" if widths.one_column else "table*"
    counted = f" (part {number} of {of})" if of > 1 else ""
    label = table.name if number == 1 else f"{table.name}-{number}"
    body = _tabular(table.columns, widths, part.groups) if part.groups else ""
    if part.notes:
        body += "\n\\par\\smallskip\n\\begin{minipage}{\\linewidth}\\footnotesize\\raggedright\n"
        body += "\\par\n".join(part.notes) + "\n\\end{minipage}"
    return (
        f"\\begin{{{environment}}}[tp]\n\\centering\\small\n"
        f"\\caption{{{escape_latex(table.caption + counted)}}}\\label{{tab:{label}}}\n\\par\\smallskip\n"
        f"{body}\n\\end{{{environment}}}\n"
    )


def _heading_lines(heading: str) -> int:
    if len(heading) <= _LONG_HEADING:
        return 1 if heading else 0
    return math.ceil(len(escape_latex(heading)) * _CHARACTER / (0.8 * _LINE))


def _tabular(columns: Sequence[str], widths: _Widths, groups: Sequence[RowGroup]) -> str:
    """Return a table in which spreads and symbols have a column of their own, so that decimals align."""
    shape = "".join("r@{}l" if suffixed else "r" for suffixed in widths.suffixed[1:])
    places = 1 + shape.count("r") + shape.count("l")
    heads = [_head(*facts, widths.upright) for facts in zip(columns[1:], widths.suffixed[1:], strict=True)]
    blocks = (" \\\\\n".join(_rows(group, widths.suffixed, places)) for group in groups)
    return (
        "\\setlength{\\tabcolsep}{2.5pt}%\n"
        "\\resizebox{\\ifdim\\width>\\linewidth \\linewidth\\else \\width\\fi}{!}{%\n"
        f"\\begin{{tabular}}{{l{shape}}}\n\\toprule\n{' & '.join([escape_latex(columns[0]), *heads])} \\\\\n\\midrule\n"
        + " \\\\\n\\midrule\n".join(blocks)
        + " \\\\\n\\bottomrule\n\\end{tabular}}"
    )


def _head(column: str, suffixed: bool, upright: bool) -> str:
    text = escape_latex(column)
    if upright:
        text = f"\\rotatebox{{90}}{{{text}}}"
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if suffixed else text


def _rows(group: RowGroup, suffixed: Sequence[bool], places: int) -> Iterator[str]:
    if group.heading:  # without width, so that a long one does not stretch the last column
        heading = f"\\emph{{{escape_latex(group.heading)}}}"
        if len(group.heading) > _LONG_HEADING:
            heading = f"\\parbox[t]{{0.8\\linewidth}}{{\\raggedright {heading}}}"
        yield f"\\multicolumn{{{places}}}{{l}}{{\\makebox[0pt][l]{{{heading}}}}}"
    for name, *cells in group.rows:
        yield " & ".join([escape_latex(name.text), *map(_cell, cells, suffixed[1:])])


def _cell(cell: Cell, suffixed: bool) -> str:
    text = _MARKS[cell.mark].format(escape_latex(cell.typeset))
    if not suffixed:
        return text
    lowered = f"_{{\\pm {escape_latex(cell.spread)}}}" if cell.spread else ""
    raised = f"{{}}^{{{escape_latex(cell.symbols).replace('$', '')}}}" if cell.symbols else ""
    return f"{text} & ${lowered}{raised}$" if lowered or raised else f"{text} &"


def _unknown(character: str) -> bool:
    """Return whether ``escape_latex`` can only name a character."""
    return character not in _SPECIAL and character not in _IN_T1
