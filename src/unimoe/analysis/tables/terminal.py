"""Tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from unimoe.analysis.tables.cells import Cell, visible

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table

_STYLES = {"best": "bold", "second": "underline", None: ""}


def render(table: Table) -> Group:
    """A block per group, its columns aligned with those of the other groups and numbers by their decimals."""
    columns = list(zip(*(row for group in table.groups for row in group.rows), strict=True))
    suffixes = [max(len(_suffix(cell)) for cell in column) for column in columns]
    heads = [visible(column) for column in table.columns]
    widths = [
        max(len(head), max(len(cell.text) for cell in column) + suffix)
        for head, column, suffix in zip(heads, columns, suffixes, strict=False)
    ]
    blocks: list[RenderableType] = [Text(visible(table.caption), style="bold")]
    for group in table.groups:
        block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column(Text(heads[0]), overflow="fold")  # names give way where the terminal is narrow, numbers never
        for head, width in zip(heads[1:], widths[1:], strict=True):
            block.add_column(Text(head.rjust(width)), min_width=width)
        for name, *cells in group.rows:
            block.add_row(Text(visible(name.text)), *map(_cell, cells, widths[1:], suffixes[1:]))
        if group.heading:
            blocks.append(Text(f"\n{visible(group.heading)}", style="italic"))
        blocks.append(block)
    return Group(*blocks, *(Text(visible(note), style="dim") for note in table.notes))


def _cell(cell: Cell, width: int, suffix_width: int) -> Text:
    """Set flush right by hand: rich would strip the blanks that keep decimals in line."""
    suffix = _suffix(cell).ljust(suffix_width if cell.value is not None else 0)
    text = Text(visible(cell.text), style=_STYLES[cell.mark])
    return Text.assemble(" " * (width - len(text) - len(suffix)), text, (suffix, "dim"))


def _suffix(cell: Cell) -> str:
    return cell.symbols + (f" ±{cell.spread}" if cell.spread else "")
