"""The table that every part of the analysis makes, and its forms for the terminal, Markdown, HTML and CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from unimoe.analysis.tables import latex
from unimoe.analysis.tables.cells import ABSENT, Cell, Content, RowGroup
from unimoe.core.io import write_text
from unimoe.core.limits import visible

_STYLES = {"best": "bold", "second": "underline", None: ""}
_HTML_MARKS = {"best": '<strong class="best">{}</strong>', "second": '<span class="second">{}</span>', None: "{}"}
_MARKDOWN_MARKS = {"best": "**{}**", "second": "<ins>{}</ins>", None: "{}"}

_NARROWEST_NAMES = 24  # longer names are folded where the terminal is narrow; numbers never are
_RAISED = str.maketrans("abcdefghijklmnoprstuvwxyz()", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ⁽⁾")  # few fonts know a raised q
_GAP = 2  # blanks between two columns, as rich sets them with the box and padding of ``_block``
_NUMBERS = re.compile(r"[-+0-9.,%±()\[\] ]*(to [-+0-9.,%± ]*)?")


class Table(Content):
    """A table with its forms for terminal, Markdown, HTML, LaTeX and CSV."""

    def to_rich(self) -> Table:
        """Return what a terminal prints, columns aligned over groups: best bold, second underlined, spread dim."""
        return self._printed()

    def to_markdown(self) -> str:
        """Return GitHub's Markdown: best bold, second underlined, spread as a subscript, symbols raised."""
        table = self._printed()
        blocks = [escape_markdown(table.caption)]
        rule = [":--", *["--:"] * (len(table.columns) - 1)]
        for group in table.groups:
            head = map(escape_markdown, (group.heading or table.columns[0], *table.columns[1:]))
            rows = [head, rule, *(map(_markdown_cell, row) for row in group.rows)]
            blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        blocks += [f"<sub>{escape_markdown(note)}</sub>" for note in table.notes]
        return "\n\n".join(blocks) + "\n"

    def to_html(self) -> str:
        """Return a ``table`` element and its notes, unstyled: classes ``best``, ``second``, ``spread``, ``symbols``."""
        table = self._printed()
        head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in table.columns)
        lines = [
            f'<table id="table-{escape_html(table.name)}">',
            f"<caption>{escape_html(table.caption)}</caption>",
            f"<thead><tr>{head}</tr></thead>",
        ]
        suffixed = table.suffixed
        for group in table.groups:
            lines.append("<tbody>")
            if group.heading:
                heading = escape_html(group.heading)
                lines.append(f'<tr><th scope="rowgroup" colspan="{len(table.columns)}">{heading}</th></tr>')
            for name, *cells in group.rows:
                shown = "".join(map(_html_cell, cells, suffixed[1:]))
                whole = f' title="{escape_html(name.full)}"' if name.full else ""
                lines.append(f'<tr><th scope="row"{whole}>{escape_html(name.text)}</th>{shown}</tr>')
            lines.append("</tbody>")
        lines.append("</table>")
        if table.notes:
            lines += ['<ul class="notes">', *(f"<li>{escape_html(note)}</li>" for note in table.notes), "</ul>"]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return floats of at most a page each, for pdfLaTeX with booktabs and graphicx."""
        return latex.render(self._printed())

    def to_csv(self) -> str:
        """Return full precision, one line per row, the group in the first column; notes as trailing ``#`` lines.

        Names are whole; ``{name} std`` and ``{name} symbols`` follow where a column has them. What looks
        like a formula has an apostrophe before it.
        """
        lines = [["group", *(escape_csv(group.heading) for group in self.groups for _ in group.rows)]]
        for column, cells in zip(self.columns, self.by_column or [()] * len(self.columns), strict=True):
            name = escape_csv(column)
            lines.append([name, *map(_csv_text, cells)])
            if any(cell.spread for cell in cells):
                spreads = (cell.spread_value for cell in cells)
                lines.append([f"{name} std", *("" if spread is None else repr(spread) for spread in spreads)])
            if any(cell.symbols for cell in cells):
                lines.append([f"{name} symbols", *(cell.symbols for cell in cells)])
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerows(zip(*lines, strict=True))
        writer.writerows([f"# {visible(note)}"] for note in self.notes)
        return buffer.getvalue()

    def write(self, folder: Path) -> None:
        """Write ``{name}.md``, ``{name}.tex`` and ``{name}.csv``."""
        for ending, text in (("md", self.to_markdown()), ("tex", self.to_latex()), ("csv", self.to_csv())):
            write_text(folder / f"{self.name}.{ending}", text)

    def _printed(self) -> Table:
        """Return the table without the columns that are for CSV alone."""
        kept = [column not in self.csv_only for column in self.columns]
        groups = (replace(group, rows=tuple(tuple(compress(row, kept)) for row in group.rows)) for group in self.groups)
        return replace(self, columns=tuple(compress(self.columns, kept)), groups=tuple(groups))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield caption, groups and notes; columns that do not fit go below the others, with the names beside them."""
        yield Text(visible(self.caption), style="bold")
        columns = self.by_column
        suffixes = [max(len(_suffix(cell)) for cell in column) for column in columns]
        widths = [
            max(len(visible(head)), max(len(cell.text) for cell in column) + suffix)
            for head, column, suffix in zip(self.columns, columns, suffixes, strict=False)
        ]
        names = min(widths[0], _NARROWEST_NAMES) if sum(widths) + _GAP * len(widths) > options.max_width else widths[0]
        for group in self.groups:
            if group.heading:
                yield Text(f"\n{visible(group.heading)}", style="italic")
            for part in _parts(widths, options.max_width - names - _GAP - 1):
                yield self._block(group, part, widths, suffixes)
        yield from (Text(visible(note), style="dim") for note in self.notes)

    def _block(self, group: RowGroup, part: Sequence[int], widths: Sequence[int], suffixes: Sequence[int]) -> RichTable:
        block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column(Text(visible(self.columns[0])), overflow="fold")
        for column in part:
            head = visible(self.columns[column])
            block.add_column(Text(head.rjust(widths[column])), min_width=widths[column])
        for row in group.rows:
            cells = (_rich_cell(row[column], widths[column], suffixes[column]) for column in part)
            block.add_row(Text(visible(row[0].text)), *cells)
        return block


def escape_html(text: str) -> str:
    """Return plain text that stays plain text in HTML, in attributes too."""
    return html.escape(visible(text))


def escape_markdown(text: str) -> str:
    """Return plain text that stays plain text in Markdown, inside table cells too; ``joint_r8`` stays readable."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]~#$])", r"\\\1", text)
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word an underscore is no emphasis
    return text.replace("|", "&#124;")


def escape_csv(text: str) -> str:
    """Return plain text that no spreadsheet takes for a formula: one that looks like it begins with an apostrophe."""
    text = visible(text)
    return f"'{text}" if text[:1] in set("=+-@") and not _NUMBERS.fullmatch(text) else text


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


def _rich_cell(cell: Cell, width: int, suffix_width: int) -> Text:
    """Set flush right by hand: rich would strip the blanks that keep decimals in line."""
    suffix = _suffix(cell).ljust(suffix_width if cell.value is not None else 0)
    text = Text(visible(cell.text), style=_STYLES[cell.mark])
    return Text.assemble(" " * (width - len(text) - len(suffix)), text, (suffix, "dim"))


def _suffix(cell: Cell) -> str:
    return cell.symbols.translate(_RAISED) + (f" ±{cell.spread}" if cell.spread else "")


def _markdown_cell(cell: Cell) -> str:
    text = _MARKDOWN_MARKS[cell.mark].format(escape_markdown(cell.text))
    raised = f"<sup>{escape_markdown(cell.symbols)}</sup>" if cell.symbols else ""
    spread = f"<sub>±{escape_markdown(cell.spread)}</sub>" if cell.spread else ""
    return text + raised + spread


def _html_cell(cell: Cell, suffixed: bool) -> str:
    """Return a cell; every number of a suffixed column has a ``span.suffix``, so that a style sheet aligns decimals."""
    text = _HTML_MARKS[cell.mark].format(escape_html(cell.typeset))
    if cell.value is None:
        return f"<td>{text}</td>"
    symbols = f'<sup class="symbols">{escape_html(cell.symbols)}</sup>' if cell.symbols else ""
    spread = f'<span class="spread">±{escape_html(cell.spread)}</span>' if cell.spread else ""
    suffix = f'<span class="suffix">{symbols}{spread}</span>' if suffixed else ""
    return f'<td data-value="{cell.value!r}">{text}{suffix}</td>'


def _csv_text(cell: Cell) -> str:
    if cell.value is not None:
        return repr(cell.value)
    return "" if cell.text == ABSENT else escape_csv(cell.full or cell.text)
