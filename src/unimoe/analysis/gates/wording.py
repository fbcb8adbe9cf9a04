"""The words and numbers in which a gate speaks."""

from __future__ import annotations

import math

from unimoe.analysis.crossed import Label
from unimoe.analysis.gates.definitions import (
    EquivalenceGate,
    Gate,
    InterferenceGate,
    NonInferiorityGate,
    SuperiorityGate,
)
from unimoe.analysis.gates.values import rule_of


def consequence(gate: Gate, label: Label, value: float) -> str:
    """What a label means for the project: go on, stop, or measure more."""
    if label == "INCONCLUSIVE":
        return "these seeds and queries cannot decide: measure more"
    if not isinstance(gate, InterferenceGate):
        return f"{_claim(gate, held=label == 'PASS')}: {'go on' if label == 'PASS' else 'stop'}"
    if label == "PASS":
        return f"interference confirmed, {_amount(gate, gate.pass_at)} or more: go on"
    if label == "MARGINAL":
        return (
            f"interference of {_amount(gate, gate.fail_below)} to {_amount(gate, gate.pass_at)}: "
            "too small to go on, too large to dismiss"
        )
    if value < 0:
        return "no interference, the joint model is ahead (synergy): stop"
    return f"no interference worth the split, less than {_amount(gate, gate.fail_below)}: stop"


def claim(gate: Gate) -> str:
    """What the gate asks, with its cutoffs: what PASS would mean, and FAIL."""
    if not isinstance(gate, InterferenceGate):
        return _claim(gate, held=True)
    return f"PASS from {_amount(gate, gate.pass_at)}, FAIL below {_amount(gate, gate.fail_below)}"


def shown(gate: Gate, value: float) -> str:
    """In percent or points, with two decimals or as many as keep the value on its side of the cutoffs."""
    rule = rule_of(gate, value)
    digits = next((d for d in range(2, 8) if rule_of(gate, round(value, d + 2)) == rule), 8)
    return f"{100 * value:+.{digits}f} {_unit(gate)}"


def floored(confidence: float) -> str:
    """Three decimals, never rounded up to a threshold or to certainty."""
    return f"{math.floor(1000 * confidence) / 1000:.3f}"


def _claim(gate: SuperiorityGate | NonInferiorityGate | EquivalenceGate, *, held: bool) -> str:
    margin, (system, baseline) = _amount(gate, gate.margin), gate.arms
    if isinstance(gate, EquivalenceGate):
        return f"{system} and {baseline} differ by {'at most' if held else 'more than'} {margin}"
    if isinstance(gate, NonInferiorityGate):
        return f"{system} is {'not ' if held else ''}worse than {baseline} by more than {margin}"
    return f"{system} {'beats' if held else 'does not beat'} {baseline} by {margin} or more"


def _amount(gate: Gate, cutoff: float) -> str:
    number = f"{100 * cutoff:g}"
    return f"{number} {_unit(gate)}" if number != "1" else f"1 {_unit(gate).removesuffix('s')}"


def _unit(gate: Gate) -> str:
    return "%" if isinstance(gate, InterferenceGate) else "points"
