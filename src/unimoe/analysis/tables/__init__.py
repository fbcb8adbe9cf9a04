"""Tables: one type, rendered for the terminal, Markdown, HTML, LaTeX and CSV."""

from unimoe.analysis.tables.cells import ABSENT, Cell, Mark, RowGroup
from unimoe.analysis.tables.html import escape_html
from unimoe.analysis.tables.latex_text import escape_latex
from unimoe.analysis.tables.markdown import escape_markdown
from unimoe.analysis.tables.table import Table

__all__ = ["ABSENT", "Cell", "Mark", "RowGroup", "Table", "escape_html", "escape_latex", "escape_markdown"]
