"""The table that every part of the analysis makes, and that knows all its forms."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from unimoe.analysis.tables import latex, markup, terminal
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, RowGroup, visible
from unimoe.io import write_text


@dataclass(frozen=True)
class Table:
    """A table and everything a reader needs beside it.

    Attributes:
        name: file stem, and the label in LaTeX.
        caption: what is shown, in one sentence.
        columns: headings; the first column holds names and is set flush left, the others flush right.
        groups: blocks of rows.
        notes: facts and caveats that travel with the table wherever it is pasted.
        csv_only: columns of CSV alone, where width costs nothing.
        title: a short headline, for a page that shows several tables.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]
    notes: tuple[str, ...] = ()
    csv_only: frozenset[str] = frozenset()
    title: str = ""

    @property
    def by_column(self) -> list[Row]:
        """The cells of each column, over all groups; no column without rows."""
        return list(zip(*(row for group in self.groups for row in group.rows), strict=True))

    @property
    def suffixed(self) -> list[bool]:
        """Whether some cell of each column has a spread or a symbol."""
        return [any(cell.spread or cell.symbols for cell in column) for column in self.by_column]

    def to_rich(self) -> terminal.Page:
        """Return a page for the terminal, columns aligned over groups: best bold, second underlined, spread dim."""
        return terminal.Page(self._printed())

    def to_markdown(self) -> str:
        """Return GitHub's Markdown: best bold, second underlined, spread as a subscript, symbols raised."""
        return markup.render_markdown(self._printed())

    def to_html(self) -> str:
        """Return a ``table`` element and its notes, unstyled: classes ``best``, ``second``, ``spread``, ``symbols``."""
        return markup.render_html(self._printed())

    def to_latex(self) -> str:
        """Return floats of at most a page each, for pdfLaTeX with booktabs and graphicx."""
        return latex.render(self._printed())

    def to_csv(self) -> str:
        """Return full precision, one line per row, the group in the first column; notes as trailing ``#`` lines.

        Names are whole; ``{name} std`` and ``{name} symbols`` follow where a column has them.
        """
        nothing = [(Cell(""),)] * len(self.columns)
        extras = [
            (any(cell.spread for cell in column), any(cell.symbols for cell in column))
            for column in self.by_column or nothing
        ]
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        heads = map(_csv_heads, self.columns, extras)
        writer.writerow(["group", *(head for of_column in heads for head in of_column)])
        for group in self.groups:
            for row in group.rows:
                texts = map(_csv_texts, row, extras)
                writer.writerow([visible(group.heading), *(text for of_cell in texts for text in of_cell)])
        writer.writerows([f"# {visible(note)}"] for note in self.notes)
        return buffer.getvalue()

    def write(self, folder: Path) -> None:
        """Write ``{name}.md``, ``{name}.tex`` and ``{name}.csv``."""
        write_text(folder / f"{self.name}.md", self.to_markdown())
        write_text(folder / f"{self.name}.tex", self.to_latex())
        write_text(folder / f"{self.name}.csv", self.to_csv())

    def _printed(self) -> Table:
        """Return the table without the columns that are for CSV alone."""
        kept = [i for i, column in enumerate(self.columns) if column not in self.csv_only]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            groups=tuple(
                replace(group, rows=tuple(tuple(row[i] for i in kept) for row in group.rows)) for group in self.groups
            ),
        )


def _csv_heads(column: str, extras: tuple[bool, bool]) -> list[str]:
    name = visible(column)
    return [name, *(f"{name} {what}" for what, held in zip(("std", "symbols"), extras, strict=True) if held)]


def _csv_texts(cell: Cell, extras: tuple[bool, bool]) -> Iterator[str]:
    if cell.value is not None:
        yield repr(cell.value)
    else:
        yield "" if cell.text == ABSENT else visible(cell.full or cell.text)
    spread, symbols = extras
    if spread:
        yield "" if cell.spread_value is None else repr(cell.spread_value)
    if symbols:
        yield cell.symbols
