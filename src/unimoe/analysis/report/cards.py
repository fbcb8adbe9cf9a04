"""One card for each gate: its label, what to do, and behind it the numbers; and how to read all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unimoe.analysis.gates.definitions import Gate, InterferenceGate
from unimoe.analysis.gates.findings import Finding, bounds_of, region_of
from unimoe.analysis.gates.judging import Judgment, Refusal
from unimoe.analysis.gates.output import family, in_one_line, judgment_lines
from unimoe.analysis.gates.wording import (
    amount,
    asked,
    bound_text,
    claim,
    finding,
    finding_word,
    gate_text,
    headline,
    shown,
)
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.core.grouping import gathered

# Of the lines of a judgment, those for a first look, and those that a card shows in another way.
_UNFOLDED = ("Advisory", "TIR", "Difference", "Bound", "Confidence", "Specialist", "Would settle it", "Note")
_ELSEWHERE = ("By dataset",)

_LONGEST = 8.0
"""An interval this many times as long as the distances between estimate and cutoffs goes on beyond the gauge."""


@dataclass(frozen=True)
class Gauge:
    """Where an estimate, its interval and the cutoffs are on a line, 0 to 100."""

    words: str  # the same for a reader who does not see the line
    ends: tuple[str, str]  # the labels of the regions at both ends of the line
    estimate: float
    low: float | None  # None without an interval; the line's own end where the interval goes on
    high: float | None
    goes_on: tuple[bool, bool]  # beyond the left end of the line, beyond the right one
    cutoffs: tuple[tuple[float, str, str], ...]  # place, text, and text anchor
    bounds: tuple[float, ...]  # what the label rests on


@dataclass(frozen=True)
class Card:
    """A judgment as the report shows it; lines and parts are named facts."""

    finding: str  # INTERFERENCE, UNDECIDED, NOT JUDGED
    label: str  # of the gate with its meaning; empty where nothing was judged
    headline: str  # the finding as a sentence, or why there is none
    heading: str  # what was judged, for example "Reranking on scifact"
    about: str  # the arms, and which gate asks
    registered: bool
    lines: tuple[tuple[str, str], ...] = ()  # for a first look
    parts: tuple[tuple[str, str], ...] = ()  # what was found on each of several datasets
    folded: tuple[tuple[str, str], ...] = ()  # for a second look
    gauge: Gauge | None = None


def cards(outcomes: Sequence[Judgment | Refusal], decisive: Sequence[Judgment | Refusal]) -> tuple[Card, ...]:
    """Return a card for each gate; refusals among the decisive outcomes are of registered gates."""
    return tuple(_refused(item, item in decisive) if isinstance(item, Refusal) else _judged(item) for item in outcomes)


def gauge(gate: Gate, found: Finding) -> Gauge | None:
    """Place what was found and the gate's own cutoffs on one line; None where there is no value."""
    if math.isnan(found.value):
        return None
    marks, interval = [found.value, *gate.cutoffs], found.estimate.interval
    reach = _LONGEST * (max(marks) - min(marks) or 0.01)
    first, last = min(marks) - reach, max(marks) + reach
    goes_on = (interval is not None and interval[0] < first, interval is not None and interval[1] > last)
    if interval:
        marks += [max(interval[0], first), min(interval[1], last)]
    room = 0.15 * (max(marks) - min(marks)) or 0.01
    start, end = min(marks) - room, max(marks) + room

    def place(position: float) -> float:
        return float(round(100.0 * (min(max(position, start), end) - start) / (end - start), 2))

    texts = [amount(gate, cutoff) for cutoff in gate.cutoffs]
    between = f", interval {shown(gate, interval[0])} to {shown(gate, interval[1])}" if interval else ", no interval"
    decides = f"; {bound} with confidence {gate.label_confidence:g}" if (bound := bound_text(gate, found)) else ""
    anchors = ("end", "start") if len(texts) > 1 else ("middle",)
    return Gauge(
        words=f"{shown(gate, found.value)}{between}{decides}; cutoffs: {', '.join(texts)}",
        ends=(finding_word(gate, region_of(gate, start)), finding_word(gate, region_of(gate, end))),
        estimate=place(found.value),
        low=(0.0 if goes_on[0] else place(interval[0])) if interval else None,
        high=(100.0 if goes_on[1] else place(interval[1])) if interval else None,
        goes_on=goes_on,
        cutoffs=tuple(zip(map(place, gate.cutoffs), texts, anchors, strict=True)),
        bounds=tuple(place(end) for end in bounds_of(gate, found) if end is not None),
    )


def reading(items: Sequence[Judgment]) -> Iterator[str]:
    """Explain the labels in plain words, with the cutoffs of the gates that were used; a paragraph each."""
    if not items:
        return
    if any(isinstance(item.gate, InterferenceGate) for item in items):
        yield (
            "TIR, the task interference ratio, is the share of the specialist's mean score that the joint model loses: "
            "(specialist - joint) / specialist. Below 0 the joint model is ahead. INTERFERENCE (gate: PASS) speaks for "
            "separate experts, NO INTERFERENCE (gate: FAIL) for the joint model, SMALL (gate: MARGINAL) for neither."
        )
    if any(not isinstance(item.gate, InterferenceGate) for item in items):
        yield "A difference is system minus baseline in points (score x 100). PASS means that the gate's claim holds."
    claims = gathered((_claim(item.gate), item.name) for item in items)
    if len(claims) == 1:
        yield f"What the gate{'s' if len(items) > 1 else ''} asked: {next(iter(claims))}."
    else:
        yield " ".join(["What the gates asked.", *(f"{', '.join(names)}: {what}." for what, names in claims.items())])
    yield (
        "A finding needs one region between the cutoffs that holds the confidence its gate asks for. Otherwise it is "
        "UNDECIDED (gate: INCONCLUSIVE): these seeds and queries cannot decide, wherever the estimate lies. Confidence "
        "is the level of the one-sided interval that ends at a cutoff; it is no probability that the claim is true."
    )
    if several := family(len(items)):
        yield several
    held = dict.fromkeys(item.found.holds_for for item in items)
    yield (
        f"An interval is one of {100 * LEVEL:g} %, two-sided; the bound that decides is one-sided, at the gate's own "
        f"confidence. An interval holds for {'; or, as its gate says, for '.join(held)}."
    )


def _judged(item: Judgment) -> Card:
    gate, lines = item.gate, [line for line in judgment_lines(item) if line[0] not in _ELSEWHERE]
    return Card(
        finding=finding(item),
        label=gate_text(item),
        headline=headline(item),
        heading=_heading(gate),
        about=_about(item.name, gate, registered=item.registered),
        registered=item.registered,
        lines=tuple(line for line in lines if line[0] in _UNFOLDED),
        parts=tuple((row.datasets[0], in_one_line(item, row)) for row in item.parts),
        folded=tuple(line for line in lines if line[0] not in _UNFOLDED),
        gauge=gauge(gate, item.found),
    )


def _refused(item: Refusal, registered: bool) -> Card:
    return Card(
        finding="NOT JUDGED",
        label="",
        headline=f"{item.error}.",
        heading=_heading(item.gate),
        about=_about(item.name, item.gate, registered=registered),
        registered=registered,
        lines=(("Asked", asked(item.gate)),),
    )


def _about(name: str, gate: Gate, *, registered: bool) -> str:
    which = "registered" if registered else "not registered"
    return f"{' against '.join(gate.sides)}, {gate.metric}; gate {name}, {which}"


def _heading(gate: Gate) -> str:
    datasets = gate.datasets
    return f"{gate.task.capitalize()} on {datasets[0] if len(datasets) == 1 else f'{len(datasets)} datasets'}"


def _claim(gate: Gate) -> str:
    between = ", MARGINAL between" if isinstance(gate, InterferenceGate) and len(gate.cutoffs) > 1 else ""
    return f"{claim(gate)}{between}; a label needs confidence {gate.label_confidence:g}"
