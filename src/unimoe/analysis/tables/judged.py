"""Differences on judged documents alone, where one system's first documents are less judged than the other's."""

from __future__ import annotations

from collections.abc import Sequence

from unimoe.analysis.comparisons import Comparison
from unimoe.analysis.formats import metric_name
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.tables.cells import Cell, caveat_notes, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.checks.judged import APART
from unimoe.results.folder import Results

_OPEN = (
    "Nobody judged what a system alone found, and it counts as not relevant: a system that no pool knew loses by it."
)
_NO_NEGATIVES = (
    "No difference: the judgments name relevant documents alone, so that judged documents say nothing of the others."
)


def judged_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each two systems whose shares of unjudged documents differ; the rest of ``checks`` is notes."""
    rows, notes = [], [_OPEN]
    for c in comparisons:
        for check in (check for check in c.checks if check.name == "unjudged"):
            data = check.data
            low, high = data.get("interval") or (None, None)
            alone = [None if value is None else 100 * value for value in (data.get("judged_only"), low, high)]
            heading = f"{c.key}, {metric_name(c.metric)}"
            shares = [Cell.number(100 * share, ".1f") for share in data["shares"]]
            finding = "" if "finding_changes" not in data else "changes" if data["finding_changes"] else "stays"
            cells = (Cell(c.name), *shares, Cell.signed(100 * c.delta), *map(Cell.signed, alone), Cell(finding))
            rows.append((heading, cells))
            notes += [_NO_NEGATIVES] * (data.get("negatives") is False)
    return Table(
        name="judged",
        title="On judged documents alone",
        caption=(
            f"Unjudged among the first documents of both systems (%), difference as reported, and on judged documents "
            f"alone with its {100 * LEVEL:g} % interval; pairs whose shares differ by {100 * APART:g} points or more"
        ),
        columns=("Comparison", "Unjudged", "other", "Delta", "Judged only", "Low", "High", "Finding"),
        groups=row_groups(rows),
        notes=(*dict.fromkeys(notes), *caveat_notes(results)),
    )
