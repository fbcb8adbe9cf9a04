"""Verdicts in plain words, so that nobody takes PASS for good news about the joint model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from unimoe.analysis.crossed import CONFIDENCE, CrossedInterval, Label, rule_label
from unimoe.analysis.interference import Interference, InterferenceMetrics, NotComputable, compute_interference_metrics
from unimoe.analysis.loading import Results

WIDTH = 96
NOT_COMPUTABLE = "TIR not computable"


@dataclass(frozen=True)
class Verdict:
    """One paragraph: what was compared, then named lines."""

    heading: str
    lines: tuple[tuple[str, str], ...]


def verdict_block(results: Results) -> str:
    """The verdict on every task as text for a terminal, a paragraph each, at most 96 columns wide."""
    paragraphs = ["\n".join(_laid_out(verdict)) for verdict in verdicts(compute_interference_metrics(results))]
    paragraphs += [textwrap.fill(f"Caveat: {caveat}", WIDTH) for caveat in results.caveats]
    return "\n\n".join(paragraphs)


def verdicts(metrics: InterferenceMetrics) -> list[Verdict]:
    """Every verdict, and after them every TIR that could not be had."""
    found = [Verdict(_heading(item), tuple(_lines(item))) for item in metrics.measured]
    found += [Verdict(_absent_heading(item), ((NOT_COMPUTABLE, item.reason),)) for item in metrics.missing]
    return found or [Verdict("No pair of arms", ((NOT_COMPUTABLE, "no specialist and no joint arm has results"),))]


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


def _heading(item: Interference) -> str:
    pair = item.pair
    seeds = f"{len(item.seeds)} seeds" if len(item.seeds) > 1 else f"seed {item.seeds[0]} only"
    return (
        f"{pair.task.capitalize()} on {item.dataset}: {pair.joint} against {pair.specialist} "
        f"({item.metric}, {item.queries:,} queries, {seeds})"
    )


def _absent_heading(item: NotComputable) -> str:
    place = f" on {item.dataset}" if item.dataset else ""
    return f"{item.pair.task.capitalize()}{place}: {item.pair.joint} against {item.pair.specialist}"


def _lines(item: Interference) -> Iterator[tuple[str, str]]:
    spread = f"± {100 * item.std:.2f}" if item.std is not None else "(std not estimable from one seed)"
    by_seed = ", ".join(f"seed {s}: {percent(tir)}" for s, tir in zip(item.seeds, item.per_seed, strict=True))
    yield "TIR", f"{percent(item.mean)} {spread}" + (f" ({by_seed})" if len(item.seeds) > 1 else "")
    yield "Difference", f"{100 * item.delta:+.2f} points, joint minus specialist"
    yield "95 % interval", _interval(item)
    yield "Rule", f"{item.rule} ({consequence(item.rule, item.mean)})"
    yield "With confidence", _confident(item)
    if item.left_out:
        yield "Left out", f"{', '.join(item.left_out)}: the other arm lacks the seed"
    yield from (("Warning", warning) for warning in item.warnings)


def _interval(item: Interference) -> str:
    crossed = item.crossed
    if crossed is None:
        return "not computable, it needs two seeds and two queries or more"
    centre = "" if percent(crossed.estimate) == percent(item.mean) else f" around {percent(crossed.estimate)} of means"
    return (
        f"{percent(crossed.low)} to {percent(crossed.high)}{centre} "
        f"(other seeds, other queries; t with {crossed.degrees_of_freedom:.1f} degrees of freedom)"
    )


def _confident(item: Interference) -> str:
    crossed = item.crossed
    if crossed is None:
        return "not computable, it needs two seeds and two queries or more"
    label = crossed.label
    if label != "INCONCLUSIVE":
        held = _confidence(crossed.confidence[label])
        return f"{label} ({consequence(label, crossed.estimate)}; confidence {held})"
    held = ", ".join(f"{name} {_confidence(value)}" for name, value in crossed.confidence.items())
    return (
        f"INCONCLUSIVE ({consequence(label, crossed.estimate)}: confidence {held}, a label needs "
        f"{_confidence(CONFIDENCE)}; more queries and seeds would settle it, {_what_first(crossed)})"
    )


def _what_first(crossed: CrossedInterval) -> str:
    seeds, queries = crossed.seed_share, crossed.query_share
    both = max(0.0, 1.0 - seeds - queries)
    if both >= max(seeds, queries):
        return f"either helps: {100 * both:.0f} % of the variance lies in neither alone"
    if queries >= seeds:
        return f"queries first, they carry {100 * queries:.0f} % of the variance"
    return f"seeds first, they carry {100 * seeds:.0f} % of the variance"


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
    yield verdict.heading
    for name, text in verdict.lines:
        start = f"  {name}: " if name == NOT_COMPUTABLE else f"  {name:<16} "
        filled = textwrap.fill(
            text.replace(" %", "\N{NO-BREAK SPACE}%"),
            WIDTH,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
        )
        yield filled.replace("\N{NO-BREAK SPACE}", " ")
