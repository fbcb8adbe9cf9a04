"""Tables as GitHub's Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unimoe.analysis.tables.cells import Cell, visible

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table


def render(table: Table) -> str:
    """A table per group: best bold, second underlined, symbols raised, spread as a subscript."""
    blocks = [escape_markdown(table.caption)]
    for group in table.groups:
        head = [group.heading or table.columns[0], *table.columns[1:]]
        lines = [_row([escape_markdown(text) for text in head])]
        lines.append(_row([":--", *["--:"] * (len(table.columns) - 1)]))
        lines += [_row([_cell(cell) for cell in row]) for row in group.rows]
        blocks.append("\n".join(lines))
    blocks += [f"<sub>{escape_markdown(note)}</sub>" for note in table.notes]
    return "\n\n".join(blocks) + "\n"


def escape_markdown(text: str) -> str:
    """Plain text that stays plain text in Markdown, inside table cells too; ``joint_r8`` stays readable."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]~#$])", r"\\\1", text)
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word an underscore is no emphasis
    return text.replace("|", "&#124;")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    if cell.mark == "best":
        text = f"**{text}**"
    elif cell.mark == "second":
        text = f"<ins>{text}</ins>"
    raised = f"<sup>{escape_markdown(cell.symbols)}</sup>" if cell.symbols else ""
    spread = f"<sub>±{escape_markdown(cell.spread)}</sub>" if cell.spread else ""
    return text + raised + spread
