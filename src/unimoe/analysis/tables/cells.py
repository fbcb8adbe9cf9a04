"""What a table is made of, before any format, and how numbers and names become cells."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from unimoe.analysis.formats import p_text, signed
from unimoe.core.grouping import gathered
from unimoe.results.folder import Results

Mark = Literal["best", "second"]

ABSENT = "–"  # shown where there is no number; empty in CSV
NAME_WIDTH = 32  # characters of a name in a table with many columns; longer ones are cut


@dataclass(frozen=True)
class Cell:
    """One cell."""

    text: str  # what is shown; numbers with an ASCII minus, which becomes a real one where the format has it
    spread: str = ""  # shown small behind the text, without its sign ±; a standard deviation
    mark: Mark | None = None
    value: float | None = None  # the number behind the text in full precision, for CSV; None where it is no number
    spread_value: float | None = None
    symbols: str = ""  # raised behind the text, such as the letters of the arms that this one beats
    full: str = ""  # the whole name where ``text`` is cut, for CSV

    @classmethod
    def number(cls, value: float | None, form: str = ".4g") -> Cell:
        """Return a number in some format; absent where there is none, or it is not finite."""
        return cls(ABSENT) if value is None or not math.isfinite(value) else cls(format(value, form), value=value)

    @classmethod
    def count(cls, value: int | None) -> Cell:
        """Return a whole number; absent where there is none."""
        return cls(ABSENT) if value is None else cls(f"{value:,}", value=value)

    @classmethod
    def signed(cls, value: float | None, digits: int = 2, *, keep_side: bool = False) -> Cell:
        """Return a difference with its sign, as ``formats.signed``; absent where there is none."""
        return cls(ABSENT) if value is None else cls(signed(value, digits, keep_side=keep_side), value=value)

    @classmethod
    def p(cls, p: float | None) -> Cell:
        """Return a p-value on its side of the level of the tests; absent where there is none."""
        return cls(ABSENT) if p is None else cls(p_text(p), value=p)

    @classmethod
    def mean(cls, values: Sequence[float]) -> Cell:
        """Return the mean and, of two and more values, the standard deviation (divisor n - 1)."""
        if not values:
            return cls(ABSENT)
        mean = float(np.mean(values))
        text = f"{mean:.2f}"
        cell = cls(text if text.strip("-0.") else text.removeprefix("-"), value=mean)
        return cell.with_spread(float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def with_spread(self, std: float | None) -> Cell:
        """Return the cell with the standard deviation of its value; as it is where there is none."""
        return self if std is None or not math.isfinite(std) else replace(self, spread=f"{std:.2f}", spread_value=std)

    @property
    def typeset(self) -> str:
        """The text with a real minus sign where it is a number, or where one stands in it, as in ``≥ -0.50``."""
        if self.value is None:
            return re.sub(r"(?<= )-(?=[\d.])", "−", self.text)
        return self.text.replace("-", "−")


Cells: TypeAlias = tuple[Cell, ...]  # its first cell names it


@dataclass(frozen=True)
class RowGroup:
    """Rows that belong together under one heading."""

    heading: str
    rows: tuple[Cells, ...]


def row_groups(rows: Iterable[tuple[str, Cells]]) -> tuple[RowGroup, ...]:
    """Return rows below their headings; rows of one heading together, no group without rows."""
    return tuple(RowGroup(heading, tuple(of_group)) for heading, of_group in gathered(rows).items())


def marked(cells: Sequence[Cell]) -> list[Cell]:
    """Mark best and second best as shown: what rounds to one number shares its mark; where all do, none has one."""
    shown = sorted({float(cell.text) for cell in cells if cell.value is not None}, reverse=True)
    if len(shown) < 2:
        return list(cells)
    marks: dict[str, Mark] = {f"{shown[0]:.2f}": "best", f"{shown[1]:.2f}": "second"}
    return [replace(cell, mark=marks.get(cell.text)) for cell in cells]


def caveat_notes(results: Results) -> tuple[str, ...]:
    """Return the caveats of the results, and the clusters of their queries, for every table and figure."""
    return (*(f"Caveat: {caveat}" for caveat in results.caveats), *cluster_notes(results))


def cluster_notes(results: Results) -> tuple[str, ...]:
    """Return a sentence on the clusters of queries, where there are some."""
    said = ", ".join(f"{number:,} on {key}" for key, number in (results.cluster_numbers or {}).items())
    return (
        (f"Queries are in clusters ({said}): intervals and tests draw these whole (cluster-robust).",) if said else ()
    )


def short_names(names: Iterable[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Return names cut to a width, no two of them alike.

    Names that share a beginning, such as paths, lose it; other long names lose their middle. Where names would become
    alike, they are longer than ``width`` (8 characters or more) instead.
    """
    names = list(dict.fromkeys(names))
    share_start = len({name[0] for name in names if len(name) > width}) == 1
    for wide in range(width, max(map(len, names), default=width)):
        middle = (wide - 1) // 2
        for head in (0, middle) if share_start else (middle, 0):
            cut = {name: f"{name[:head]}…{name[head + 1 - wide :]}" if len(name) > wide else name for name in names}
            if len(set(cut.values())) == len(names):
                return cut
    return {name: name for name in names}


def name_cells(names: Iterable[str]) -> tuple[dict[str, Cell], tuple[str, ...]]:
    """Return a cell for each name, cut where it is long, and the notes that say which ones were cut."""
    short = short_names(names)
    cells = {name: Cell(text, full=name if text != name else "") for name, text in short.items()}
    return cells, tuple(f"{cell.text}: {name}" for name, cell in cells.items() if cell.full)
