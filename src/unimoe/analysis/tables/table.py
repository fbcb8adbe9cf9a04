"""The table that every part of the analysis makes, and that knows all its forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from unimoe.analysis.tables import csv_text, html, latex, markdown, terminal
from unimoe.analysis.tables.cells import RowGroup
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
        csv_only: columns that stand in CSV alone, where width costs nothing.
        title: a short headline, for a page that shows several tables.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]
    notes: tuple[str, ...] = ()
    csv_only: frozenset[str] = frozenset()
    title: str = ""

    def to_rich(self) -> terminal.Page:
        """For the terminal, a block per group with aligned columns: best bold, second underlined, spread dim."""
        return terminal.Page(self._printed())

    def to_markdown(self) -> str:
        """GitHub's Markdown: best bold, second underlined, spread as a subscript, symbols raised."""
        return markdown.render(self._printed())

    def to_html(self) -> str:
        """A ``table`` element and its notes, without style: classes ``best``, ``second``, ``spread``, ``symbols``."""
        return html.render(self._printed())

    def to_latex(self) -> str:
        """Floats of at most a page each, for pdfLaTeX with booktabs and graphicx."""
        return latex.render(self._printed())

    def to_csv(self) -> str:
        """Full precision, one line per row, the group in the first column; notes as trailing ``#`` lines."""
        return csv_text.render(self)

    def write(self, folder: Path) -> None:
        """Write ``{name}.md``, ``{name}.tex`` and ``{name}.csv``."""
        write_text(folder / f"{self.name}.md", self.to_markdown())
        write_text(folder / f"{self.name}.tex", self.to_latex())
        write_text(folder / f"{self.name}.csv", self.to_csv())

    def _printed(self) -> Table:
        """The table without the columns that are for CSV alone."""
        kept = [i for i, column in enumerate(self.columns) if column not in self.csv_only]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            groups=tuple(
                replace(group, rows=tuple(tuple(row[i] for i in kept) for row in group.rows)) for group in self.groups
            ),
        )
