"""A gate's value and interval drawn against its cutoffs, as positions in percent of a line's width."""

from __future__ import annotations

from dataclasses import dataclass

from unimoe.analysis.crossed import CrossedInterval
from unimoe.analysis.gates.definitions import Gate, InterferenceGate
from unimoe.analysis.gates.values import rule_of
from unimoe.analysis.gates.wording import shown


@dataclass(frozen=True)
class Cutoff:
    """A cutoff on the line; ``anchor`` sets its text on the side where its neighbour's is not."""

    at: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Gauge:
    """Where a value, its interval and the cutoffs stand on a line, 0 to 100.

    Attributes:
        words: the same for a reader who does not see the line.
        ends: the labels of the regions at both ends of the line.
        low: None without an interval, as ``high``.
    """

    words: str
    ends: tuple[str, str]
    estimate: float
    low: float | None
    high: float | None
    cutoffs: tuple[Cutoff, ...]


def gauge(gate: Gate, value: float, interval: CrossedInterval | None) -> Gauge:
    """Place what was found and the gate's cutoffs on one line, with room at both ends."""
    if interval:
        value = interval.estimate
    marks = [value, *gate.cutoffs, *((interval.low, interval.high) if interval else ())]
    room = 0.15 * (max(marks) - min(marks)) or gate.cutoffs[0]
    start, end = min(marks) - room, max(marks) + room

    def place(position: float) -> float:
        return float(round(100 * (position - start) / (end - start), 2))

    unit = "%" if isinstance(gate, InterferenceGate) else "points"
    texts = [f"{100 * cutoff:.4g} {unit}" for cutoff in gate.cutoffs]
    between = f", interval {shown(gate, interval.low)} to {shown(gate, interval.high)}" if interval else ""
    anchors = ("end", "start") if len(texts) > 1 else ("middle",)
    return Gauge(
        words=f"{shown(gate, value)}{between}; cutoffs: {', '.join(texts)}",
        ends=(rule_of(gate, start), rule_of(gate, end)),
        estimate=place(value),
        low=place(interval.low) if interval else None,
        high=place(interval.high) if interval else None,
        cutoffs=tuple(
            Cutoff(place(cutoff), text, anchor)
            for cutoff, text, anchor in zip(gate.cutoffs, texts, anchors, strict=True)
        ),
    )
