"""The table that every part of the analysis makes, and its forms for the terminal, Markdown, HTML, LaTeX and CSV."""

from __future__ import annotations

import unimoe.core.quiet_imports  # noqa: F401

# isort: split

import csv
import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from unimoe.analysis.formats import metric_name
from unimoe.analysis.tables.cells import ABSENT, Cell, Cells, RowGroup
from unimoe.core.io import write_text
from unimoe.core.limits import visible

_STYLES = {"best": "bold", "second": "underline", None: ""}
_HTML_MARKS = {"best": '<strong class="best">{}</strong>', "second": '<span class="second">{}</span>', None: "{}"}
_MARKDOWN_MARKS = {"best": "**{}**", "second": "<ins>{}</ins>", None: "{}"}

_NARROWEST_NAMES = 24  # longer names are folded where the terminal is narrow; numbers never are
_GAP = 2  # blanks between two columns, as rich sets them with the box and padding below
_RAISED = str.maketrans("abcdefghijklmnoprstuvwxyz()", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ⁽⁾")  # few fonts know a raised q
_NUMBERS = re.compile(r"[-+0-9.,%±()\[\] ]*(to [-+0-9.,%± ]*)?")

# LaTeX is our own: pandas' Styler would spare the rules alone, and knows neither groups nor what T1 fonts lack.
_SPECIAL = str.maketrans(
    {character: f"\\{character}" for character in "{}$&%#_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "`": r"\textasciigrave{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": r"\textendash{}"}
    | {"[": "{[}", "]": "{]}", "*": "{*}"}  # bare ones behind \\ or \midrule would be part of the command
    | {"±": r"$\pm$", "×": r"$\times$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$"}
    | {"†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "¶": r"\P{}", "\0": r"\allowbreak{}"}
)
_NOT_IN_T1 = re.compile("(?:[^ -~¡-ſȘșȚț—‘’‚“”„•…€™]|[\u00a8\u00ad\u00af\u00b4\u00b8ĦħĸĿŀŉŦŧſĵŊŋ])+")
_LATEX_MARKS = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", None: "{}"}
_MOST_ROWS = 40  # of a float: more do not fit a page
_MOST_FLOATS = 10  # behind each other: LaTeX stops where it holds more back than 52, long ago 18
_LINE = 60  # characters of a heading or note that take the place of a row
_LEVEL_HEADS = 12  # columns before headings are rotated
_NARROW = 4  # columns that fit one of two columns of a page

_NEEDS = "% Needs \\usepackage[T1]{fontenc}, \\usepackage{booktabs} and \\usepackage{graphicx}.\n"
_CODE_POINTS = "% U+4E2D and the like: not in pdfLaTeX's fonts; XeLaTeX and LuaLaTeX can set the characters.\n"


@dataclass(frozen=True)
class Table:
    """A table with its forms for terminal, Markdown, HTML, LaTeX and CSV.

    Headings of columns that are metrics are printed as papers spell them; CSV has them as results do.
    """

    name: str  # file stem, and the label in LaTeX
    caption: str  # what is shown, in one sentence
    columns: tuple[str, ...]  # headings; the first column holds names and is set flush left, the others flush right
    groups: tuple[RowGroup, ...]
    notes: tuple[str, ...] = ()  # facts that travel with the table wherever it is pasted
    csv_only: frozenset[str] = frozenset()  # columns of CSV alone, where width costs nothing
    title: str = ""  # a short headline, for a page that shows several tables

    @property
    def by_column(self) -> list[Cells]:
        """The cells of each column, over all groups."""
        rows = [row for group in self.groups for row in group.rows]
        return [tuple(row[place] for row in rows) for place in range(len(self.columns))]

    @property
    def suffixed(self) -> list[bool]:
        """Whether some cell of each column has a spread or a symbol."""
        return [any(cell.spread or cell.symbols for cell in column) for column in self.by_column]

    def select(self, kept: Sequence[bool]) -> Table:
        """Return the table with some of its columns."""
        groups = (replace(group, rows=tuple(tuple(compress(row, kept)) for row in group.rows)) for group in self.groups)
        return replace(self, columns=tuple(compress(self.columns, kept)), groups=tuple(groups))

    def to_rich(self) -> Table:
        """Return the table as people see it, which rich prints: no columns for CSV alone, metrics as papers spell them.

        Columns are aligned over groups; best is bold, second underlined, the spread dim.
        """
        table = self.select([column not in self.csv_only for column in self.columns])
        return replace(table, columns=tuple(map(metric_name, table.columns)), csv_only=frozenset())

    def to_markdown(self) -> str:
        """Return GitHub's Markdown: best bold, second underlined, spread as a subscript, symbols raised."""
        table = self.to_rich()
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
        table = self.to_rich()
        lines = [f'<table id="table-{escape_html(table.name)}">', f"<caption>{escape_html(table.caption)}</caption>"]
        head = "".join(f'<th scope="col">{escape_html(column)}</th>' for column in table.columns)
        lines.append(f"<thead><tr>{head}</tr></thead>")
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
        """Return a float for booktabs and graphicx, or several of whole groups; long notes become text behind it."""
        table = self.to_rich()
        floats: list[list[RowGroup]] = [[]]
        room = _MOST_ROWS
        for group in table.groups:
            for start in range(0, len(group.rows), _MOST_ROWS):
                rows = group.rows[start : start + _MOST_ROWS]
                lines = len(rows) + 2 + len(group.heading) // _LINE
                if floats[-1] and lines > room:
                    floats.append([])
                    room = _MOST_ROWS
                floats[-1].append(RowGroup(group.heading, rows))
                room -= lines
        notes = "\\par\n".join(map(escape_latex, table.notes))
        below = len(floats) == 1 and len(notes) <= _LINE * room
        text = "\n".join(
            line
            for number, groups in enumerate(floats, 1)
            for line in (
                *([r"\clearpage"] if number % _MOST_FLOATS == 0 else ()),
                *_float(table, groups, number, len(floats), notes if below else ""),
            )
        )
        if notes and not below:
            text += f"\n{{\\footnotesize\\raggedright\n{notes}\\par}}"
        return _NEEDS + (_CODE_POINTS if r"\texttt{U+" in text else "") + text + "\n"

    def to_csv(self) -> str:
        """Return full precision, one line per row, the group in the first column; notes as trailing ``#`` lines.

        Names are whole; ``{name} std`` and ``{name} symbols`` follow where a column has them. What looks
        like a formula has an apostrophe before it.
        """
        lines = [["group", *(escape_csv(group.heading) for group in self.groups for _ in group.rows)]]
        for name, cells in zip(map(escape_csv, self.columns), self.by_column, strict=True):
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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield caption, groups and notes; columns that do not fit go below the others, with the names repeated."""
        yield Text(visible(self.caption), style="bold")
        first = [Text(visible(text)) for text in (self.columns[0], *(cell.text for cell in self.by_column[0]))]
        columns = [_aligned(*column) for column in zip(self.columns[1:], self.by_column[1:], strict=True)]
        widths = [column[0].cell_len + _GAP for column in columns]
        names = max(name.cell_len for name in first) + _GAP
        if names + sum(widths) > options.max_width:
            names = min(names, _NARROWEST_NAMES + _GAP)
        parts: list[list[list[Text]]] = [[]]
        room = options.max_width - names - 1
        for column, width in zip(columns, widths, strict=True):
            if parts[-1] and width > room:
                parts.append([])
                room = options.max_width - names - 1
            parts[-1].append(column)
            room -= width
        end = 1
        for group in self.groups:
            if group.heading:
                yield Text(f"\n{visible(group.heading)}", style="italic")
            start, end = end, end + len(group.rows)
            for part in parts:
                block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
                block.add_column(first[0], overflow="fold")
                for head, *_ in part:
                    block.add_column(head, min_width=head.cell_len)
                for place in range(start, end):
                    block.add_row(first[place], *(column[place] for column in part))
                yield block
        yield from (Text(visible(note), style="dim") for note in self.notes)


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


def escape_latex(text: str) -> str:
    r"""Return plain text for pdfLaTeX with T1 fonts, which have the letters of European languages.

    Every other character becomes its code point, ``\texttt{U+4E2D}``: nothing is lost, and the document compiles.
    """
    breakable = re.sub(r"(\S{39})(?=\S)", "\\1\0", visible(text))  # a longer word would stick out of the page
    escaped = _NOT_IN_T1.sub(
        lambda run: rf"\texttt{{{' '.join(f'U+{ord(character):04X}' for character in run[0])}}}",
        breakable.translate(_SPECIAL),
    )
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)  # two in a row would become a dash or a quotation mark


def _aligned(head: str, cells: Sequence[Cell]) -> list[Text]:
    """Return a heading and its cells, all of one width, decimals below each other whatever is behind them.

    The blanks are set by hand: rich, asked to set a column flush right, would strip those behind a number.
    """
    suffixes = [cell.symbols.translate(_RAISED) + (f" ±{cell.spread}" if cell.spread else "") for cell in cells]
    longest = max(map(len, suffixes), default=0)
    column = [Text(visible(head))]
    for cell, suffix in zip(cells, suffixes, strict=True):
        behind = suffix.ljust(longest if cell.value is not None else 0)
        column.append(Text.assemble((visible(cell.text), _STYLES[cell.mark]), (behind, "dim")))
    width = max(text.cell_len for text in column)
    for text in column:
        text.pad_left(width - text.cell_len)
    return column


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


def _float(table: Table, groups: Sequence[RowGroup], number: int, of: int, notes: str) -> Iterator[str]:
    """Yield the lines of a float; spreads and symbols have a column of their own, so that decimals align."""
    environment = "table" if len(table.columns) <= _NARROW else "table*"
    caption = escape_latex(f"{table.caption} (part {number} of {of})" if of > 1 else table.caption)
    suffixed = table.suffixed[1:]
    heads = [escape_latex(column) for column in table.columns]
    if len(heads) > _LEVEL_HEADS:
        heads[1:] = [rf"\rotatebox{{90}}{{{head}}}" for head in heads[1:]]
    heads[1:] = [rf"\multicolumn{{2}}{{c}}{{{h}}}" if two else h for h, two in zip(heads[1:], suffixed, strict=True)]
    yield rf"\begin{{{environment}}}[tp]"
    yield r"\centering\small\setlength{\tabcolsep}{3pt}"
    yield rf"\caption{{{caption}}}\label{{tab:{table.name}{f'-{number}' if number > 1 else ''}}}"
    yield r"\par\smallskip"
    yield r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    yield rf"\begin{{tabular}}{{l{''.join('r@{}l' if two else 'r' for two in suffixed)}}}"
    yield r"\toprule"
    yield " & ".join(heads) + r" \\"
    for group in groups:
        yield r"\midrule"
        if group.heading:  # in a box without width, lest it stretch the last column
            heading = rf"\parbox[t]{{.8\linewidth}}{{\raggedright\emph{{{escape_latex(group.heading)}}}}}"
            yield rf"\multicolumn{{{len(heads) + sum(suffixed)}}}{{l}}{{\rlap{{{heading}}}}} \\"
        for name, *cells in group.rows:
            yield " & ".join([escape_latex(name.text), *map(_latex_cell, cells, suffixed)]) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    if notes:
        yield r"\par\smallskip\begin{minipage}{\linewidth}\footnotesize\raggedright"
        yield notes
        yield r"\end{minipage}"
    yield rf"\end{{{environment}}}"


def _latex_cell(cell: Cell, suffixed: bool) -> str:
    text = _LATEX_MARKS[cell.mark].format(escape_latex(cell.typeset))
    lowered = rf"_{{\pm {escape_latex(cell.spread)}}}" if cell.spread else ""
    raised = rf"{{}}^{{{escape_latex(cell.symbols).replace('$', '')}}}" if cell.symbols else ""
    return text + (" &" if suffixed else "") + (f" ${lowered}{raised}$" if lowered or raised else "")


def _csv_text(cell: Cell) -> str:
    if cell.value is not None:
        return repr(cell.value)
    return "" if cell.text == ABSENT else escape_csv(cell.full or cell.text)
