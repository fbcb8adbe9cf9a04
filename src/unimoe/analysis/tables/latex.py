r"""Tables as LaTeX that can be pasted into a paper, whatever its class.

Neither ``longtable``, which two-column classes refuse, nor fixed widths, which differ from class to class: a long table
becomes several floats of at most a page, and a wide one shrinks to the line it is set on, and only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unimoe.analysis.tables.cells import Cell, RowGroup
from unimoe.analysis.tables.latex_layout import Part, Widths, cut
from unimoe.analysis.tables.latex_text import escape_latex, has_code_points

if TYPE_CHECKING:
    from unimoe.analysis.tables.table import Table

_CODE_POINTS = (
    "% U+4E2D and the like: characters that pdfLaTeX's fonts lack. With XeLaTeX or LuaLaTeX and a font that has them,\n"
    "% put the characters back.\n"
)


def render(table: Table) -> str:
    """Floats for booktabs: best bold, second underlined, symbols raised, spread as a subscript."""
    widths = Widths(table)
    parts = cut(table, widths)
    names = [table.caption, *table.columns, *table.notes, *(group.heading for group in table.groups)]
    names += [row[0].text for group in table.groups for row in group.rows]
    comment = "% Needs \\usepackage[T1]{fontenc}, \\usepackage{booktabs} and \\usepackage{graphicx}.\n"
    if any(map(has_code_points, names)):
        comment += _CODE_POINTS
    return comment + "\n".join(_float(table, widths, part, i, len(parts)) for i, part in enumerate(parts, start=1))


def _float(table: Table, widths: Widths, part: Part, number: int, of: int) -> str:
    environment = "table" if widths.one_column else "table*"
    counted = f" (part {number} of {of})" if of > 1 else ""
    label = table.name if number == 1 else f"{table.name}-{number}"
    body = _tabular(table.columns, widths, part.groups) if part.groups else ""
    notes = "\\par\n".join(map(escape_latex, part.notes))
    if notes:
        notes = (
            "\n\\par\\smallskip\n\\begin{minipage}{\\linewidth}\\footnotesize\\raggedright\n"
            f"{notes}\n\\end{{minipage}}"
        )
    return (
        f"\\begin{{{environment}}}[tp]\n\\centering\\small\n"
        f"\\caption{{{escape_latex(table.caption + counted)}}}\\label{{tab:{label}}}\n\\par\\smallskip\n"
        f"{body}{notes}\n\\end{{{environment}}}\n"
    )


def _tabular(columns: Sequence[str], widths: Widths, groups: Sequence[RowGroup]) -> str:
    """Numbers end where their column does; what stands behind them has a column of its own, so decimals align."""
    shape = "".join("r@{}l" if suffixed else "r" for suffixed in widths.suffixed[1:])
    places = 1 + len(shape.replace("@{}", ""))
    heads = [_head(*facts, widths.upright) for facts in zip(columns[1:], widths.suffixed[1:], strict=True)]
    blocks = (" \\\\\n".join(_rows(group, widths.suffixed, places)) for group in groups)
    return (
        "\\setlength{\\tabcolsep}{3pt}%\n"
        "\\resizebox{\\ifdim\\width>\\linewidth \\linewidth\\else \\width\\fi}{!}{%\n"
        f"\\begin{{tabular}}{{l{shape}}}\n\\toprule\n{' & '.join([escape_latex(columns[0]), *heads])} \\\\\n\\midrule\n"
        + " \\\\\n\\midrule\n".join(blocks)
        + " \\\\\n\\bottomrule\n\\end{tabular}}"
    )


def _head(column: str, suffixed: bool, upright: bool) -> str:
    text = escape_latex(column)
    if upright:
        text = f"\\rotatebox{{90}}{{{text}}}"
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if suffixed else text


def _rows(group: RowGroup, suffixed: Sequence[bool], places: int) -> Iterator[str]:
    if group.heading:  # without width of its own, lest a long one stretch the last column
        heading = f"\\emph{{{escape_latex(group.heading)}}}"
        if len(group.heading) > 70:
            heading = f"\\parbox[t]{{0.8\\linewidth}}{{\\raggedright {heading}}}"
        yield f"\\multicolumn{{{places}}}{{l}}{{\\makebox[0pt][l]{{{heading}}}}}"
    for name, *cells in group.rows:
        yield " & ".join([escape_latex(name.text), *map(_cell, cells, suffixed[1:])])


def _cell(cell: Cell, suffixed: bool) -> str:
    text = escape_latex(cell.typeset)
    if cell.mark == "best":
        text = f"\\textbf{{{text}}}"
    elif cell.mark == "second":
        text = f"\\underline{{{text}}}"
    if not suffixed:
        return text
    lowered = f"_{{\\pm {escape_latex(cell.spread)}}}" if cell.spread else ""
    raised = f"{{}}^{{{escape_latex(cell.symbols).replace('$', '')}}}" if cell.symbols else ""
    return f"{text} & ${lowered}{raised}$" if lowered or raised else f"{text} &"
