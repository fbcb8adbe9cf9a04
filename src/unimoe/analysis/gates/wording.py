"""The words and numbers in which a gate speaks: its claim, its finding as a sentence, its value with its unit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from unimoe.analysis.formats import signed
from unimoe.analysis.gates.definitions import (
    EquivalenceGate,
    Gate,
    InterferenceGate,
    Label,
    NonInferiorityGate,
    SuperiorityGate,
)
from unimoe.analysis.gates.findings import Finding, region_of
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.stability import Row
from unimoe.analysis.statistics.estimates import LEVEL

_DATASETS_NAMED = 3


def headline(item: Judgment) -> str:
    """Return the finding as one sentence: what is lost or gained, how sure that is, and what it means."""
    said = finding(item.gate, item.found)
    if item.learnt is not None and not item.learnt.holds:
        said += f" {unlearnt(item)}"
    return said


def finding(gate: Gate, found: Finding) -> str:
    """Return what was found as one sentence.

    For example: "joint_r8 loses 5.2 % of rank_only_r8's ndcg@10 on apidocs (95 % interval 1.1 to 9.3 %): interference,
    2 % or more."
    """
    if math.isnan(found.value):
        return f"{gate.arms[1]} cannot be compared with {gate.arms[0]} on {_on(found)}: {found.why}."
    first, second = gate.arms
    ahead = found.value >= 0.0
    ends = found.estimate.interval
    value, *texts = _unsigned(gate, (found.value, *(ends or ())), ahead=ahead)
    if isinstance(gate, InterferenceGate):
        said = f"{second} {'loses' if ahead else 'gains'} {value} % of {first}'s {gate.metric} on {_on(found)}"
    else:
        side = "ahead of" if ahead else "behind"
        said = f"{first} is {value} points {side} {second} in {gate.metric} on {_on(found)}"
    if texts:
        low, high = texts if ahead else reversed(texts)
        said += f" ({100 * LEVEL:g} % interval {low} to {high} {unit(gate)})"
    return f"{said}: {consequence(gate, found)}."


def consequence(gate: Gate, found: Finding) -> str:
    """Return what the label of a finding means: go on, stop, or measure more."""
    label = found.label
    if label == "INCONCLUSIVE":
        return found.why or "these seeds and queries cannot decide"
    if not isinstance(gate, InterferenceGate):
        return _claim(gate, held=label == "PASS")
    if label == "PASS":
        return f"interference, {amount(gate, gate.pass_at)} or more"
    if label == "MARGINAL":
        return f"interference between {amount(gate, gate.fail_below)} and {amount(gate, gate.pass_at)}"
    if found.value < 0:
        return "no interference, the joint model is ahead"
    return f"no interference worth a split, less than {amount(gate, gate.fail_below)}"


def action(item: Judgment) -> str:
    """Return what the label asks of the project."""
    gate, label = item.gate, item.label
    if label == "INCONCLUSIVE":
        return "measure more"
    if item.learnt is not None and not item.learnt.holds:
        return f"train {gate.arms[0]} until it beats {item.learnt.baseline}, then judge again"
    if label == "MARGINAL":
        return "too small to go on, too large to dismiss"
    if isinstance(gate, InterferenceGate):
        return "go on with separate experts" if label == "PASS" else "stop: separate experts have nothing to win back"
    return "go on" if label == "PASS" else "stop"


def unlearnt(item: Judgment) -> str:
    """Return the caveat about a specialist that has learnt nothing measurable."""
    learnt = item.learnt
    if learnt is None or learnt.holds:
        return ""
    found = learnt.found
    p = found.estimate.p
    tested = found.why or ("no test" if p is None else f"p {p:.2g}")
    difference = f"{signed(100 * found.value)} points" if math.isfinite(found.value) else "no difference"
    return (
        f"But {item.gate.arms[0]} has learnt nothing measurable: {difference} against {learnt.baseline} ({tested}), so "
        "a loss against it says little."
    )


def claim(gate: Gate) -> str:
    """Return what the gate asks, with its cutoffs: what PASS would mean, and FAIL."""
    if not isinstance(gate, InterferenceGate):
        return _claim(gate, held=True)
    return f"PASS from {amount(gate, gate.pass_at)}, FAIL below {amount(gate, gate.fail_below)}"


def region(gate: Gate, found: Finding | Row) -> str:
    """Return where the estimate lies against the cutoffs, for example ``2 % or more``; no claim about the truth."""
    if math.isnan(found.value):
        return "no estimate"
    ends = [-math.inf, *gate.cutoffs, math.inf]
    low, high = next((a, b) for a, b in itertools.pairwise(ends) if round(found.value, 12) < b)
    if low == -math.inf:
        return f"below {amount(gate, high)}"
    if high == math.inf:
        return f"{amount(gate, low)} or more"
    return f"{amount(gate, low)} to {amount(gate, high)}"


def shown(gate: Gate, value: float) -> str:
    """Return a value in percent or points, with two decimals or as many as keep it on its side of the cutoffs."""
    if math.isnan(value):
        return "not computable"
    rule = region_of(gate, value)
    digits = next((d for d in range(2, 8) if region_of(gate, round(value, d + 2)) == rule), 8)
    return f"{signed(100 * value, digits)} {unit(gate)}"


def confidences(found: Finding) -> str:
    """Return the confidence in each label, three decimals that add up to 1 and never round up to certainty."""
    return ", ".join(f"{label} {share}" for label, share in shares(found).items())


def shares(found: Finding) -> dict[Label, str]:
    """Return the confidence in each label as text: the largest rounded down, what is left shared by the others."""
    if not found.confidence:
        return {}
    exact = {label: 1000 * held for label, held in found.confidence.items()}
    top = max(exact, key=exact.__getitem__)
    whole = {label: math.floor(value + 1e-9) for label, value in exact.items()}
    whole[top] = min(whole[top], 999)
    rest = 1000 - sum(whole.values())
    for label in sorted((label for label in exact if label != top), key=lambda name: whole[name] - exact[name]):
        if rest > 0:
            whole[label] += 1
            rest -= 1
    return {
        label: f"{(thousandths + (rest if label == top else 0)) / 1000:.3f}" for label, thousandths in whole.items()
    }


def unit(gate: Gate) -> str:
    """Return the unit of a gate's values as shown: percent of the specialist, or points (score x 100)."""
    return "%" if isinstance(gate, InterferenceGate) else "points"


def amount(gate: Gate, cutoff: float) -> str:
    """Return a cutoff with its unit, ``2 %`` or ``1 point``."""
    number = f"{100 * cutoff:.6g}"
    return f"{number} {unit(gate)}" if number != "1" else f"1 {unit(gate).removesuffix('s')}"


def _unsigned(gate: Gate, values: Sequence[float], *, ahead: bool) -> list[str]:
    """Return values as text, their signs turned where the first is below 0.

    All have one decimal, or as many as keep each of them on its side of the cutoffs.
    """
    kept = (d for d in range(1, 8) if all(region_of(gate, round(v, d + 2)) == region_of(gate, v) for v in values))
    digits = next(kept, 8)
    sign = 1.0 if ahead else -1.0
    return [f"{sign * round(100 * value, digits) + 0.0:.{digits}f}" for value in values]


def _on(found: Finding) -> str:
    names = found.datasets
    return ", ".join(names) if len(names) <= _DATASETS_NAMED else f"{len(names)} datasets"


def _claim(gate: SuperiorityGate | NonInferiorityGate | EquivalenceGate, *, held: bool) -> str:
    margin, (system, baseline) = amount(gate, gate.margin), gate.arms
    if isinstance(gate, EquivalenceGate):
        return f"{system} and {baseline} differ by {'at most' if held else 'more than'} {margin}"
    if isinstance(gate, NonInferiorityGate):
        by = f" by more than {margin}" if gate.margin else ""
        return f"{system} is {'not ' if held else ''}worse than {baseline}{by}"
    by = f" by {margin} or more" if gate.margin else ""
    return f"{system} {'beats' if held else 'does not beat'} {baseline}{by}"
