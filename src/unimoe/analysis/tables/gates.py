"""Gates as a table: what each found on every dataset. Every number and label comes from a judgment."""

from __future__ import annotations

import math
from collections.abc import Mapping

from unimoe.analysis.formats import metric_name
from unimoe.analysis.gates import wording
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import GateOutcomes, Judgment, Refusal
from unimoe.analysis.gates.output import say
from unimoe.analysis.tables.cells import ABSENT, Cell, Cells, name_cells, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered

# Facts of a judgment that a reader of the table needs.
_NOTED = ("Advisory", "Asked", "Scores", "Across datasets", "Specialist", "Stability", "Note")
_READING = (
    "Finding: what holds the confidence the gate asks for; UNDECIDED where nothing does. Bound: what the finding rests "
    "on, the end of the one-sided interval at the gate's confidence; Low and High are the ends of the two-sided one of "
    "95 %. A standard deviation is over a system's seeds, that of the value over seeds that both systems have."
)


def gates_table(outcomes: GateOutcomes) -> Table:
    """Return what each gate found on each dataset and on all; what else it says, or why it says nothing, is noted."""
    judged = [outcome for outcome in outcomes if isinstance(outcome, Judgment)]
    cells, cut = name_cells(dataset for item in judged for dataset in item.gate.datasets)
    found = [(item, one) for item in judged for one in (*item.parts, item.found)]
    mixed = {item.name for item, one in found if one.estimate.interval and one.holds_for != item.found.holds_for}
    holding = gathered(
        (one.holds_for, f"{item.name} on {_place(item, one)}" if item.name in mixed else item.name)
        for item, one in found
        if one.estimate.interval
    )
    registered = gathered(("yes" if item.registered else "no: the default cutoffs", item.name) for item in judged)
    notes = [wording.family(len(judged))]
    notes += [f"Intervals hold for {scope} ({', '.join(dict.fromkeys(names))})." for scope, names in holding.items()]
    notes += [f"Registered: {word} ({', '.join(names)})." for word, names in registered.items()]
    notes += [f"{item.name} was not judged: {item.error}" for item in outcomes if isinstance(item, Refusal)]
    for item in judged:
        notes += [f"{item.name}: {name}: {text}." for name, text in say(item).facts if name in _NOTED]
        notes += [f"{item.name} on {part.datasets[0]}: {part.why}." for part in item.parts if part.why]
    return Table(
        name="gates",
        title="Gates",
        caption=(
            "Gates: mean scores × 100, TIR in percent or difference in points ± standard deviation over seeds, with "
            "its 95 % interval"
        ),
        columns=(
            *("Dataset", "Queries", "Seeds", *wording.column_heads(judged)),
            *("Low", "High", "Finding", "Bound", "Confidence"),
        ),
        csv_only=frozenset({"Seeds", "Confidence"}),
        groups=row_groups(
            (f"{item.name}: {item.gate.against}, {metric_name(item.metric)}", _row(item, one, cells))
            for item, one in found
        ),
        notes=(*filter(None, notes), *cut, _READING),
    )


def _place(item: Judgment, found: Finding) -> str:
    """Return the dataset of one row of a gate."""
    return "all" if len(item.gate.datasets) > 1 and found is item.found else found.datasets[0]


def _row(item: Judgment, found: Finding, names: Mapping[str, Cell]) -> Cells:
    gate, every = item.gate, len(item.gate.datasets) > 1 and found is item.found
    said = wording.text_of(gate, found)
    seeds = dict.fromkeys(ABSENT if of_arm == (None,) else str(len(of_arm)) for of_arm in found.seeds)
    arms = zip(found.means, found.runs, strict=True)
    finding = f"{'advisory ' if item.advisory else ''}{said.word}"
    return (
        Cell(f"all ({wording.across(gate)})") if every else names[found.datasets[0]],
        Cell.count(found.queries),
        Cell(" v ".join(seeds)),
        *(Cell.mean([100 * run for run in runs or (mean,)]) for mean, runs in arms),
        _value(item, found.value).with_spread(found.std and 100 * found.std),
        *(_value(item, end) for end in found.estimate.interval or (math.nan, math.nan)),
        Cell(finding.capitalize()),
        Cell(said.sign_and_bound or ABSENT),
        Cell(said.confidence or ABSENT, value=found.confidence.get(found.label)),
    )


def _value(item: Judgment, value: float) -> Cell:
    return Cell(wording.number(item.gate, value), value=100 * value) if math.isfinite(value) else Cell(ABSENT)
