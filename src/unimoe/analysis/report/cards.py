"""One card per verdict: what to do, in words that need no statistics, and behind it the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unimoe.analysis.gates.definitions import Gate, InterferenceGate, Registration
from unimoe.analysis.gates.judging import Judgment, Refusal
from unimoe.analysis.gates.output import judgment_lines, meaning
from unimoe.analysis.gates.wording import claim
from unimoe.analysis.interference import NotComputable
from unimoe.analysis.report.gauge import Gauge, gauge
from unimoe.analysis.verdict import NO_PAIR

ACTIONS = {
    "PASS": "Go on",
    "FAIL": "Stop",
    "MARGINAL": "In between: neither go on nor stop",
    "INCONCLUSIVE": "Cannot tell yet",
    "ADVISORY": "A look ahead, no decision",
    "NOT JUDGED": "Nothing to decide on",
}
"""By label, and by what a card shows in place of one."""

_TONES = {"PASS": "pass", "FAIL": "fail", "MARGINAL": "marginal"}
_FOLDED = ("By dataset", "Can decide")


@dataclass(frozen=True)
class Badge:
    """A label as the report shows it; ``count`` where one badge stands for several verdicts."""

    label: str
    count: int = 1

    @property
    def action(self) -> str:
        """What to do."""
        return ACTIONS[self.label]

    @property
    def tone(self) -> str:
        """Class of the style sheet; empty where nothing was decided."""
        return _TONES.get(self.label, "")


@dataclass(frozen=True)
class Card:
    """A verdict as the report shows it.

    Attributes:
        heading: what was judged, for example ``Reranking on scifact``.
        about: the arms, the metric, and how much was measured.
        consequence: what the label means for the project, a sentence.
        lines: named facts for a first look.
        folded: named facts for a second one.
    """

    badge: Badge
    heading: str
    about: str
    consequence: str
    lines: tuple[tuple[str, str], ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    gauge: Gauge | None = None


def cards(
    registration: Registration, outcomes: Sequence[Judgment | Refusal], missing: Sequence[NotComputable]
) -> tuple[Card, ...]:
    """A card per gate; where no file registers any, also one for every TIR that could not be had on a dataset.

    Args:
        registration: the gates that were judged.
        outcomes: what ``judge_all`` returned for them.
        missing: what ``compute_interference_metrics`` could not compute.
    """
    made = tuple(_of_outcome(outcome, named=registration.path is not None) for outcome in outcomes)
    if registration.path is not None:
        return made
    return (*made, *(_absent(item) for item in missing if item.dataset)) or (_nothing(missing),)


def tally(shown: Iterable[Card]) -> tuple[Badge, ...]:
    """The labels that occur with their counts, in the order of ``ACTIONS``."""
    counts = Counter(card.badge.label for card in shown)
    return tuple(Badge(label, counts[label]) for label in ACTIONS if counts[label])


def summary(shown: Sequence[Card]) -> str:
    """All verdicts in one sentence."""
    badges = tally(shown)
    if len(badges) > 1:
        return f"{len(shown)} verdicts: {'; '.join(f'{b.count} × {b.action.lower()}' for b in badges)}."
    which = "One verdict" if len(shown) == 1 else "Both verdicts" if len(shown) == 2 else f"All {len(shown)} verdicts"
    return f"{which}: {badges[0].action.lower()}."


def _of_outcome(outcome: Judgment | Refusal, *, named: bool) -> Card:
    gate = outcome.gate
    asked = f"Gate {outcome.name}, {gate.kind.replace('_', '-')}: {claim(gate)}. " if named else ""
    if isinstance(outcome, Refusal):
        return Card(Badge("NOT JUDGED"), _heading(gate), f"{asked}{_arms(gate)}", _sentence(str(outcome.error)))
    found, lines = outcome.found, tuple(judgment_lines(outcome))
    means = meaning(outcome)
    if outcome.advisory:
        means = f"taken at face value it would say {outcome.label} ({means}), but {'; '.join(outcome.advisory)}"
    return Card(
        badge=Badge("ADVISORY" if outcome.advisory else outcome.label),
        heading=_heading(gate),
        about=f"{asked}{_arms(gate)} ({gate.metric}, {outcome.queries:,} queries{_seeds(outcome)})",
        consequence=_sentence(means),
        lines=tuple(line for line in lines if line[0] not in (*_FOLDED, "Advisory")),
        folded=tuple(line for line in lines if line[0] in _FOLDED),
        gauge=gauge(gate, found.value, found.interval),
    )


def _absent(item: NotComputable) -> Card:
    heading = f"{item.pair.task.capitalize()} on {item.dataset}"
    about = f"{item.pair.joint} against {item.pair.specialist}"
    return Card(Badge("NOT JUDGED"), heading, about, f"TIR not computable: {item.reason}.")


def _nothing(missing: Sequence[NotComputable]) -> Card:
    reasons = "; ".join(dict.fromkeys(item.reason for item in missing)) or NO_PAIR
    return Card(Badge("NOT JUDGED"), "No pair of arms", "", f"TIR not computable: {reasons}.")


def _heading(gate: Gate) -> str:
    datasets = gate.datasets
    return f"{gate.task.capitalize()} on {datasets[0] if len(datasets) == 1 else f'{len(datasets)} datasets'}"


def _arms(gate: Gate) -> str:
    first, second = gate.arms
    return f"{second} against {first}" if isinstance(gate, InterferenceGate) else f"{first} against {second}"


def _seeds(judgment: Judgment) -> str:
    if judgment.seeds == (None,):
        return ""
    return f", {'seed' if len(judgment.seeds) == 1 else 'seeds'} {', '.join(map(str, judgment.seeds))}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."
