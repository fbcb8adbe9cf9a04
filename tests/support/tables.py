"""Every table of an analysis, and every form of a table."""

from __future__ import annotations

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.tables import Cell, Table
from unimoe.analysis.tables.comparisons import comparisons_table
from unimoe.analysis.tables.gates import gates_table
from unimoe.analysis.tables.mteb import mteb_table, mteb_tasks_table
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table, training_table


def all_tables(analysis: Analysis) -> list[Table]:
    """Those with something in them."""
    results, comparisons = analysis.results, analysis.comparisons
    made = [
        gates_table(analysis.outcomes),
        overview_table(results, comparisons),
        generate_comparison_table(results, analysis.tests),
        comparisons_table(results, comparisons),
        comparisons_table(results, [c for c in comparisons if not c.parts], before_after=True),
        mteb_table(results),
        mteb_tasks_table(results),
        training_table(results),
    ]
    return [table for table in made if table.groups]


def row(table: Table, name: str, heading: str = "") -> dict[str, Cell]:
    """The first row of a name, below a heading that begins so."""
    found = next(r for g in table.groups if g.heading.startswith(heading) for r in g.rows if r[0].text == name)
    return dict(zip(table.columns, found, strict=True))


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for group in table.groups for row in group.rows]
