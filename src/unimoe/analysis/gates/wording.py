"""One judgment in words and numbers: what terminal, tables, figures and report say of it is formatted here alone.

Values with their units come first, then clauses about a gate and what it found, then whole sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from unimoe.analysis.formats import metric_name, signed, without
from unimoe.analysis.gates.definitions import Averaging, Gate, InterferenceGate, Label
from unimoe.analysis.gates.findings import Finding, bounds_of, region_of
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.power import MOST_QUERIES, MOST_SEEDS, Aim, PowerPlan
from unimoe.core.console import in_hours
from unimoe.core.grouping import gathered

T = TypeVar("T")


class OfGate(Protocol):
    """What a gate is about: a judgment, or the two arms of a drill-down."""

    @property
    def gate(self) -> Gate:
        """The gate, or one made for two systems."""


_WAYS: dict[Averaging, str] = {"mean_of_tirs": "mean of TIRs", "tir_of_means": "TIR of mean scores"}
_DATASETS_NAMED = 3

# What a label says of the models. PASS is bad news for a joint model, so the label alone would mislead.
_FINDINGS: dict[str, dict[Label, str]] = {
    "interference": {"PASS": "INTERFERENCE", "FAIL": "NO INTERFERENCE", "MARGINAL": "SMALL"},
    "superiority": {"PASS": "BETTER", "FAIL": "NOT BETTER"},
    "non_inferiority": {"PASS": "NOT WORSE", "FAIL": "WORSE"},
    "equivalence": {"PASS": "EQUIVALENT", "FAIL": "DIFFERENT"},
}


def unit(gate: Gate) -> str:
    """Return the unit of a gate's values as shown: percent of the specialist, or points (score x 100)."""
    return "%" if isinstance(gate, InterferenceGate) else "points"


def cutoff_text(gate: Gate, cutoff: float) -> str:
    """Return a cutoff with its unit, ``2 %`` or ``1 point``."""
    number = f"{100 * cutoff:.6g}"
    return f"{number} {unit(gate)}" if number != "1" else f"1 {unit(gate).removesuffix('s')}"


def number(gate: Gate, value: float) -> str:
    """Return a value in percent or points, with two decimals or as many as keep it on its side of the cutoffs."""
    return signed(100 * value, _digits(gate, [value], 2))


def value_text(gate: Gate, value: float) -> str:
    """Return a value with its unit, for example ``+4.38 %``."""
    return "not computable" if math.isnan(value) else f"{number(gate, value)} {unit(gate)}"


class FindingText(NamedTuple):
    """What a gate found, as every terminal, table, figure and page shows it; each makes a layout of these alone."""

    value: str  # ``+4.38 %``
    interval: str  # ``[+3.11, +5.66]``, or that there is none
    bound: str  # what the label rests on, such as ``at least +2.41 %``; empty without a label
    bounds: tuple[float | None, float | None]  # the same as numbers
    confidence: str  # in the label; empty where there is none
    word: str  # INTERFERENCE, NO INTERFERENCE, SMALL, UNDECIDED; by kind of gate
    lies: str  # where the estimate lies against the cutoffs; no claim about the truth

    @property
    def estimate(self) -> str:
        """Value and interval, for example ``+4.38 % [+3.11, +5.66]``."""
        return f"{self.value} {self.interval}"

    @property
    def sign_and_bound(self) -> str:
        """The bound with a sign in place of words, and without its unit: ``≥ +2.41``."""
        signs = self.bound.replace("at least", "\N{GREATER-THAN OR EQUAL TO}").replace(
            "at most", "\N{LESS-THAN OR EQUAL TO}"
        )
        return signs.removesuffix(" %").removesuffix(" points")


def text_of(gate: Gate, found: Finding) -> FindingText:
    """Write a finding out; this is the one place where that is done."""
    ends = ", ".join(number(gate, end) for end in found.estimate.interval or ())
    low, high = bounds = bounds_of(gate, found)
    bound = ""
    if low is not None and high is not None:
        bound = f"{number(gate, low)} to {value_text(gate, high)}"
    elif low is not None:
        bound = f"at least {value_text(gate, low)}"
    elif high is not None:
        bound = f"at most {value_text(gate, high)}"
    return FindingText(
        value=value_text(gate, found.value),
        interval=f"[{ends or 'no interval'}]",
        bound=bound,
        bounds=bounds,
        confidence=confidence_text(found, found.label, gate.label_confidence),
        word=finding_word(gate, found.label),
        lies=region(gate, found.value),
    )


def confidence_text(found: Finding, label: Label, needed: float) -> str:
    """Return the confidence in a label with three decimals, or as many as keep it on its side of the one needed.

    It is rounded down, so that it never looks like certainty; empty where there is none.
    """
    held = found.confidence.get(label)
    if held is None:
        return ""
    for digits in range(3, 16):
        floor = min(math.floor(10**digits * held + 1e-9), 10**digits - 1)
        if (floor >= 10**digits * needed) == (held >= needed):
            break
    return f"{floor / 10**digits:.{digits}f}"


def region(gate: Gate, value: float) -> str:
    """Return where an estimate lies against the cutoffs, for example ``2 % or more``; no claim about the truth."""
    if math.isnan(value):
        return "no estimate"
    low, high = Aim(gate.cutoffs, gate.confidence).region(round(value, 12))
    if low == -math.inf:
        return f"below {cutoff_text(gate, high)}"
    lowest = cutoff_text(gate, low)
    return f"{lowest} or more" if high == math.inf else f"{lowest} to {cutoff_text(gate, high)}"


def finding_word(gate: Gate, label: Label) -> str:
    """Return the finding in capitals: INTERFERENCE, NO INTERFERENCE, SMALL, UNDECIDED; by kind of gate."""
    return _FINDINGS[gate.kind].get(label, "UNDECIDED")


def action(item: Judgment) -> str:
    """Return what the label asks of the project."""
    gate, label = item.gate, item.label
    if item.learnt is not None and not item.learnt.holds:
        return f"train better first: {gate.arms[0]} until it beats {item.learnt.baseline}, then judge again"
    if label == "INCONCLUSIVE":
        over = gate.looks is not None and item.look is not None and item.look >= gate.looks[-1]
        return "closed without a decision: another gate needs new seeds" if over else "measure more"
    if label == "MARGINAL":
        return "too small to go on, too large to dismiss"
    if isinstance(gate, InterferenceGate):
        return "build separate experts" if label == "PASS" else "keep the joint model"
    return "go on" if label == "PASS" else "stop"


def family(gates: int) -> str:
    """Say that the labels of several gates are not corrected for their number; empty for one gate."""
    if gates < 2:
        return ""
    return f"Each of these {gates} gates has its own confidence, uncorrected for their number."


def by_kind(items: Iterable[OfGate], tir: T, difference: T, either: T) -> T:
    """Return the first where all items are of TIR, the second where none is, else the third."""
    kinds = {isinstance(item.gate, InterferenceGate) for item in items}
    return either if len(kinds) != 1 else tir if True in kinds else difference


def column_heads(items: Iterable[OfGate]) -> tuple[str, str, str]:
    """Return what both arms and the value are called over columns of several items."""
    tir, difference = ("Specialist", "Joint", "TIR (%)"), ("System", "Baseline", "Difference")
    return by_kind(items, tir, difference, ("Specialist or system", "Joint or baseline", "Value"))


def claim_text(gate: Gate) -> str:
    """Return the gate's claim and the confidence that it asks for."""
    looks = f" over looks at {', '.join(map(str, gate.looks or ()))} seeds, {gate.label_confidence:g} at each"
    claim = claims(gate)["PASS"]
    if isinstance(gate, InterferenceGate):
        claim = f"PASS from {cutoff_text(gate, gate.pass_at)}, FAIL below {cutoff_text(gate, gate.fail_below)}"
    return f"{claim}, with confidence {gate.confidence:g}{looks if gate.looks else ''}"


def claims(gate: Gate) -> dict[Label, str]:
    """Return what the gate says of its arms by PASS, and by FAIL: of a difference, that its claim does not hold."""
    if isinstance(gate, InterferenceGate):
        passed, failed = cutoff_text(gate, gate.pass_at), cutoff_text(gate, gate.fail_below)
        return {"PASS": f"TIR is {passed} or more", "FAIL": f"TIR is below {failed}"}
    margin, system, baseline = cutoff_text(gate, gate.margin), gate.system, gate.baseline
    if gate.kind == "equivalence":
        both = f"{system} and {baseline} differ by"
        return {"PASS": f"{both} at most {margin}", "FAIL": f"{both} more than {margin}"}
    if gate.kind == "non_inferiority":
        worse = f"worse than {baseline}{f' by more than {margin}' if gate.margin else ''}"
        return {"PASS": f"{system} is not {worse}", "FAIL": f"{system} is {worse}"}
    than = f"{baseline}{f' by {margin} or more' if gate.margin else ''}"
    return {"PASS": f"{system} beats {than}", "FAIL": f"{system} does not beat {than}"}


def _bound(gate: Gate, found: Finding) -> str:
    """Return the bound that decides as a part of the headline, in the direction in which that speaks."""
    low, high = bounds_of(gate, found)
    held = [end for end in (low, high) if end is not None]
    if not held:
        return ""
    digits, sign = _digits(gate, held, 1), math.copysign(1.0, found.value + 0.0)
    level = f" with confidence {gate.label_confidence:g}"
    if len(held) == 2:
        near, far = sorted(round(100.0 * sign * end, digits) + 0.0 for end in held)
        return f", {near:.{digits}f} to {far:.{digits}f} {unit(gate)}{level}"
    (end,) = held
    size = f"{abs(round(100.0 * end, digits)):.{digits}f} {unit(gate)}"
    least = (low is not None) == (end >= 0.0)
    if sign * end >= 0.0:  # on the side of the estimate
        return f", {'at least' if least else 'at most'} {size}{level}"
    if isinstance(gate, InterferenceGate):
        return f", and {'loses' if end > 0.0 else 'gains'} at most {size}{level}"
    return f", at most {size} {'ahead' if end > 0.0 else 'behind'}{level}"


def headline(item: Judgment) -> str:
    """Return the finding as one sentence, and the caveat about a specialist that has learnt nothing.

    For example: "joint_r8 loses 5.2 % of rank_only_r8's ndcg@10 on apidocs, at least 2.4 % with confidence 0.9 (95 %
    interval 1.1 to 9.3 %): interference, 2 % or more."
    """
    gate, found, label = item.gate, item.found, item.label
    (first, second), names = gate.arms, found.datasets
    where = ", ".join(names) if len(names) <= _DATASETS_NAMED else f"{len(names)} datasets"
    if math.isnan(found.value):
        return f"{second} cannot be compared with {first} on {where}: {found.why}.{_unlearnt(item)}"
    ends = found.estimate.interval or ()
    digits, ahead = _digits(gate, [found.value, *ends], 1), found.value >= 0.0
    value = f"{abs(round(100.0 * found.value, digits)):.{digits}f}"
    if isinstance(gate, InterferenceGate):
        name = "TIR"
        said = f"{second} {'loses' if ahead else 'gains'} {value} % of {first}'s {metric_name(gate.metric)} on {where}"
        passed, failed = cutoff_text(gate, gate.pass_at), cutoff_text(gate, gate.fail_below)
        below = (bounds_of(gate, found)[1] or 0.0) < 0.0
        little = ", the joint model is ahead" if below else f" worth a split, less than {failed}"
        means: dict[Label, str] = {
            "PASS": f"interference, {passed} or more",
            "MARGINAL": f"interference between {failed} and {passed}",
            "FAIL": f"no interference{little}",
        }
    else:
        name = "difference"
        side = "ahead of" if ahead else "behind"
        said = f"{first} is {value} points {side} {second} in {metric_name(gate.metric)} on {where}"
        means = claims(gate)
    these = "queries" if set(found.seeds) == {(None,)} else "seeds and queries"
    meaning = means.get(label) or found.why or f"these {these} cannot decide"
    interval = f", {100 * LEVEL:g} % interval {text_of(gate, found).interval}" if ends else ""
    numbers = f"({name} {value_text(gate, found.value)}{interval})"
    return f"{said}{_bound(gate, found)} {numbers}: {meaning}{_carried(item)}.{_unlearnt(item)}"


def _carried(item: Judgment) -> str:
    """Return without which datasets the label is another one; empty where none carries it, or there is no label."""
    if item.label == "INCONCLUSIVE":
        return ""
    rows = (row for row in item.stability.rows if row.kind == "dataset" and row.label != item.label)
    names = gathered((row.label, row.left_out) for row in rows)
    said = (f"; {without(of)} it is {finding_word(item.gate, label).lower()}" for label, of in names.items())
    return "".join(said)


def _unlearnt(item: Judgment) -> str:
    """Return the caveat about a specialist that has learnt nothing measurable; empty where there is none."""
    if item.learnt is None or item.learnt.holds:
        return ""
    found = item.learnt.found
    p = found.estimate.p
    tested = found.why or ("no test" if p is None else f"p {p:.2g}")
    difference = f"{signed(100 * found.value)} points" if math.isfinite(found.value) else "no difference"
    return (
        f" But {item.gate.arms[0]} has learnt nothing measurable: {difference} against {item.learnt.baseline} "
        f"({tested}), so a loss against it says little."
    )


def across(gate: Gate) -> str:
    """Return by which mean a gate makes one value of several datasets."""
    return _WAYS[gate.across] if isinstance(gate, InterferenceGate) else "mean"


def other_way(item: Judgment) -> str:
    """Return the value across datasets by the way that the gate does not take; empty where there is no such value."""
    if item.otherwise is None or not isinstance(item.gate, InterferenceGate):
        return ""
    return f"the {_WAYS[item.gate.other_way]} is {value_text(item.gate, item.otherwise)}"


def confidence_line(gate: Gate, found: Finding) -> str:
    """Return the confidence in each claim that could be decided.

    Each is the level of a one-sided interval of its own. Set out as shares of 1 they would be read as a posterior, so
    nothing is said of what lies between, and of a claim and its opposite only what holds the higher one.
    """
    texts = claims(gate)
    if len(gate.cutoffs) == 1:
        higher = max(texts, key=lambda label: found.confidence[label])
        texts = {higher: texts[higher]}
    said = (f"that {text}: {confidence_text(found, label, gate.label_confidence)}" for label, text in texts.items())
    return f"{'; '.join(said)}; a label needs {gate.label_confidence:g}"


def at_look(item: Judgment) -> str:
    """Return at which look a gate was judged, and what later seeds change; empty where seeds play no part."""
    looks, look, gate = item.gate.looks, item.look, item.gate
    if not looks and gate.seeds is None and item.found.estimate.estimand != "queries":
        return (
            "nobody has registered the number of seeds: who adds seeds until a label appears gets a wrong one about "
            "twice as often as the confidence says; fix the looks first, with looks in a gate file or compare --looks"
        )
    if not looks or look is None:
        return ""
    if item.label != "INCONCLUSIVE":
        return f"decided at the look at {look} seeds: the gate is closed, and later seeds change nothing"
    if look >= looks[-1]:
        return f"the last look, at {look} seeds, is over: the gate stays INCONCLUSIVE, and later seeds change nothing"
    return f"no label at {look} seeds; the next look is at {next(n for n in looks if n > look)} seeds"


def would_settle(item: Judgment) -> str:
    """Return what would settle a gate without a label, looks to come or other sizes, and how long that takes here."""
    said = settle_sentence(item.plan) if item.plan and not item.gate.looks else ""
    if item.gate.looks and (outlook := item.outlook):
        chances = ", ".join(f"{label} {100 * chance:.0f} %" for label, chance in outlook.chances.items())
        said = (
            f"the looks to come are at {', '.join(map(str, outlook.looks))} seeds; if the true value is the estimate: "
            f"{chances}, after {outlook.seeds:.1f} seeds on average"
        )
    times = {what: in_hours(seconds) if seconds >= 90 else "a minute" for what, seconds in item.seconds.items()}
    takes = ", ".join(f"the {what} in about {time}" for what, time in times.items())
    return f"{said}; as fast as so far, {takes}" if said and takes else said


def settle_sentence(plan: PowerPlan) -> str:
    """Say what would settle the gate; what never would is said too."""
    seeds, queries = plan.at_hand
    if plan.settled:
        return f"these {f'{seeds} seeds x ' if seeds else ''}{queries:,} queries settle it"
    if plan.grid is None:
        return (
            f"the estimate lies too near a cutoff: up to {MOST_SEEDS:,} seeds and {MOST_QUERIES:,} queries would not "
            "settle it"
        )
    more_seeds = f"about {plan.seeds:,} seeds with these {queries:,} queries" if plan.seeds else "never by seeds alone"
    these = f" with these {seeds} seeds" if seeds else ""
    more_queries = f"about {plan.queries:,} queries{these}" if plan.queries else "never by queries alone"
    ways = [more_seeds, more_queries] if seeds else [more_queries]
    if seeds and plan.grid not in ((plan.seeds, queries), (seeds, plan.queries)):
        ways.append(f"the cheapest mix, by scores to compute: about {plan.grid[0]:,} seeds x {plan.grid[1]:,} queries")
    return "; ".join(ways)


def decides_sentence(plan: PowerPlan) -> str:
    """Say what data can decide at all; distances in points, which are percent for a TIR."""
    distances = (plan.decides, plan.decides_with_any_queries, plan.decides_with_any_seeds)
    # A variance estimated as 0, which it hardly is, sets no limit.
    here, queries, seeds = (f"{100 * distance:.2f}" if distance > 1e-6 else "no limit seen" for distance in distances)
    more_seeds = f", with any number of seeds {seeds}" if plan.at_hand[0] else ""
    return f"only what lies {here} points or more from a cutoff; with any number of queries {queries}{more_seeds}"


def _digits(gate: Gate, values: Sequence[float], fewest: int) -> int:
    """Return how many decimals, of percent or points, keep each value on its side of the cutoffs."""
    regions = [region_of(gate, value) for value in values]
    kept = (d for d in range(fewest, 8) if [region_of(gate, round(value, d + 2)) for value in values] == regions)
    return next(kept, 8)
