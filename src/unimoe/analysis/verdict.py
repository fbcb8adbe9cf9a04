"""Verdicts in plain words, so that nobody takes PASS for good news about the joint model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unimoe.analysis.across import Across
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.crossed import CONFIDENCE, CrossedInterval, Label, rule_label
from unimoe.analysis.interference import Interference, NotComputable, TirEstimate
from unimoe.analysis.power import plan, settle_sentence

WIDTH = 96
NOT_COMPUTABLE = "TIR not computable"
NO_PAIR = "no specialist and no joint arm has results"

_MOST_PARAGRAPHS = 4
"""Datasets of one pair beyond these get a line each: a full tier has 26 collections."""

_NO_INTERVAL = "not computable, it needs two seeds and two queries or more"


@dataclass(frozen=True)
class Verdict:
    """One paragraph: what was compared, then named lines."""

    heading: str
    lines: tuple[tuple[str, str], ...]


def verdict_block(analysis: Analysis) -> str:
    """The verdict on every task as text for a terminal, a paragraph each, at most 96 columns wide."""
    paragraphs = ["\n".join(_laid_out(verdict)) for verdict in verdicts(analysis)]
    paragraphs += [filled(f"Caveat: {caveat}", others="") for caveat in analysis.results.caveats]
    return "\n\n".join(paragraphs)


def verdicts(analysis: Analysis) -> list[Verdict]:
    """Every verdict by pair of arms, datasets before what they say together; after them every TIR not to be had."""
    metrics, across = analysis.metrics, analysis.across
    found: list[Verdict] = []
    for pair in dict.fromkeys(item.pair for item in metrics.measured):
        items = [item for item in metrics.measured if item.pair == pair]
        found += [_verdict(item) for item in items] if len(items) <= _MOST_PARAGRAPHS else [_one_line_each(items)]
        found += [_across(item) for item in across if item.pair == pair]
    found += [Verdict(_absent_heading(item), ((NOT_COMPUTABLE, item.reason),)) for item in metrics.missing]
    return found or [Verdict("No pair of arms", ((NOT_COMPUTABLE, NO_PAIR),))]


def percent(tir: float, *, sign: bool = True) -> str:
    """A ratio in percent with two decimals, or as many as keep it on its side of the rule's cutoffs."""
    digits = next((d for d in range(2, 8) if rule_label(round(tir, d + 2)) == rule_label(tir)), 8)
    return f"{100 * tir:{'+' if sign else ''}.{digits}f} %"


def consequence(label: Label, tir: float) -> str:
    """What a label means for the project that asks whether tasks should be split."""
    if label == "PASS":
        return "interference confirmed: the specialist is ahead by 2 % or more, go on with separate experts"
    if label == "MARGINAL":
        return "interference of 1 % to 2 %: too small to go on, too large to dismiss"
    if label == "FAIL" and tir < 0:
        return "no interference: the joint model is ahead (synergy), separate experts have nothing to win back"
    if label == "FAIL":
        return "no interference worth the split: the specialist is ahead by less than 1 %"
    return "these seeds and queries cannot decide"


def _verdict(item: Interference) -> Verdict:
    pair = item.pair
    heading = f"{pair.task.capitalize()} on {item.dataset}: {pair.joint} against {pair.specialist}"
    about = f"{item.metric}, {item.queries:,} queries, {_seeds(item.seeds)}"
    by_seed = ", ".join(f"seed {s}: {percent(tir)}" for s, tir in zip(item.seeds, item.per_seed, strict=True))
    lines = [
        ("TIR", _mean(item) + (f" ({by_seed})" if len(item.seeds) > 1 else "")),
        ("Difference", f"{100 * item.delta:+.2f} points, joint minus specialist"),
        *_judged(item),
    ]
    if item.left_out:
        lines.append(("Left out", f"{', '.join(item.left_out)}: the other arm lacks the seed"))
    return Verdict(f"{heading} ({about})", (*lines, *(("Warning", warning) for warning in item.warnings)))


def _one_line_each(items: Sequence[Interference]) -> Verdict:
    """TIR, interval and both labels of every dataset; the report has the rest."""
    pair = items[0].pair
    heading = f"{pair.task.capitalize()} by dataset: {pair.joint} against {pair.specialist}"
    about = "TIR, 95 % interval, the rule's label / the label with confidence"
    return Verdict(f"{heading} ({about})", tuple((item.dataset, _in_one_line(item)) for item in items))


def _in_one_line(item: Interference) -> str:
    crossed = item.crossed
    ends = "no interval" if crossed is None else f"{percent(crossed.low)} to {percent(crossed.high)}"
    warned = " (warnings in the report)" if item.warnings or item.left_out else ""
    return f"{percent(item.mean):>8}  {ends:<20}  {item.rule} / {item.label or 'not computable'}{warned}"


def _across(item: Across) -> Verdict:
    pair, other = item.pair, item.tir_of_means
    heading = f"{pair.task.capitalize()} across {len(item.datasets)} datasets: {pair.joint} against {pair.specialist}"
    about = f"{item.metric}, {item.queries:,} queries, {_seeds(item.seeds)}"
    label = other.label or f"by the rule {other.rule}"
    both = f"{_mean(item.mean_of_tirs)}, mean of TIRs; the TIR of mean scores is {percent(other.mean)}, {label}"
    left_out = (("Left out", reason) for reason in item.left_out)
    return Verdict(f"{heading} ({about})", (("TIR", both), *_judged(item.mean_of_tirs), *left_out))


def _absent_heading(item: NotComputable) -> str:
    place = f" on {item.dataset}" if item.dataset else ""
    return f"{item.pair.task.capitalize()}{place}: {item.pair.joint} against {item.pair.specialist}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]} only"


def _mean(found: TirEstimate) -> str:
    spread = f"± {100 * found.std:.2f}" if found.std is not None else "(std not estimable from one seed)"
    return f"{percent(found.mean)} {spread}"


def _judged(found: TirEstimate) -> Iterator[tuple[str, str]]:
    """Both intervals, both labels, and what would settle it where nothing is settled."""
    crossed, fixed = found.crossed, found.fixed_queries
    yield "95 % interval", _interval(found.mean, crossed)
    if fixed is not None:
        yield (
            "Queries fixed",
            f"{percent(fixed.low)} to {percent(fixed.high)}, {fixed.label} (other seeds, these queries)",
        )
    yield "Rule", f"{found.rule} ({consequence(found.rule, found.mean)})"
    yield "With confidence", _confident(crossed, found.rule)
    if crossed is not None and crossed.label == "INCONCLUSIVE" and crossed.mean_squares is not None:
        yield "Would settle it", settle_sentence(plan(crossed.mean_squares, crossed.estimate))


def _interval(mean: float, crossed: CrossedInterval | None) -> str:
    if crossed is None:
        return _NO_INTERVAL
    centre = "" if percent(crossed.estimate) == percent(mean) else f" around {percent(crossed.estimate)} of means"
    return (
        f"{percent(crossed.low)} to {percent(crossed.high)}{centre} "
        f"(other seeds, other queries; t with {crossed.degrees_of_freedom:.1f} degrees of freedom)"
    )


def _confident(crossed: CrossedInterval | None, rule: Label) -> str:
    """What the label means is said once, where it is also the rule's."""
    if crossed is None:
        return _NO_INTERVAL
    label, meaning = crossed.label, consequence(crossed.label, crossed.estimate)
    if label == "INCONCLUSIVE":
        held = ", ".join(f"{name} {_confidence(value)}" for name, value in crossed.confidence.items())
        return f"{label} ({meaning}: confidence {held}, a label needs {_confidence(CONFIDENCE)})"
    held = f"confidence {_confidence(crossed.confidence[label])}"
    return f"{label} ({held})" if label == rule else f"{label} ({meaning}; {held})"


def _confidence(value: float) -> str:
    """Two decimals without the leading zero, never rounded up to the threshold or to certainty."""
    shown = f"{value:.2f}"
    if value < CONFIDENCE <= float(shown):
        shown = f"{CONFIDENCE - 0.01:.2f}"
    if shown == "1.00":
        return "above .99"
    return "below .01" if shown == "0.00" else shown.removeprefix("0")


def _laid_out(verdict: Verdict) -> Iterator[str]:
    """The heading, then the lines in two columns; ``2 %`` is not torn apart."""
    width = max(16, *(len(name) for name, _ in verdict.lines))
    yield filled(verdict.heading)
    for name, text in verdict.lines:
        start = f"  {name}: "
        yield filled(text, start, " " * len(start)) if name == NOT_COMPUTABLE else named_line(name, text, width)


def named_line(name: str, text: str, width: int = 16) -> str:
    """A name and what it says in two columns, wrapped; ``2 %`` and paths are not torn apart."""
    start = f"  {name:<{width}} "
    return filled(text, start, " " * len(start))


def filled(text: str, first: str = "", others: str = "  ") -> str:
    """Text wrapped at the verdicts' width, with what each line begins with."""
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%")
    wrapped = textwrap.fill(
        kept, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")
