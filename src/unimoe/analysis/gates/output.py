"""What gates said, as lines for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from unimoe.analysis.crossed import CrossedInterval
from unimoe.analysis.gates.definitions import InterferenceGate, Registration
from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code
from unimoe.analysis.gates.wording import consequence, floored, shown
from unimoe.analysis.interference import ESTIMANDS
from unimoe.analysis.power import decides_sentence, settle_sentence
from unimoe.analysis.verdict import filled, named_line

_WITHOUT = {
    "seeds_and_queries": "it needs two queries, and of trained arms two seeds",
    "seeds": "it needs two training seeds",
}
_DATASETS_NAMED = 4
_WAYS = {"mean_of_tirs": "mean of TIRs", "tir_of_means": "TIR of means"}


def gate_lines(registration: Registration, outcomes: Sequence[Judgment | Refusal]) -> str:
    """The judged gates as text: which file judged, a paragraph each, and the exit code with its reason."""
    paragraphs = [_paragraph(outcome) for outcome in outcomes if isinstance(outcome, Judgment)]
    last = f"Exit code {exit_code(outcomes)}: {', '.join(labelled(outcome) for outcome in outcomes)}"
    return "\n\n".join([origin(registration), *paragraphs, last])


def gate_summary(registration: Registration, outcomes: Sequence[Judgment | Refusal]) -> str:
    """A line per gate, for analyses that do more than judge: its label and what that means, or why it has none."""
    lines = [
        f"  {labelled(item)} ({meaning(item)})" if isinstance(item, Judgment) else f"  {labelled(item)}: {item.error}"
        for item in outcomes
    ]
    return "\n".join([origin(registration), *lines])


def origin(registration: Registration) -> str:
    """Which file judged, by its hash; or that none did."""
    if registration.registered is None:
        return "Gates: not registered; the default rule, chosen when there were scores"
    when = registration.registered.isoformat()
    return f"Gates: {registration.path}, hash {registration.content_hash}, registered {when}"


def labelled(outcome: Judgment | Refusal) -> str:
    """``kill PASS``, ``kill ADVISORY PASS`` or ``kill not judged``."""
    if isinstance(outcome, Refusal):
        return f"{outcome.name} not judged"
    return f"{outcome.name} {'ADVISORY ' if outcome.advisory else ''}{outcome.label}"


def meaning(item: Judgment) -> str:
    """What the label with confidence means for the project."""
    found = item.found
    return consequence(item.gate, item.label, found.interval.estimate if found.interval else found.value)


def gates_as_json(registration: Registration, outcomes: Sequence[Judgment | Refusal]) -> dict[str, Any]:
    """The same as plain data: ratios and differences as fractions, null where something cannot be had."""
    return {
        "file": str(registration.path) if registration.path else None,
        "hash": registration.content_hash,
        "registered": registration.registered.isoformat() if registration.registered else None,
        "exit_code": exit_code(outcomes),
        "gates": [_as_json(outcome) for outcome in outcomes],
    }


def _paragraph(item: Judgment) -> str:
    lines = [filled(heading(item)), *(named_line(name, text) for name, text in judgment_lines(item))]
    return "\n".join(lines)


def heading(item: Judgment) -> str:
    """Which gate, and on what it was judged."""
    gate, (first, second) = item.gate, item.gate.arms
    arms = f"{second} against {first}" if isinstance(gate, InterferenceGate) else f"{first} against {second}"
    few = len(gate.datasets) <= _DATASETS_NAMED
    keys = (
        ", ".join(f"{gate.task}/{d}" for d in gate.datasets) if few else f"{gate.task}, {len(gate.datasets)} datasets"
    )
    seeds = "no seeds" if item.seeds == (None,) else f"seeds {', '.join(map(str, item.seeds))}"
    mark = "ADVISORY, " if item.advisory else ""
    return f"{mark}{item.name}: {gate.kind}, {arms} on {keys} ({gate.metric}, {item.queries:,} queries, {seeds})"


def judgment_lines(item: Judgment) -> Iterator[tuple[str, str]]:
    """What a judgment says, as named lines."""
    gate, found = item.gate, item.found
    if item.advisory:
        yield "Advisory", f"{'; '.join(item.advisory)}: this neither passes nor stops a project"
    by_seed = ", ".join(f"seed {s}: {shown(gate, v)}" for s, v in zip(item.seeds, found.per_seed, strict=True))
    name = "TIR" if isinstance(gate, InterferenceGate) else "Difference"
    yield name, shown(gate, found.value) + (f" ({by_seed})" if len(item.seeds) > 1 else "")
    if len(item.per_dataset) > 1:
        yield "By dataset", ", ".join(f"{dataset}: {shown(gate, v)}" for dataset, v in item.per_dataset.items())
    if isinstance(gate, InterferenceGate) and item.unregistered is not None:
        other = _WAYS["tir_of_means" if gate.across == "mean_of_tirs" else "mean_of_tirs"]
        yield "Across datasets", f"{_WAYS[gate.across]}; the {other} is {shown(gate, item.unregistered)}"
    yield "95 % interval", _interval(item)
    yield "Rule", f"{found.rule} ({consequence(gate, found.rule, found.value)})"
    yield "With confidence", _confident(item)
    if item.plan and item.label == "INCONCLUSIVE":
        together = " (queries of all datasets together)" if len(item.per_dataset) > 1 else ""
        yield "Would settle it", settle_sentence(item.plan) + together
        yield "Can decide", decides_sentence(item.plan)
    yield "Stability", item.stability.sentence
    yield from (("Note", note) for note in item.notes)


def _interval(item: Judgment) -> str:
    gate, interval = item.gate, item.found.interval
    if interval is None:
        return f"not computable, {_WITHOUT[gate.estimand]}"
    varied = "other queries" if item.seeds == (None,) else ESTIMANDS[gate.estimand]
    centre = shown(gate, interval.estimate)
    around = "" if centre == shown(gate, item.found.value) else f" around {centre} of means"
    ends = f"{shown(gate, interval.low)} to {shown(gate, interval.high)}"
    return f"{ends}{around} ({varied}; t with {interval.degrees_of_freedom:.1f} degrees of freedom)"


def _confident(item: Judgment) -> str:
    gate, found = item.gate, item.found
    if found.interval is None:
        return f"{item.label} ({meaning(item)}; {_WITHOUT[gate.estimand]})"
    held = ", ".join(f"{label} {floored(value)}" for label, value in found.confidence.items())
    needed = f"a label needs {gate.confidence:g}"
    if item.label == "INCONCLUSIVE":
        needed += f"; share of the variance: {_shares(found.interval)}"
    return f"{item.label} ({meaning(item)}; confidence {held}, {needed})"


def _shares(interval: CrossedInterval) -> str:
    return f"seeds {100 * interval.seed_share:.0f} %, queries {100 * interval.query_share:.0f} %"


def _as_json(outcome: Judgment | Refusal) -> dict[str, Any]:
    facts = {"name": outcome.name, "gate": outcome.gate.model_dump(), "error": None}
    if isinstance(outcome, Refusal):
        return facts | {"error": str(outcome.error)}
    found = outcome.found
    return facts | {
        "rule": found.rule,
        "label": outcome.label,
        "consequence": meaning(outcome),
        "advisory": list(outcome.advisory),
        "confidence": found.confidence,
        "value": found.value,
        "interval": found.interval.as_json() if found.interval else None,
        "per_seed": [{"seed": s, "value": v} for s, v in zip(outcome.seeds, found.per_seed, strict=True)],
        "per_dataset": outcome.per_dataset,
        "unregistered": outcome.unregistered,
        "queries": outcome.queries,
        "power": None if outcome.plan is None else asdict(outcome.plan) | {"says": settle_sentence(outcome.plan)},
        "stability": asdict(outcome.stability),
        "notes": list(outcome.notes),
    }
