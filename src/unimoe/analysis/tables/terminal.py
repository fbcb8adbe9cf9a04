"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from unimoe.analysis.tables.cells import Cell, RowGroup, visible

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table

_STYLES = {"best": "bold", "second": "underline", None: ""}
_NARROWEST_NAMES = 24
"""Names longer than this are folded where the terminal is narrow; numbers never are."""
_RAISED = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
"""Unicode raises every letter but q, of which few fonts know."""
_GAP = 2
"""Blanks between two columns, as rich sets them with the box and padding of ``_block``."""


@dataclass(frozen=True)
class Page:
    """Set a table on a terminal: columns that do not fit go below the others, with the names beside them.

    Args:
        table: what is shown.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the caption, the groups with columns and decimals aligned over all of them, and the notes."""
        table = self.table
        yield Text(visible(table.caption), style="bold")
        columns = table.by_column
        suffixes = [max(len(_suffix(cell)) for cell in column) for column in columns]
        widths = [
            max(len(visible(head)), max(len(cell.text) for cell in column) + suffix)
            for head, column, suffix in zip(table.columns, columns, suffixes, strict=False)
        ]
        names = min(widths[0], _NARROWEST_NAMES) if sum(widths) + _GAP * len(widths) > options.max_width else widths[0]
        for group in table.groups:
            if group.heading:
                yield Text(f"\n{visible(group.heading)}", style="italic")
            for part in _parts(widths, options.max_width - names - _GAP - 1):
                yield _block(table, group, part, widths, suffixes)
        yield from (Text(visible(note), style="dim") for note in table.notes)


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns but the first in parts that fit beside the names; at least one column each."""
    parts: list[list[int]] = []
    taken = room + 1
    for column, width in enumerate(widths[1:], 1):
        if taken + width + _GAP > room:
            parts.append([])
            taken = 0
        parts[-1].append(column)
        taken += width + _GAP
    return parts


def _block(
    table: Table, group: RowGroup, part: Sequence[int], widths: Sequence[int], suffixes: Sequence[int]
) -> RichTable:
    block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    block.add_column(Text(visible(table.columns[0])), overflow="fold")
    for column in part:
        head = visible(table.columns[column])
        block.add_column(Text(head.rjust(widths[column])), min_width=widths[column])
    for row in group.rows:
        cells = (_cell(row[column], widths[column], suffixes[column]) for column in part)
        block.add_row(Text(visible(row[0].text)), *cells)
    return block


def _cell(cell: Cell, width: int, suffix_width: int) -> Text:
    """Set flush right by hand: rich would strip the blanks that keep decimals in line."""
    suffix = _suffix(cell).ljust(suffix_width if cell.value is not None else 0)
    text = Text(visible(cell.text), style=_STYLES[cell.mark])
    return Text.assemble(" " * (width - len(text) - len(suffix)), text, (suffix, "dim"))


def _suffix(cell: Cell) -> str:
    return cell.symbols.translate(_RAISED) + (f" ±{cell.spread}" if cell.spread else "")
