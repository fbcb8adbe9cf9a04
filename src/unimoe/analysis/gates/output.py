"""What gates found, as lines for people and as JSON for machines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from unimoe.analysis.formats import metric_name, signed
from unimoe.analysis.gates import wording
from unimoe.analysis.gates.definitions import InterferenceGate, Registration
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import GateOutcome, GateOutcomes, Judgment, Refusal, exit_code

WIDTH = 96
Fact = tuple[str, str]  # a name and what it says
BY_DATASET = "By dataset"  # the name of a fact with a part for each dataset
SETTLES = "Would settle it"  # the name of a fact that a report shows elsewhere


class Said(NamedTuple):
    """An outcome in words: what terminal, report and Markdown show of it, each in its own layout."""

    name: str  # of the gate
    finding: str  # INTERFERENCE, UNDECIDED, NOT JUDGED
    label: str  # of the gate with its meaning; empty where nothing was judged
    headline: str  # the finding as a sentence, or why there is none
    about: str  # task, datasets, arms and metric
    facts: tuple[Fact, ...]


def say(item: GateOutcome) -> Said:
    """Write an outcome out; this is the one place where that is done."""
    gate = item.gate
    where = gate.datasets[0] if len(gate.datasets) == 1 else f"{len(gate.datasets)} datasets"
    about = f"{gate.task.capitalize()} on {where}: {gate.against}, {metric_name(gate.metric)}"
    if isinstance(item, Refusal):
        return Said(item.name, "NOT JUDGED", "", f"{item.error}.", about, (("Asked", wording.claim_text(gate)),))
    return Said(
        name=item.name,
        finding=f"{'ADVISORY ' if item.advisory else ''}{wording.text_of(gate, item.found).word}",
        label=f"gate: {item.verdict}, {'decides nothing' if item.advisory else wording.action(item)}",
        headline=wording.headline(item),
        about=about,
        facts=tuple(_facts(item)),
    )


def _facts(item: Judgment) -> Iterator[Fact]:
    """Yield what a judgment says beyond its headline, as named lines."""
    gate, found, ends = item.gate, item.found, item.found.estimate.interval
    if item.advisory:
        yield "Advisory", f"{'; '.join(item.advisory)}: this neither passes nor stops a project"
    yield "Asked", wording.claim_text(gate)
    text = wording.text_of(gate, found)
    value = f"{text.value}{'' if math.isnan(found.value) else ', no interval'}: {found.why}"
    if ends:
        freedom = found.estimate.degrees_of_freedom
        value = (
            f"{text.estimate} (95 % interval for {found.holds_for}, t with {freedom:.1f} degrees "
            f"of freedom); the estimate is {text.lies}"
        )
    if found.std is not None:
        by_seed = (f"seed {seed}: {wording.value_text(gate, of_seed)}" for seed, of_seed in found.by_seed.items())
        value += f" (by seed ± {100 * found.std:.2f}: {', '.join(by_seed)})"
    yield ("TIR" if isinstance(gate, InterferenceGate) else "Difference"), value
    scores = []
    for arm, mean, runs, seeds in zip(gate.arms, found.means, found.runs, found.seeds, strict=True):
        which = "no seeds" if seeds == (None,) else f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        of_runs = f": {', '.join(f'{100 * run:.2f}' for run in runs)}" if len(runs) > 1 else ""
        scores.append(f"{arm} {100 * mean:.2f} ({which}{of_runs})")
    paired = "; seeds pair, as the experiment declares" if found.paired else ""
    yield "Scores", f"{metric_name(item.metric)} x 100, {found.queries:,} queries: {', '.join(scores)}{paired}"
    if text.bound:
        yield (
            "Bound",
            f"{text.bound} with confidence {gate.label_confidence:g}: this decides, the 95 % interval does not",
        )
    if found.confidence:
        yield "Confidence", wording.confidence_line(gate, found)
    if item.parts:
        shown = ((row.datasets[0], wording.text_of(gate, row)) for row in item.parts)
        yield BY_DATASET, "; ".join(f"{name} {of.estimate} {of.word}" for name, of in shown)
    if isinstance(gate, InterferenceGate) and (other := wording.other_way(item)):
        yield "Across datasets", f"{wording.across(gate)}; {other}"
    if item.learnt is not None:
        beaten = item.learnt.found
        said = "not computable" if math.isnan(beaten.value) else f"{signed(100 * beaten.value)} points"
        if beaten.estimate.interval:
            said += f" [{', '.join(signed(100 * end, keep_side=True) for end in beaten.estimate.interval)}]"
        outcome = "it has learnt" if item.learnt.holds else "nothing learnt beyond chance"
        yield "Specialist", f"{said} against {item.learnt.baseline}: {outcome}"
    if looked := wording.at_look(item):
        yield "Looks", looked
    if item.plan and item.label == "INCONCLUSIVE":
        if settles := wording.would_settle(item):
            together = " (queries of all datasets together)" if item.parts and not gate.looks else ""
            together += " (a like share of them labelled)" if item.labelled else ""
            yield SETTLES, settles + together
        yield "Can decide", wording.decides_sentence(item.plan)
    yield "Stability", item.stability.sentence
    yield from (("Note", note) for note in item.notes)


def gate_lines(registration: Registration | None, outcomes: GateOutcomes) -> str:
    """Return the origin of the gates, then a paragraph for each, at most 96 columns wide."""
    first = f"{origin(registration)}. {wording.family(len(outcomes))}".strip()
    return "\n\n".join([filled(first), *map(_paragraph, outcomes)])


def origin(registration: Registration | None) -> str:
    """Say which file registered the gates, or that none did."""
    if registration is None or registration.path is None or registration.registered is None:
        return "No gates were registered before the results; the default cutoffs are used"
    when = registration.registered.isoformat().replace("+00:00", "Z")
    return f"Gates of {registration.path}, registered {when}, hash {registration.content_hash}"


def exit_line(outcomes: GateOutcomes) -> str:
    """Return the exit code of some outcomes and the labels it comes from, in one line."""
    labels = (f"{item.name} {'not judged' if isinstance(item, Refusal) else item.verdict}" for item in outcomes)
    return f"Exit code {exit_code(outcomes)}: {', '.join(labels) or 'no gate'}"


def gates_as_json(registration: Registration | None, outcomes: GateOutcomes, decisive: GateOutcomes) -> dict[str, Any]:
    """Return all outcomes as plain data: ratios and differences as fractions, None where something cannot be had.

    The exit code is that of the ``decisive`` outcomes.
    """
    path, instant = (registration.path, registration.registered) if registration else (None, None)
    facts = {
        "file": str(path) if path else None,
        "hash": registration.content_hash if registration else None,
        "registered": instant.isoformat() if instant else None,
        "exit_code": exit_code(decisive),
        "gates": [_as_json(outcome) for outcome in outcomes],
    }
    found: dict[str, Any] = to_jsonable_python(facts, inf_nan_mode="null")
    return found


def filled(text: str, first: str = "", others: str = "  ") -> str:
    """Return text wrapped at 96 columns, ``first`` before the first line; ``2 %`` and paths stay whole."""
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%")
    wrapped = textwrap.fill(
        kept, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")


def _paragraph(item: GateOutcome) -> str:
    if isinstance(item, Refusal):
        return filled(f"NOT JUDGED: {item.error}")
    said = say(item)
    lines = [filled(f"{said.finding}: {said.name} ({said.label})"), filled(said.headline, "  ")]
    for name, text in said.facts:
        parts = text.split("; ") if name == BY_DATASET and len(item.parts) > 4 else [text]
        lines += [filled(part, f"  {'' if number else name:<16} ", " " * 19) for number, part in enumerate(parts)]
    return "\n".join(lines)


def _as_json(outcome: GateOutcome) -> dict[str, Any]:
    facts = {"name": outcome.name, "gate": outcome.gate.model_dump(), "error": None}
    if isinstance(outcome, Refusal):
        return facts | {"error": str(outcome.error)}
    learnt, plan = outcome.learnt, outcome.plan
    return facts | {
        "registered": outcome.registered,
        "headline": wording.headline(outcome),
        "relevance_levels": outcome.levels,
        **_finding_as_json(outcome, outcome.found),
        "action": wording.action(outcome),
        "advisory": outcome.advisory,
        "datasets": {row.datasets[0]: _finding_as_json(outcome, row) for row in outcome.rows},
        "otherwise": outcome.otherwise,
        "specialist": learnt
        and {"beats": learnt.baseline, "holds": learnt.holds, "interval": learnt.found.estimate.as_json()},
        "look": outcome.look,
        "label_confidence": outcome.gate.label_confidence,
        "power": plan and asdict(plan) | {"says": wording.would_settle(outcome), "seconds": outcome.seconds or None},
        "outlook": outcome.outlook and asdict(outcome.outlook),
        "stability": asdict(outcome.stability),
        "notes": outcome.notes,
    }


def _finding_as_json(item: Judgment, found: Finding) -> dict[str, Any]:
    needed, text = item.gate.label_confidence, wording.text_of(item.gate, found)
    return {
        "label": found.label,
        "finding": text.word,
        "estimate_lies": text.lies,
        "confidence": {label: float(wording.confidence_text(found, label, needed)) for label in found.confidence},
        "bounds": text.bounds,
        "interval": found.estimate.as_json(),
        "why": found.why or None,
        "means": dict(zip(item.gate.arms, found.means, strict=True)),
        "runs": dict(zip(item.gate.arms, found.runs, strict=True)),
        "seeds": dict(zip(item.gate.arms, found.seeds, strict=True)),
        "paired": found.paired,
        "by_seed": {str(seed): value for seed, value in found.by_seed.items()},
        "std": found.std,
        "queries": found.queries,
    }
