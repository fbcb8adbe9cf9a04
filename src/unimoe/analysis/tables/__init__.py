"""Tables: one type, rendered for the terminal, Markdown, HTML, LaTeX and CSV, and one file per group of tables."""

from unimoe.analysis.tables.cells import ABSENT, Cell, RowGroup
from unimoe.analysis.tables.table import Table, escape_html, escape_latex, escape_markdown

__all__ = ["ABSENT", "Cell", "RowGroup", "Table", "escape_html", "escape_latex", "escape_markdown"]
