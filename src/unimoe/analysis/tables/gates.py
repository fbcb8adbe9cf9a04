"""Gates as tables: labels, datasets, runs, what one seed or dataset less would change, and what would settle them.

Every number, cutoff and label comes from a judgment; these tables judge nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from unimoe.analysis.gates.definitions import InterferenceGate, Label
from unimoe.analysis.gates.findings import Finding, Without
from unimoe.analysis.gates.judging import Judgment, Outcomes, Refusal
from unimoe.analysis.gates.output import family
from unimoe.analysis.gates.wording import (
    WAYS,
    asked,
    bound_text,
    confidence_text,
    finding_word,
    other_way,
    region,
    shown,
    unit,
    unlearnt,
)
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.power import FAST_TIER_QUERIES, MOST_QUERIES, MOST_SEEDS, POWER, PowerPlan, points
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, name_cells, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered
from unimoe.results.folder import Seed

T = TypeVar("T")

_INTERVAL = f"{100 * LEVEL:g} % interval"
_VALUE = "TIR in percent or difference in points"
_DATASETS_NAMED = 4  # datasets that a note names; the table of datasets has all of them
_LABELS: tuple[Label, ...] = ("PASS", "MARGINAL", "FAIL")


def gates_table(outcomes: Outcomes) -> Table:
    """Return a row per gate: value, interval and label; gates that cannot be judged are among the notes."""
    judged = [outcome for outcome in outcomes if isinstance(outcome, Judgment)]
    refused = (outcome for outcome in outcomes if isinstance(outcome, Refusal))
    return Table(
        name="gates",
        title="Gates",
        caption=f"Gates: {_VALUE}, with its {_INTERVAL}{_one_claim(judged)}",
        columns=("Gate", "Value", "Low", "High", "Queries", "Seeds", "Estimate", "Finding", "Bound", "Confidence"),
        groups=row_groups(("", _gate_row(item)) for item in judged),
        notes=(
            *_verdict_notes(judged, [(item, item.found) for item in judged]),
            *(f"{outcome.name} was not judged: {outcome.error}" for outcome in refused),
        ),
    )


def datasets_table(judgments: Sequence[Judgment]) -> Table:
    """Return a row for each dataset of each judgment, and one for all of its datasets where there are several."""
    names, cut = name_cells(dataset for item in judgments for dataset in item.gate.datasets)
    first, second, value = column_heads(judgments)
    csv_only = (
        *(f"{first} seeds", f"{second} seeds", "Paired", "Metric", "Holds for", "Standard error"),
        *("Degrees of freedom", "Seed share", "Query share"),
        *(f"Confidence {label}" for label in _LABELS),
    )
    shown_columns = ("Dataset", "Queries", first, second, "Delta", value, "Low", "High", "Estimate", "Finding", "Bound")
    return Table(
        name="datasets",
        title="Gates by dataset",
        caption=(
            f"Gates by dataset: mean scores × 100, {_VALUE} ± standard deviation over seeds, with its {_INTERVAL}"
            f"{_one_claim(judgments)}"
        ),
        columns=(*shown_columns, *csv_only),
        csv_only=frozenset(csv_only),
        groups=row_groups((_heading(item), _dataset_row(item, found, names)) for item, found in _findings(judgments)),
        notes=(
            "Delta: joint minus specialist, in points; TIR is the share of the specialist's score that is lost. "
            "A standard deviation is over an arm's seeds, that of the value over seeds that both arms have.",
            *_verdict_notes(judgments, [(item, found) for item in judgments for found in item.rows]),
            *cut,
        ),
    )


def seeds_table(judgments: Sequence[Judgment]) -> Table:
    """Return the scores of every run of each judgment, and its value by the seeds that both arms have."""
    return Table(
        name="seeds",
        title="Gates by seed",
        caption=f"Gates by seed: mean scores × 100 of every run, {_VALUE}",
        columns=("Seed", *column_heads(judgments)),
        groups=row_groups(
            (f"{_heading(item)}, {_datasets(item, found)} ({found.queries:,} queries)", row)
            for item, found in _findings(judgments)
            for row in _seed_rows(item, found)
        ),
        notes=(
            "A description: seeds that two arms have in common are a pair only where the experiment declares it. The "
            "mean of the values by seed is not the gate's own value, which is that of the mean scores.",
            *_cautions(judgments),
        ),
    )


def stability_table(judgments: Sequence[Judgment]) -> Table:
    """Return each gate with everything, and without each seed and each dataset."""
    return Table(
        name="stability",
        title="Stability",
        caption=(
            f"Gates without one seed or one dataset: {_VALUE}, judged with the interval of the whole"
            f"{_one_claim(judgments)}"
        ),
        columns=("Left out", "Value", "Estimate", "Finding"),
        groups=row_groups((item.name, row) for item in judgments for row in _stability_rows(item)),
        notes=(
            *(f"{item.name}: {item.stability.sentence}." for item in judgments),
            *_claims(judgments),
            *_cautions(judgments),
        ),
    )


def power_table(judgments: Sequence[Judgment]) -> Table:
    """Return what would settle each gate, and what data of some sizes can decide at all."""
    planned = [item for item in judgments if item.plan]
    return Table(
        name="power",
        title="What would settle it",
        caption=(
            "What would settle each gate at the observed value, and the smallest distance from a cutoff, in points, "
            "that data of some size decides"
        ),
        columns=(
            *("Gate", "Present", "Seeds alone", "Queries alone", "Cheapest mix"),
            *("Decides", "Fast tier", "Any queries", "Any seeds"),
        ),
        groups=row_groups(("", _power_row(item.name, item.plan)) for item in planned if item.plan),
        notes=(
            f"Sizes are seeds x queries. New data of a planned size settles the gate with probability {POWER:g} if the "
            "observed value is the true one; the plan rests on estimated variances and is no promise.",
            "Cheapest mix: the seeds and queries that settle it with the fewest scores to compute.",
            f"Never: not with up to {MOST_SEEDS:,} seeds or {MOST_QUERIES:,} queries. Fast tier: "
            f"{FAST_TIER_QUERIES:,} queries (SciFact, NFCorpus, FiQA2018) with the present seeds, if they vary as "
            "the present queries do.",
            *_claims(planned),
            *_cautions(planned),
        ),
    )


def by_kind(judgments: Iterable[Judgment], tir: T, difference: T, either: T) -> T:
    """Return the first where all judgments are of TIR, the second where none is, else the third."""
    kinds = {isinstance(item.gate, InterferenceGate) for item in judgments}
    return either if len(kinds) != 1 else tir if True in kinds else difference


def column_heads(judgments: Iterable[Judgment]) -> tuple[str, str, str]:
    """Return what both arms and the value are called over columns of several judgments."""
    return by_kind(
        judgments,
        ("Specialist", "Joint", "TIR (%)"),
        ("System", "Baseline", "Difference"),
        ("Specialist or system", "Joint or baseline", "Value"),
    )


def _heading(item: Judgment) -> str:
    return f"{item.name}: {' against '.join(item.gate.sides)}, {item.gate.metric}"


def _one_claim(judgments: Sequence[Judgment]) -> str:
    """Return what all gates ask, for a caption; empty where they ask several things, which the notes say."""
    claims = {asked(item.gate) for item in judgments}
    return f" ({claims.pop()})" if len(claims) == 1 else ""


def _verdict_notes(judgments: Sequence[Judgment], findings: Iterable[tuple[Judgment, Finding]]) -> Iterator[str]:
    """Yield how to read labels, what the gates ask, what intervals hold for, and what else a reader must know."""
    yield (
        "Estimate: where the value lies against the gate's cutoffs, however uncertain it is. Finding: what holds the "
        "confidence the gate asks for; UNDECIDED where nothing does. Bound: what the finding rests on, the end of "
        "the one-sided interval at the gate's confidence; Low and High are the ends of the two-sided one."
    )
    if several := family(len(judgments)):
        yield several
    yield from _claims(judgments)
    certain = [(item, found) for item, found in findings if found.estimate.interval]
    names = gathered((found.holds_for, f"{item.name} on {_datasets(item, found)}") for item, found in certain)
    for holds_for, of_gates in names.items():
        where = f" of {', '.join(of_gates)}" if len(names) > 1 else ""
        yield f"Intervals{where} hold for {holds_for}."
    yield from (f"{item.name}{remark}" for item in judgments for remark in _remarks(item))


def _claims(judgments: Sequence[Judgment]) -> Iterator[str]:
    """Yield what each gate asks, with its own cutoffs and confidence, and which gates no file registers."""
    for item in judgments:
        gate, few = item.gate, len(item.gate.datasets) <= _DATASETS_NAMED
        of = f"TIR of {' against '.join(gate.sides)}, " if isinstance(gate, InterferenceGate) else ""
        where = ", ".join(gate.datasets) if few else f"{len(gate.datasets)} datasets"
        yield f"{item.name}: {of}{asked(gate)}; {gate.task}, {item.metric} on {where}."
    for registered, word in ((True, "yes"), (False, "no: the default cutoffs")):
        names = [item.name for item in judgments if item.registered == registered]
        if names:
            yield f"Registered: {word} ({', '.join(names)})."


def _cautions(judgments: Sequence[Judgment]) -> Iterator[str]:
    """Yield why judgments decide nothing, each reason once."""
    yield from dict.fromkeys(f"Advisory: {reason}" for item in judgments for reason in item.advisory)


def _remarks(item: Judgment) -> Iterator[str]:
    """Yield what a reader must know to trust a label, to be set behind the gate's name."""
    yield from (f": advisory, {reason}" for reason in item.advisory)
    for _, found in _findings([item]):
        if found.why:
            yield f" on {_datasets(item, found)}: INCONCLUSIVE, {found.why}."
    if item.found.paired:
        yield ": seeds pair, as the experiment declares."
    if caveat := unlearnt(item):
        yield f": {caveat}"
    if other := other_way(item):
        yield f": {other}."
    yield from (f": {note}." for note in item.notes)


def _findings(judgments: Iterable[Judgment]) -> Iterator[tuple[Judgment, Finding]]:
    """Yield what each gate found on each dataset, and on all of them where there are several."""
    return ((item, found) for item in judgments for found in (*item.parts, item.found))


def _datasets(item: Judgment, found: Finding) -> str:
    """Return the name of a dataset, or by which mean all of them are one value."""
    if len(item.gate.datasets) == 1 or found is not item.found:
        return found.datasets[0]
    return f"all ({WAYS[item.gate.across] if isinstance(item.gate, InterferenceGate) else 'mean'})"


def _value(item: Judgment, value: float, std: float | None = None) -> Cell:
    if not math.isfinite(value):
        return Cell(ABSENT)
    cell = Cell(shown(item.gate, value).rpartition(" ")[0], value=100 * value)
    return cell.with_spread(std and 100 * std)


def _judged_cells(item: Judgment, found: Finding, middle: Sequence[Cell] = ()) -> Row:
    """Return both ends of the interval, cells of a table's own, where the estimate lies, the verdict and its bound."""
    ends = (_value(item, end) for end in found.estimate.interval or (math.nan, math.nan))
    word = finding_word(item.gate, found.label).lower()
    bound = bound_text(item.gate, found, at_least="≥", at_most="≤").removesuffix(f" {unit(item.gate)}")
    said = Cell(f"{'advisory ' if item.advisory else ''}{word}".capitalize())
    return *ends, *middle, Cell(region(item.gate, found)), said, Cell(bound or ABSENT)


def _confidence(item: Judgment, found: Finding, label: Label) -> Cell:
    held = found.confidence.get(label)
    return Cell(confidence_text(found, label, item.gate.label_confidence) or ABSENT, value=held)


def _means(found: Finding) -> list[Cell]:
    arms = zip(found.means, found.runs, strict=True)
    return [Cell.mean([100 * run for run in runs or (mean,)]) for mean, runs in arms]


def _gate_row(item: Judgment) -> Row:
    found = item.found
    seeds = dict.fromkeys(ABSENT if of_arm == (None,) else str(len(of_arm)) for of_arm in found.seeds)
    cells = _judged_cells(item, found, (Cell.count(found.queries), Cell(" v ".join(seeds))))
    return Cell(item.name), _value(item, found.value), *cells, _confidence(item, found, item.label)


def _dataset_row(item: Judgment, found: Finding, names: Mapping[str, Cell]) -> Row:
    name = _datasets(item, found)
    terms, freedom = found.estimate.terms, found.estimate.degrees_of_freedom
    numbers = (math.nan,) * 4 if terms is None else (100 * found.estimate.standard_error, freedom, *terms.shares)
    return (
        names.get(name, Cell(name)),
        Cell.count(found.queries),
        *_means(found),
        Cell.signed(100 * found.delta if isinstance(item.gate, InterferenceGate) else None),
        _value(item, found.value, found.std),
        *_judged_cells(item, found),
        *(Cell(" ".join(map(_seed, seeds))) for seeds in found.seeds),
        Cell("yes" if found.paired else "no"),
        Cell(item.gate.metric),
        Cell(ABSENT if terms is None else found.holds_for),
        *map(Cell.number, numbers),
        *(_confidence(item, found, label) for label in _LABELS),
    )


def _seed_rows(item: Judgment, found: Finding) -> Iterator[Row]:
    scores = [dict(zip(seeds, runs, strict=False)) for seeds, runs in zip(found.seeds, found.runs, strict=True)]
    seeds = sorted({*scores[0], *scores[1]}, key=lambda seed: -1 if seed is None else seed)
    for seed in seeds:
        of_runs = (Cell.mean([100 * of_arm[seed]] if seed in of_arm else []) for of_arm in scores)
        value = math.nan if seed is None else found.by_seed.get(seed, math.nan)
        yield Cell(_seed(seed)), *of_runs, _value(item, value)
    if len(seeds) > 1:
        mean = fmean(found.by_seed.values()) if found.by_seed else math.nan
        yield Cell("mean"), *_means(found), _value(item, mean, found.std)


def _seed(seed: Seed) -> str:
    return "none" if seed is None else str(seed)


def _stability_rows(item: Judgment) -> Iterator[Row]:
    rows: list[tuple[str, Finding | Without]] = [("nothing", item.found)]
    rows += [(without.left_out, without) for without in item.stability.rows]
    for left_out, found in rows if len(rows) > 1 else ():
        word = finding_word(item.gate, found.label).lower()
        yield Cell(left_out), _value(item, found.value), Cell(region(item.gate, found)), Cell(word.capitalize())


def _power_row(name: str, plan: PowerPlan) -> Row:
    decides = (plan.decides, plan.decides_in_fast_tier, plan.decides_with_any_queries, plan.decides_with_any_seeds)
    needed = [Cell("never") if n is None else Cell.count(n) for n in (plan.seeds, plan.queries)]
    needed.append(Cell("never" if plan.grid is None else _size(plan.grid)))
    return (
        Cell(name),
        Cell(_size(plan.at_hand)),
        *([Cell("settled")] * 3 if plan.settled else needed),
        *(Cell(points(distance), value=100 * distance) for distance in decides),
    )


def _size(size: tuple[int, int]) -> str:
    seeds, queries = size
    return f"{seeds:,} x {queries:,}" if seeds else f"{queries:,} queries"
