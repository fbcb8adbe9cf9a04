"""Tables as HTML, for the report."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unimoe.analysis.tables.cells import Cell, RowGroup, visible

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table


def render(table: Table) -> str:
    """A ``table`` with caption, column and row headers, a ``tbody`` per group, and its notes as a list below.

    Numbers carry their full precision in ``data-value``. Where some cell of a column has a spread or a symbol, every
    number of it has a ``span.suffix``, so that a style sheet can give those one width and align the decimals.
    """
    suffixed = [
        any(c.spread or c.symbols for c in column)
        for column in zip(*(row for group in table.groups for row in group.rows), strict=True)
    ]
    head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in table.columns)
    lines = [
        f'<table id="table-{escape_html(table.name)}">',
        f"<caption>{escape_html(table.caption)}</caption>",
        f"<thead><tr>{head}</tr></thead>",
    ]
    for group in table.groups:
        lines += ["<tbody>", *_rows(group, len(table.columns), suffixed), "</tbody>"]
    lines.append("</table>")
    if table.notes:
        lines += ['<ul class="notes">', *(f"<li>{escape_html(note)}</li>" for note in table.notes), "</ul>"]
    return "\n".join(lines) + "\n"


def escape_html(text: str) -> str:
    """Plain text that stays plain text in HTML, in attributes too."""
    return html.escape(visible(text))


def _rows(group: RowGroup, columns: int, suffixed: list[bool]) -> Iterator[str]:
    if group.heading:
        yield f'<tr><th scope="rowgroup" colspan="{columns}">{escape_html(group.heading)}</th></tr>'
    for name, *cells in group.rows:
        shown = "".join(_cell(cell, suffix) for cell, suffix in zip(cells, suffixed[1:], strict=True))
        yield f'<tr><th scope="row">{escape_html(name.text)}</th>{shown}</tr>'


def _cell(cell: Cell, suffixed: bool) -> str:
    text = escape_html(cell.typeset)
    if cell.mark == "best":
        text = f'<strong class="best">{text}</strong>'
    elif cell.mark == "second":
        text = f'<span class="second">{text}</span>'
    if cell.value is None:
        return f"<td>{text}</td>"
    symbols = f'<sup class="symbols">{escape_html(cell.symbols)}</sup>' if cell.symbols else ""
    spread = f'<span class="spread">±{escape_html(cell.spread)}</span>' if cell.spread else ""
    suffix = f'<span class="suffix">{symbols}{spread}</span>' if suffixed else ""
    return f'<td data-value="{cell.value!r}">{text}{suffix}</td>'
