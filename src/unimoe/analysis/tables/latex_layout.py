r"""Where a table for LaTeX is cut, and how its columns are set, from estimates of width and height.

The estimates assume ``article``, whose lines and pages are shorter than those of conferences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unimoe.analysis.tables.cells import Cell, RowGroup
from unimoe.analysis.tables.latex_text import escape_latex

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table

_PAGE = 42
r"""Lines of ``\small`` text on a page of ``article``, whose pages are shorter than those of conferences."""

_LINE = 345.0
"""Its text width in points."""

_COLUMN = 230.0
"""What fits one of two columns, in points."""

_CHARACTER = 4.6
r"""Mean width of a character in ``\small``, in points."""

_GAP = 6.0
"""Space between two columns, in points."""


@dataclass
class Part:
    """What goes into one float, and how many lines it takes."""

    lines: float
    groups: list[RowGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Widths:
    """Which columns have a suffix, whether headings stand upright, and the width of the table that follows, in points.

    Attributes:
        shrunk: the factor by which the table shrinks on the narrowest line, at most 1.
    """

    def __init__(self, table: Table) -> None:
        columns = list(zip(*(row for group in table.groups for row in group.rows), strict=True))
        self.suffixed = [any(c.spread or c.symbols for c in column) for column in columns]
        cells = [max(map(_cell_width, column)) for column in columns]
        heads = [_CHARACTER * len(column) for column in table.columns]
        level = self._total(map(max, zip(cells, heads, strict=False)))
        upright = self._total([max(cells[0], heads[0]), *cells[1:]]) if cells else 0.0
        self.upright = level > _LINE and upright < 0.8 * level
        self.total = upright if self.upright else level
        self.head_lines = math.ceil(max(heads[1:]) / 11.0) if self.upright else 1
        self.shrunk = min(1.0, _LINE / self.total) if self.total else 1.0

    @staticmethod
    def _total(widths: Iterable[float]) -> float:
        return sum(width + _GAP for width in widths)

    @property
    def one_column(self) -> bool:
        """Whether the table fits one of two columns."""
        return self.total <= _COLUMN


def _cell_width(cell: Cell) -> float:
    spread = 3.2 * len(cell.spread) + 5.0 if cell.spread else 0.0
    return _CHARACTER * len(cell.text) + spread + 3.5 * len(cell.symbols)


def cut(table: Table, widths: Widths) -> list[Part]:
    """Cut a table into floats: between groups where it can be, within a group that is longer than a page."""
    line = (_COLUMN if widths.one_column else _LINE) / 4.1
    start = math.ceil(len(table.caption) / line) + (widths.head_lines + 2) * widths.shrunk
    parts = [Part(start)]
    for group in table.groups:
        _append(parts, group, start, widths.shrunk)
    needed = [math.ceil(len(escape_latex(note)) / line) for note in table.notes]
    if parts[-1].lines + sum(needed) > _PAGE and len(parts[-1].groups) > 1:  # notes alone would make a poor page
        parts.append(Part(start))
        _append(parts, parts[-2].groups.pop(), start, widths.shrunk)
    for note, lines in zip(table.notes, needed, strict=True):
        if parts[-1].lines + lines > _PAGE:
            parts.append(Part(start))
        parts[-1].notes.append(note)
        parts[-1].lines += lines
    return parts


def _append(parts: list[Part], group: RowGroup, start: float, height: float) -> None:
    """Add a group to the last float, or to new ones; ``height`` is that of a row, in lines."""
    heading, rows = group.heading, group.rows
    around = 2 if heading else 1  # its heading, and a rule
    while rows:
        free = int((_PAGE - parts[-1].lines) / height) - around
        fits_elsewhere = len(rows) <= (_PAGE - start) / height - around
        if parts[-1].groups and len(rows) > free and (fits_elsewhere or free < 5):
            parts.append(Part(start))
            continue
        taken, rows = rows[: max(free, 1)], rows[max(free, 1) :]
        parts[-1].groups.append(RowGroup(heading, taken))
        parts[-1].lines += (len(taken) + around) * height
        heading = f"{group.heading} (continued)" if group.heading else ""
