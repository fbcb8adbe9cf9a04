"""Gates as tables: their labels, what one seed or dataset less would change, and what would settle them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import Judgment, Refusal
from unimoe.analysis.gates.wording import claim, floored, shown
from unimoe.analysis.power import FAST_TIER_QUERIES, MOST_QUERIES, MOST_SEEDS, POWER, PowerPlan, points
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table

Outcomes = Sequence[Judgment | Refusal]


def gates_table(outcomes: Outcomes) -> Table:
    """A row per gate: value, interval and both labels; gates that cannot be judged are among the notes."""
    return Table(
        name="gates",
        title="Gates",
        caption="Gates: TIR in percent, differences in points, 95 % interval, labels by the rule and with confidence",
        columns=("Gate", "Value", "Low", "High", "Queries", "Seeds", "Rule", "With confidence", "Confidence"),
        groups=_groups([_gate_row(item) for item in _judged(outcomes)]),
        notes=(
            "PASS of an interference gate means that interference is confirmed: it speaks against the joint model.",
            *(f"{item.name}: {_asks(item)}" for item in _judged(outcomes)),
            *(f"{item.name}: advisory, {reason}" for item in _judged(outcomes) for reason in item.advisory),
            *(f"{item.name}: {note}" for item in _judged(outcomes) for note in item.notes),
            *(f"{item.name} was not judged: {item.error}" for item in outcomes if isinstance(item, Refusal)),
        ),
    )


def stability_table(outcomes: Outcomes) -> Table:
    """Each gate with everything, and without each seed and each dataset."""
    judged = _judged(outcomes)
    return Table(
        name="stability",
        title="Stability",
        caption="Gates without one seed or one dataset: TIR in percent, differences in points, and both labels",
        columns=("Left out", "Value", "Rule", "With confidence"),
        groups=tuple(RowGroup(item.name, tuple(_stability_rows(item))) for item in judged if item.stability.rows),
        notes=tuple(f"{item.name}: {item.stability.sentence}" for item in judged),
    )


def power_table(outcomes: Outcomes) -> Table:
    """What would settle each gate with a crossed interval, and what data of some sizes can decide at all."""
    planned = [(item, item.plan) for item in _judged(outcomes) if item.plan]
    return Table(
        name="power",
        title="What would settle it",
        caption="What would settle each gate at the observed value, and the smallest distance from a cutoff, in "
        "points, that data of some size decides",
        columns=(
            *("Gate", "At hand", "Seeds alone", "Queries alone", "Fewest scores"),
            *("Decides", "Fast tier", "Any queries", "Any seeds"),
        ),
        groups=_groups([_power_row(item, plan) for item, plan in planned]),
        notes=(
            f"Sizes are seeds x queries. New data of a planned size settles the gate with probability {POWER:g} if the "
            "observed value is the true one; the plan rests on estimated variances and is no promise.",
            f"Never: not with up to {MOST_SEEDS:,} seeds or {MOST_QUERIES:,} queries. Fast tier: "
            f"{FAST_TIER_QUERIES:,} queries (SciFact, NFCorpus, FiQA2018) with the seeds at hand, if these vary alike.",
        ),
    )


def _judged(outcomes: Outcomes) -> list[Judgment]:
    return [outcome for outcome in outcomes if isinstance(outcome, Judgment)]


def _groups(rows: Sequence[tuple[Cell, ...]]) -> tuple[RowGroup, ...]:
    return (RowGroup("", tuple(rows)),) if rows else ()


def _asks(item: Judgment) -> str:
    gate, (first, second) = item.gate, item.gate.arms
    what = f"TIR of {second} against {first}, {claim(gate)}" if isinstance(gate, InterferenceGate) else claim(gate)
    return f"{what}; {gate.metric} on {', '.join(f'{gate.task}/{dataset}' for dataset in gate.datasets)}"


def _gate_row(item: Judgment) -> tuple[Cell, ...]:
    found, interval = item.found, item.found.interval
    ends = [None, None] if interval is None else [interval.low, interval.high]
    seeds = 0 if item.seeds == (None,) else len(item.seeds)
    label = f"ADVISORY {item.label}" if item.advisory else item.label
    held = found.confidence.get(item.label)
    return (
        Cell(item.name),
        _value(item, found.value),
        *(Cell(ABSENT) if end is None else _value(item, end) for end in ends),
        Cell(f"{item.queries:,}", value=item.queries),
        Cell(str(seeds), value=seeds),
        Cell(found.rule),
        Cell(label),
        Cell(ABSENT) if held is None else Cell(floored(held), value=held),
    )


def _stability_rows(item: Judgment) -> Iterator[tuple[Cell, ...]]:
    found = item.found
    yield Cell("nothing"), _value(item, found.value), Cell(found.rule), Cell(item.label)
    for row in item.stability.rows:
        yield Cell(row.left_out), _value(item, row.value), Cell(row.rule), Cell(row.label or ABSENT)


def _power_row(item: Judgment, plan: PowerPlan) -> tuple[Cell, ...]:
    decides = (
        plan.decides,
        plan.decides_in_fast_tier,
        plan.decides_with_any_queries,
        plan.decides_with_any_seeds,
    )
    return (
        Cell(item.name),
        Cell(_size(plan.at_hand)),
        *([Cell("settled")] * 3 if plan.settled else _needed(plan)),
        *(Cell(points(distance), value=100 * distance) for distance in decides),
    )


def _needed(plan: PowerPlan) -> list[Cell]:
    alone = [Cell("never") if n is None else Cell(f"{n:,}", value=n) for n in (plan.seeds, plan.queries)]
    return [*alone, Cell("never") if plan.grid is None else Cell(_size(plan.grid))]


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,}"


def _value(item: Judgment, value: float) -> Cell:
    return Cell(shown(item.gate, value).rpartition(" ")[0], value=100 * value)
