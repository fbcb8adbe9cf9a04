"""Tables as HTML, for the report, and as GitHub's Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unimoe.analysis.tables.cells import Cell, RowGroup, visible

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table

_HTML_MARKS = {"best": '<strong class="best">{}</strong>', "second": '<span class="second">{}</span>', None: "{}"}
_MARKDOWN_MARKS = {"best": "**{}**", "second": "<ins>{}</ins>", None: "{}"}


def render_html(table: Table) -> str:
    """Return a ``table`` with caption, column and row headers, a ``tbody`` per group, and its notes as a list below.

    Numbers carry their full precision in ``data-value``. Where some cell of a column has a spread or a symbol, every
    number of it has a ``span.suffix``, so that a style sheet can give those one width and align the decimals.
    """
    head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in table.columns)
    lines = [
        f'<table id="table-{escape_html(table.name)}">',
        f"<caption>{escape_html(table.caption)}</caption>",
        f"<thead><tr>{head}</tr></thead>",
    ]
    suffixed = table.suffixed
    for group in table.groups:
        lines += ["<tbody>", *_html_rows(group, len(table.columns), suffixed), "</tbody>"]
    lines.append("</table>")
    if table.notes:
        lines += ['<ul class="notes">', *(f"<li>{escape_html(note)}</li>" for note in table.notes), "</ul>"]
    return "\n".join(lines) + "\n"


def render_markdown(table: Table) -> str:
    """Return a table per group: best bold, second underlined, symbols raised, spread as a subscript."""
    blocks = [escape_markdown(table.caption)]
    rule = [":--", *["--:"] * (len(table.columns) - 1)]
    for group in table.groups:
        head = map(escape_markdown, (group.heading or table.columns[0], *table.columns[1:]))
        rows = [head, rule, *(map(_markdown_cell, row) for row in group.rows)]
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    blocks += [f"<sub>{escape_markdown(note)}</sub>" for note in table.notes]
    return "\n\n".join(blocks) + "\n"


def escape_html(text: str) -> str:
    """Return plain text that stays plain text in HTML, in attributes too."""
    return html.escape(visible(text))


def escape_markdown(text: str) -> str:
    """Return plain text that stays plain text in Markdown, inside table cells too; ``joint_r8`` stays readable."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]~#$])", r"\\\1", text)
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word an underscore is no emphasis
    return text.replace("|", "&#124;")


def _html_rows(group: RowGroup, columns: int, suffixed: list[bool]) -> Iterator[str]:
    if group.heading:
        yield f'<tr><th scope="rowgroup" colspan="{columns}">{escape_html(group.heading)}</th></tr>'
    for name, *cells in group.rows:
        shown = "".join(map(_html_cell, cells, suffixed[1:]))
        whole = f' title="{escape_html(name.full)}"' if name.full else ""
        yield f'<tr><th scope="row"{whole}>{escape_html(name.text)}</th>{shown}</tr>'


def _html_cell(cell: Cell, suffixed: bool) -> str:
    text = _HTML_MARKS[cell.mark].format(escape_html(cell.typeset))
    if cell.value is None:
        return f"<td>{text}</td>"
    symbols = f'<sup class="symbols">{escape_html(cell.symbols)}</sup>' if cell.symbols else ""
    spread = f'<span class="spread">±{escape_html(cell.spread)}</span>' if cell.spread else ""
    suffix = f'<span class="suffix">{symbols}{spread}</span>' if suffixed else ""
    return f'<td data-value="{cell.value!r}">{text}{suffix}</td>'


def _markdown_cell(cell: Cell) -> str:
    text = _MARKDOWN_MARKS[cell.mark].format(escape_markdown(cell.text))
    raised = f"<sup>{escape_markdown(cell.symbols)}</sup>" if cell.symbols else ""
    spread = f"<sub>±{escape_markdown(cell.spread)}</sub>" if cell.spread else ""
    return text + raised + spread
