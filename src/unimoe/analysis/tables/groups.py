"""Differences and TIR by groups of queries, as a table with the test between groups, and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from unimoe.analysis.comparisons import ALPHA
from unimoe.analysis.formats import metric_name
from unimoe.analysis.groups import ByGroup
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.variance import ESTIMANDS
from unimoe.analysis.tables.cells import Cell, Cells, caveat_notes, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered
from unimoe.results.folder import Results

_READING = (
    f"p: two-sided, of one group by itself, below {ALPHA:g} exactly where its interval excludes 0; p (Holm): corrected "
    "for the groups of a pair. That one group is significant and another is not does not show that they differ: the "
    "test between groups does. Its p is corrected for every two groups (max-t), and by Holm for all such tests here; "
    "its interval for every two groups."
)


def groups_table(results: Results, found: Sequence[ByGroup]) -> Table:
    """Return a row for each group of each pair of arms; notes say whether the values vary between groups."""
    kinds = {one.ratio for one in found}
    value = "Delta or TIR (%)" if len(kinds) > 1 else "TIR (%)" if kinds == {True} else "Delta"
    named = ((f"{one.key}, {metric_name(one.metric)}: {one.name}", one) for one in found)
    rows = ((heading, _cells(row)) for heading, one in named for row in groups_as_rows([one]))
    return Table(
        name="by_group",
        title="By group",
        caption=f"By group of queries: mean scores × 100, and {value.replace('Delta', 'difference in points')} with "
        f"its {100 * LEVEL:g} % interval",
        columns=("Group", "Queries", "System", "Baseline", value, "Low", "High", "p", "p (Holm)"),
        groups=row_groups(rows),
        notes=(*_notes(results, found), _READING, *caveat_notes(results)),
    )


def _cells(row: Mapping[str, Any]) -> Cells:
    values = {name: None if row[name] is None else 100 * row[name] for name in ("value", "low", "high")}
    return (
        *(Cell(row["group"]), Cell.count(row["queries"])),
        *(Cell.mean([100 * row[name]]) for name in ("system_mean", "baseline_mean")),
        *(Cell.signed(value, keep_side=name != "value") for name, value in values.items()),
        *(Cell.p(row[name]) for name in ("p", "p_corrected")),
    )


def _notes(results: Results, found: Sequence[ByGroup]) -> Iterator[str]:
    """Yield the tests between groups, what all tests hold for, and which groups have none and why."""
    yield from (f"{one.key}, {one.name}: {one.sentence}." for one in found)
    held = gathered((ESTIMANDS[one.rows[0].estimate.estimand], one.name) for one in found)
    yield from (f"Tests hold for {what} ({', '.join(dict.fromkeys(names))})." for what, names in held.items())
    if by_people := [key for key in dict.fromkeys(one.key for one in found) if results.labelled(key) is not None]:
        yield f"Groups on {', '.join(by_people)} are compared by human judgments alone."
    if alone := dict.fromkeys(arm for one in found for arm in one.alone):
        yield f"One run of {', '.join(alone)}, taken as it is: nothing is known of other seeds."
    for one in found:
        for reason, names in gathered((row.unfit, row.group) for row in one.rows if row.unfit).items():
            yield f"No test of {', '.join(names)} ({one.key}, {one.name}): {reason}."


def groups_as_rows(found: Sequence[ByGroup]) -> list[dict[str, Any]]:
    """Return a row for each group of each pair as plain data, with the test between groups that it is part of."""
    rows = []
    for one, row in ((pair, row) for pair in found for row in pair.rows):
        task, _, dataset = one.key.partition("/")
        order, (low, high) = (-1 if one.ratio else 1), row.estimate.interval or (None, None)
        (system, baseline), (mean, other) = one.arms[::order], row.means[::order]
        rows.append({
            "task": task, "dataset": dataset, "metric": one.metric, "system": system, "baseline": baseline,
            "group": row.group, "queries": row.queries, "system_mean": mean, "baseline_mean": other,
            "quantity": "tir" if one.ratio else "difference",
            "value": row.estimate.value if math.isfinite(row.estimate.value) else None, "low": low, "high": high,
            "p": row.p, "p_corrected": row.p_corrected, "unfit": row.unfit or None,
            "varies_p": one.p_corrected, "between": asdict(one.interaction) if one.interaction else None,
        })  # fmt: skip
    return rows
