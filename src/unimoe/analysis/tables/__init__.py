"""Tables: one type, rendered for the terminal, Markdown, HTML, LaTeX and CSV, and one file per group of tables."""

from unimoe.analysis.tables.cells import ABSENT, Cell, Mark, RowGroup
from unimoe.analysis.tables.latex import escape_latex
from unimoe.analysis.tables.table import Table, escape_html, escape_markdown

__all__ = ["ABSENT", "Cell", "Mark", "RowGroup", "Table", "escape_html", "escape_latex", "escape_markdown"]
