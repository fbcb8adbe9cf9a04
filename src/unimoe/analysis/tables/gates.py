"""Gates as tables: what each found on every dataset, and what it would say without one seed or one dataset.

Every number, cutoff and label comes from a judgment; these tables judge nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from unimoe.analysis.gates import wording
from unimoe.analysis.gates.findings import Finding, Without
from unimoe.analysis.gates.judging import Judgment, Outcomes, Refusal
from unimoe.analysis.gates.output import say
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, metric_name, name_cells, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered

_VALUE = "TIR in percent or difference in points"
_NOTED = ("Advisory", "Asked", "Across datasets", "Specialist", "Note")  # facts that a reader of the table needs
_READING = (
    "Estimate: where the value lies against the gate's cutoffs, however uncertain it is. Finding: what holds the "
    "confidence the gate asks for; UNDECIDED where nothing does. Bound: what the finding rests on, the end of "
    "the one-sided interval at the gate's confidence; Low and High are the ends of the two-sided one of 95 %. A "
    "standard deviation is over a system's seeds, that of the value over seeds that both systems have."
)


def gates_table(outcomes: Outcomes) -> Table:
    """Return what each gate found on each dataset and on all; what else it says, or why it says nothing, is noted."""
    judged = [outcome for outcome in outcomes if isinstance(outcome, Judgment)]
    cells, cut = name_cells(dataset for item in judged for dataset in item.gate.datasets)
    found = [(item, one) for item in judged for one in (*item.parts, item.found)]
    holding = gathered((one.holds_for, item.name) for item, one in found if one.estimate.interval)
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
        caption=f"Gates: mean scores × 100, {_VALUE} ± standard deviation over seeds, with its 95 % interval",
        columns=(
            *("Dataset", "Queries", "Seeds", *wording.column_heads(judged), "Low", "High"),
            *("Estimate", "Finding", "Bound", "Confidence"),
        ),
        groups=row_groups(
            (f"{item.name}: {item.gate.against}, {metric_name(item.metric)}", _row(item, one, cells))
            for item, one in found
        ),
        notes=(*filter(None, notes), *cut, _READING),
    )


def stability_table(judgments: Sequence[Judgment]) -> Table:
    """Return each gate with everything, and without each seed and each dataset."""
    rows: list[tuple[str, Row]] = []
    for item in judgments:
        tried: list[Finding | Without] = [item.found, *item.stability.rows]
        for found in tried if item.stability.rows else ():
            name = found.left_out if isinstance(found, Without) else "nothing"
            label = wording.finding_word(item.gate, found.label).capitalize()
            cells = (_value(item, found.value), Cell(wording.region(item.gate, found.value)), Cell(label))
            rows.append((item.name, (Cell(name), *cells)))
    return Table(
        name="stability",
        title="Stability",
        caption=f"Gates without one seed or one dataset: {_VALUE}, judged with the interval of the whole",
        columns=("Left out", "Value", "Estimate", "Finding"),
        groups=row_groups(rows),
        notes=tuple(f"{item.name}: {item.stability.sentence}." for item in judgments),
    )


def _row(item: Judgment, found: Finding, names: Mapping[str, Cell]) -> Row:
    gate, every = item.gate, len(item.gate.datasets) > 1 and found is item.found
    bound = wording.bound_text(gate, found, at_least="≥", at_most="≤").removesuffix(f" {wording.unit(gate)}")
    seeds = dict.fromkeys(ABSENT if of_arm == (None,) else str(len(of_arm)) for of_arm in found.seeds)
    arms = zip(found.means, found.runs, strict=True)
    finding = f"{'advisory ' if item.advisory else ''}{wording.finding_word(gate, found.label)}"
    confidence = wording.confidence_text(found, found.label, gate.label_confidence)
    return (
        Cell(f"all ({wording.across(gate)})") if every else names[found.datasets[0]],
        Cell.count(found.queries),
        Cell(" v ".join(seeds)),
        *(Cell.mean([100 * run for run in runs or (mean,)]) for mean, runs in arms),
        _value(item, found.value).with_spread(found.std and 100 * found.std),
        *(_value(item, end) for end in found.estimate.interval or (math.nan, math.nan)),
        Cell(wording.region(gate, found.value)),
        Cell(finding.capitalize()),
        Cell(bound or ABSENT),
        Cell(confidence or ABSENT, value=found.confidence.get(found.label)),
    )


def _value(item: Judgment, value: float) -> Cell:
    return Cell(wording.number(item.gate, value), value=100 * value) if math.isfinite(value) else Cell(ABSENT)
