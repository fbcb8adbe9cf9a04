"""One table type, rendered for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from unimoe.io import write_text

Mark = Literal["best", "second"]

ABSENT = "–"
"""Shown where there is no number; empty in CSV."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
}


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what is shown.
        spread: shown small behind the text, without its sign ±; a standard deviation.
        mark: best or second best of its column within its group.
        value: the number behind the text in full precision, for CSV.
        spread_value: the number behind ``spread``.
    """

    text: str
    spread: str = ""
    mark: Mark | None = None
    value: float | None = None
    spread_value: float | None = None


@dataclass(frozen=True)
class RowGroup:
    """Rows that are compared with each other, under one heading; the first cell of a row names it."""

    heading: str
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table and everything a reader needs beside it.

    Attributes:
        name: file stem, and the label in LaTeX.
        caption: what is shown, in one sentence.
        columns: headings; the first column holds names and is set flush left, the others flush right.
        groups: blocks of rows.
        notes: facts and caveats that travel with the table wherever it is pasted.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]
    notes: tuple[str, ...] = field(default=())

    def to_rich(self) -> Group:
        """For the terminal, a block per group with aligned columns: best bold, second underlined, spread dim."""
        blocks: list[RenderableType] = [Text(self.caption, style="bold")]
        widths = [max(map(len, column)) for column in zip(*self._shown(), strict=True)]
        for group in self.groups:
            table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            for i, (column, width) in enumerate(zip(self.columns, widths, strict=True)):
                if i == 0:  # names give way where the terminal is narrow, numbers never
                    table.add_column(Text(column), overflow="fold")
                else:
                    table.add_column(Text(column), justify="right", min_width=width)
            for row in group.rows:
                table.add_row(*(_rich_cell(cell) for cell in row))
            blocks += [Text(f"\n{group.heading}", style="italic"), table] if group.heading else [table]
        return Group(*blocks, *(Text(note, style="dim") for note in self.notes))

    def to_markdown(self) -> str:
        """GitHub's Markdown: best bold, second underlined, spread as a subscript."""
        blocks = [escape_markdown(self.caption)]
        for group in self.groups:
            head = [group.heading or self.columns[0], *self.columns[1:]]
            lines = [_markdown_row([escape_markdown(text) for text in head])]
            lines.append(_markdown_row([":--", *["--:"] * (len(self.columns) - 1)]))
            lines += [_markdown_row([_markdown_cell(cell) for cell in row]) for row in group.rows]
            blocks.append("\n".join(lines))
        blocks += [f"<sub>{escape_markdown(note)}</sub>" for note in self.notes]
        return "\n\n".join(blocks) + "\n"

    def to_latex(self) -> str:
        r"""A ``table`` for ``\usepackage{booktabs}``: best bold, second underlined, spread as a subscript."""
        body = " \\\\\n\\midrule\n".join(" \\\\\n".join(self._latex_rows(group)) for group in self.groups)
        notes = "".join(f"\\par\\footnotesize {escape_latex(note)}\n" for note in self.notes)
        head = " & ".join(escape_latex(column) for column in self.columns)
        return (
            "% needs \\usepackage[T1]{fontenc} and \\usepackage{booktabs}\n"
            "\\begin{table}[t]\n\\centering\n"
            f"\\caption{{{escape_latex(self.caption)}}}\n\\label{{tab:{self.name}}}\n"
            f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}\n"
            f"\\toprule\n{head} \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
            f"{notes}\\end{{table}}\n"
        )

    def to_csv(self) -> str:
        """Full precision, one line per row, the group in the first column; notes as trailing ``#`` lines."""
        spreads = [any(row[i].spread for group in self.groups for row in group.rows) for i in range(len(self.columns))]
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        names = [[c, f"{c} std"] if spread else [c] for c, spread in zip(self.columns, spreads, strict=True)]
        writer.writerow(["group", *(name for both in names for name in both)])
        for group in self.groups:
            for row in group.rows:
                cells = [_csv_cell(cell, spread) for cell, spread in zip(row, spreads, strict=True)]
                writer.writerow([group.heading, *(text for both in cells for text in both)])
        writer.writerows([f"# {note}"] for note in self.notes)
        return buffer.getvalue()

    def write(self, folder: Path) -> None:
        """Write ``{name}.md``, ``{name}.tex`` and ``{name}.csv``."""
        write_text(folder / f"{self.name}.md", self.to_markdown())
        write_text(folder / f"{self.name}.tex", self.to_latex())
        write_text(folder / f"{self.name}.csv", self.to_csv())

    def _shown(self) -> Iterator[Sequence[str]]:
        yield self.columns
        for group in self.groups:
            yield from ([_rich_cell(cell).plain for cell in row] for row in group.rows)

    def _latex_rows(self, group: RowGroup) -> Iterator[str]:
        if group.heading:
            yield f"\\multicolumn{{{len(self.columns)}}}{{l}}{{\\emph{{{escape_latex(group.heading)}}}}}"
        for row in group.rows:
            yield " & ".join(_latex_cell(cell) for cell in row)


def escape_markdown(text: str) -> str:
    """Plain text that stays plain text in Markdown, inside table cells too; ``joint_r8`` stays readable."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]~#$])", r"\\\1", text)
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word an underscore is no emphasis
    return text.replace("|", "&#124;")


def escape_latex(text: str) -> str:
    """Plain text for LaTeX with T1 fonts."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    if cell.mark == "best":
        text = f"**{text}**"
    elif cell.mark == "second":
        text = f"<ins>{text}</ins>"
    return f"{text}<sub>±{escape_markdown(cell.spread)}</sub>" if cell.spread else text


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    if cell.mark == "best":
        text = f"\\textbf{{{text}}}"
    elif cell.mark == "second":
        text = f"\\underline{{{text}}}"
    return f"{text}$_{{\\pm {escape_latex(cell.spread)}}}$" if cell.spread else text


def _csv_cell(cell: Cell, with_spread: bool) -> list[str]:
    text = cell.text.replace(ABSENT, "") if cell.value is None else repr(cell.value)
    spread = "" if cell.spread_value is None else repr(cell.spread_value)
    return [text, spread] if with_spread else [text]


def _rich_cell(cell: Cell) -> Text:
    text = Text(cell.text, style={"best": "bold", "second": "underline"}.get(cell.mark or "", ""))
    return Text.assemble(text, (f" ±{cell.spread}", "dim")) if cell.spread else text
