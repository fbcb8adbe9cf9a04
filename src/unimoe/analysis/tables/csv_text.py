"""Tables as CSV, for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unimoe.analysis.tables.cells import ABSENT, Cell, visible

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table


def render(table: Table) -> str:
    """Full precision; columns ``{name} std`` and ``{name} symbols`` follow where a column has them."""
    columns = list(zip(*(row for group in table.groups for row in group.rows), strict=True))
    extras = [(any(c.spread for c in column), any(c.symbols for c in column)) for column in columns]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["group", *_names(table.columns, extras)])
    for group in table.groups:
        for row in group.rows:
            writer.writerow([visible(group.heading), *_values(row, extras)])
    writer.writerows([f"# {visible(note)}"] for note in table.notes)
    return buffer.getvalue()


def _names(columns: tuple[str, ...], extras: list[tuple[bool, bool]]) -> Iterator[str]:
    for column, (spread, symbols) in zip(columns, extras or [(False, False)] * len(columns), strict=True):
        name = visible(column)
        yield name
        if spread:
            yield f"{name} std"
        if symbols:
            yield f"{name} symbols"


def _values(row: tuple[Cell, ...], extras: list[tuple[bool, bool]]) -> Iterator[str]:
    for cell, (spread, symbols) in zip(row, extras, strict=True):
        yield visible(cell.text).replace(ABSENT, "") if cell.value is None else repr(cell.value)
        if spread:
            yield "" if cell.spread_value is None else repr(cell.spread_value)
        if symbols:
            yield cell.symbols
