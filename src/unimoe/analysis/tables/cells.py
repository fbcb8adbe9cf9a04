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

METRIC_NAMES = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP", "recall": "Recall", "p": "P"}

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


Row: TypeAlias = tuple[Cell, ...]  # its first cell names it


@dataclass(frozen=True)
class RowGroup:
    """Rows that belong together under one heading."""

    heading: str
    rows: tuple[Row, ...]


def row_groups(rows: Iterable[tuple[str, Row]]) -> tuple[RowGroup, ...]:
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
    """Return the caveats of the results, for every table and figure."""
    return tuple(f"Caveat: {caveat}" for caveat in results.caveats)


def metric_name(metric: str) -> str:
    """Return a metric as papers spell it: ``nDCG@10`` for ``ndcg@10``; other names as they are."""
    family, at, rest = metric.partition("@")
    return METRIC_NAMES.get(family, family) + at + rest


def short_names(names: Iterable[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Return names cut to a width, no two of them alike.

    Names that share a beginning, such as paths, lose it; other long names lose their middle. Where names would become
    alike, they are longer than ``width`` (8 characters or more) instead.
    """
    names = list(dict.fromkeys(names))
    from_start = len({name[0] for name in names if len(name) > width}) == 1
    for wide in range(width, max(map(len, names), default=width)):
        for at_start in (from_start, not from_start):
            short = {name: name if len(name) <= wide else _cut(name, wide, at_start=at_start) for name in names}
            if len(set(short.values())) == len(names):
                return short
    return {name: name for name in names}


def name_cells(names: Iterable[str]) -> tuple[dict[str, Cell], tuple[str, ...]]:
    """Return a cell for each name, cut where it is long, and the notes that say which ones were cut."""
    short = short_names(names)
    cells = {name: Cell(text, full=name if text != name else "") for name, text in short.items()}
    return cells, tuple(f"{cell.text}: {name}" for name, cell in cells.items() if cell.full)


def _cut(name: str, width: int, *, at_start: bool) -> str:
    if at_start:
        return f"…{name[1 - width :]}"
    head = (width - 1) // 2
    return f"{name[:head]}…{name[head + 1 - width :]}"


@dataclass(frozen=True)
class Content:
    """A table and everything a reader needs beside it."""

    name: str  # file stem, and the label in LaTeX
    caption: str  # what is shown, in one sentence
    columns: tuple[str, ...]  # headings; the first column holds names and is set flush left, the others flush right
    groups: tuple[RowGroup, ...]
    notes: tuple[str, ...] = ()  # facts and caveats that travel with the table wherever it is pasted
    csv_only: frozenset[str] = frozenset()  # columns of CSV alone, where width costs nothing
    title: str = ""  # a short headline, for a page that shows several tables

    @property
    def by_column(self) -> list[Row]:
        """The cells of each column, over all groups; no column without rows."""
        return list(zip(*(row for group in self.groups for row in group.rows), strict=True))

    @property
    def suffixed(self) -> list[bool]:
        """Whether some cell of each column has a spread or a symbol."""
        return [any(cell.spread or cell.symbols for cell in column) for column in self.by_column]
