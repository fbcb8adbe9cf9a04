"""Gates as tables: labels, datasets, runs, what one seed or dataset less would change, and what would settle them.

Every number, cutoff and label comes from a judgment; these tables judge nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from unimoe.analysis.gates import wording
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.findings import Finding, Without
from unimoe.analysis.gates.judging import Judgment, Outcomes, Refusal
from unimoe.analysis.gates.output import family
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.statistics.power import FAST_TIER_QUERIES, MOST_QUERIES, MOST_SEEDS, POWER
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, metric_name, name_cells, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered

_VALUE = "TIR in percent or difference in points"
_INTERVAL = f"{100 * LEVEL:g} % interval"
_DATASETS_NAMED = 4  # datasets that a note names
_READING = (
    "Estimate: where the value lies against the gate's cutoffs, however uncertain it is. Finding: what holds the "
    "confidence the gate asks for; UNDECIDED where nothing does. Bound: what the finding rests on, the end of "
    "the one-sided interval at the gate's confidence; Low and High are the ends of the two-sided one."
)
_OF_GATES = ("Gate", "Value", "Low", "High", "Queries", "Seeds", "Estimate", "Finding", "Bound", "Confidence")
_OF_DATASETS = ("Dataset", "Queries", "1st", "2nd", "Delta", "TIR", "Low", "High", "Estimate", "Finding", "Bound")
_DETAILS = (
    *("1st seeds", "2nd seeds", "Paired", "Metric", "Holds for", "Standard error", "Degrees of freedom", "Seed share"),
    *("Query share", "Confidence PASS", "Confidence MARGINAL", "Confidence FAIL"),
)


def gates_table(outcomes: Outcomes) -> Table:
    """Return a row per gate: value, interval and label; gates that cannot be judged are among the notes."""
    judged = [outcome for outcome in outcomes if isinstance(outcome, Judgment)]
    return Table(
        name="gates",
        title="Gates",
        caption=f"Gates: {_VALUE}, with its {_INTERVAL}{_one_claim(judged)}",
        columns=_OF_GATES,
        groups=row_groups(("", _row(item, item.found, _OF_GATES)) for item in judged),
        notes=(
            *_holding(judged, [(item, item.found) for item in judged]),
            *(f"{item.name} was not judged: {item.error}" for item in outcomes if isinstance(item, Refusal)),
            _READING,
            *_about(judged),
        ),
    )


def datasets_table(judgments: Sequence[Judgment]) -> Table:
    """Return a row for each dataset of each judgment, and one for all of its datasets where there are several."""
    names, cut = name_cells(dataset for item in judgments for dataset in item.gate.datasets)
    first, second, value = wording.column_heads(judgments)
    heads = {"1st": first, "2nd": second, "TIR": value, "1st seeds": f"{first} seeds", "2nd seeds": f"{second} seeds"}
    columns = (*_OF_DATASETS, *_DETAILS)
    return Table(
        name="datasets",
        title="Gates by dataset",
        caption=(
            f"Gates by dataset: mean scores × 100, {_VALUE} ± standard deviation over seeds, with its {_INTERVAL}"
            f"{_one_claim(judgments)}"
        ),
        columns=tuple(heads.get(column, column) for column in columns),
        csv_only=frozenset(heads.get(column, column) for column in _DETAILS),
        groups=row_groups((_heading(item), _row(item, found, columns, names)) for item, found in _findings(judgments)),
        notes=(
            "Delta: joint minus specialist, in points; TIR is the share of the specialist's score that is lost. A "
            "standard deviation is over a system's seeds, that of the value over seeds that both systems have.",
            *_holding(judgments, [(item, found) for item in judgments for found in item.rows]),
            *cut,
            _READING,
            *_about(judgments),
        ),
    )


def seeds_table(judgments: Sequence[Judgment]) -> Table:
    """Return the scores of every run of each judgment, and its value by the seeds that both arms have."""
    rows: list[tuple[str, Row]] = []
    for item, found in _findings(judgments):
        heading = f"{_heading(item)}, {_datasets(item, found)} ({found.queries:,} queries)"
        of_arms = [dict(zip(seeds, runs, strict=False)) for seeds, runs in zip(found.seeds, found.runs, strict=True)]
        seeds = sorted({*of_arms[0], *of_arms[1]}, key=lambda seed: -1 if seed is None else seed)
        for seed in seeds:
            scores = (Cell.mean([100 * runs[seed]] if seed in runs else []) for runs in of_arms)
            value = math.nan if seed is None else found.by_seed.get(seed, math.nan)
            rows.append((heading, (Cell("none" if seed is None else str(seed)), *scores, _value(item, value))))
        if len(seeds) > 1:
            mean = fmean(found.by_seed.values()) if found.by_seed else math.nan
            rows.append((heading, (Cell("mean"), *_means(found), _value(item, mean, found.std))))
    return Table(
        name="seeds",
        title="Gates by seed",
        caption=f"Gates by seed: mean scores × 100 of every run, {_VALUE}",
        columns=("Seed", *wording.column_heads(judgments)),
        groups=row_groups(rows),
        notes=(
            "A description: seeds that two systems have in common are a pair only where the experiment declares it. "
            "The mean of the values by seed is not the gate's own value, which is that of the mean scores.",
            *_about(judgments),
        ),
    )


def stability_table(judgments: Sequence[Judgment]) -> Table:
    """Return each gate with everything, and without each seed and each dataset."""
    rows: list[tuple[str, Row]] = []
    for item in judgments:
        tried: list[Finding | Without] = [item.found, *item.stability.rows]
        for found in tried if item.stability.rows else ():
            name = found.left_out if isinstance(found, Without) else "nothing"
            label = wording.finding_word(item.gate, found.label).capitalize()
            cells = (_value(item, found.value), Cell(wording.region(item.gate, found)), Cell(label))
            rows.append((item.name, (Cell(name), *cells)))
    return Table(
        name="stability",
        title="Stability",
        caption=(
            f"Gates without one seed or one dataset: {_VALUE}, judged with the interval of the whole"
            f"{_one_claim(judgments)}"
        ),
        columns=("Left out", "Value", "Estimate", "Finding"),
        groups=row_groups(rows),
        notes=(*(f"{item.name}: {item.stability.sentence}." for item in judgments), *_about(judgments)),
    )


def power_table(judgments: Sequence[Judgment]) -> Table:
    """Return what would settle each gate, and what data of some sizes can decide at all."""
    rows: list[tuple[str, Row]] = []
    for item, plan in ((item, item.plan) for item in judgments):
        if plan is None:
            continue
        present, mix = (
            f"{seeds:,} x {queries:,}" if seeds else f"{queries:,} queries"
            for seeds, queries in (plan.at_hand, plan.grid or plan.at_hand)
        )
        needed = [Cell("never") if n is None else Cell.count(n) for n in (plan.seeds, plan.queries)]
        needed.append(Cell(mix if plan.grid else "never"))
        decides = (plan.decides, plan.decides_in_fast_tier, plan.decides_with_any_queries, plan.decides_with_any_seeds)
        distances = (Cell(wording.points(distance), value=100 * distance) for distance in decides)
        settles = [Cell("settled")] * 3 if plan.settled else needed
        rows.append(("", (Cell(item.name), Cell(present), *settles, *distances)))
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
        groups=row_groups(rows),
        notes=(
            f"Sizes are seeds x queries. New data of a planned size settles the gate with probability {POWER:g} if the "
            "observed value is the true one; the plan rests on estimated variances and is no promise.",
            "Cheapest mix: the seeds and queries that settle it with the fewest scores to compute.",
            f"Never: not with up to {MOST_SEEDS:,} seeds or {MOST_QUERIES:,} queries. Fast tier: "
            f"{FAST_TIER_QUERIES:,} queries (SciFact, NFCorpus, FiQA2018) with the present seeds, if they vary as "
            "the present queries do.",
            *_about(judgments),
        ),
    )


def _row(item: Judgment, found: Finding, columns: Sequence[str], names: Mapping[str, Cell] | None = None) -> Row:
    """Return some columns of what a gate found on one dataset or all of them."""
    gate, estimate, terms, dataset = item.gate, found.estimate, found.estimate.terms, _datasets(item, found)
    low, high = estimate.interval or (math.nan, math.nan)
    seed_share, query_share = terms.shares if terms else (None, None)
    bound = wording.bound_text(gate, found, at_least="≥", at_most="≤").removesuffix(f" {wording.unit(gate)}")
    number_of_seeds = dict.fromkeys(ABSENT if seeds == (None,) else str(len(seeds)) for seeds in found.seeds)
    confidence = {
        label: Cell(
            wording.confidence_text(found, label, gate.label_confidence) or ABSENT, value=found.confidence.get(label)
        )
        for label in ("PASS", "MARGINAL", "FAIL", "INCONCLUSIVE")
    }
    row = {
        "Gate": Cell(item.name),
        "Dataset": (names or {}).get(dataset, Cell(dataset)),
        "Metric": Cell(gate.metric),
        "Queries": Cell.count(found.queries),
        "Seeds": Cell(" v ".join(number_of_seeds)),
        "Paired": Cell("yes" if found.paired else "no"),
        "Delta": Cell.signed(100 * found.delta if isinstance(gate, InterferenceGate) else None),
        "Value": _value(item, found.value),
        "TIR": _value(item, found.value, found.std),
        "Low": _value(item, low),
        "High": _value(item, high),
        "Holds for": Cell(found.holds_for if terms else ABSENT),
        "Standard error": Cell.number(100 * estimate.standard_error if terms else None),
        "Degrees of freedom": Cell.number(estimate.degrees_of_freedom if terms else None),
        "Seed share": Cell.number(seed_share),
        "Query share": Cell.number(query_share),
        "Estimate": Cell(wording.region(gate, found)),
        "Finding": Cell(
            f"{'advisory ' if item.advisory else ''}{wording.finding_word(gate, found.label)}".capitalize()
        ),
        "Bound": Cell(bound or ABSENT),
        "Confidence": confidence[found.label],
        **{f"Confidence {label}": cell for label, cell in confidence.items()},
    }
    for place, mean, seeds in zip(("1st", "2nd"), _means(found), found.seeds, strict=True):
        of_arm = ("none" if seed is None else str(seed) for seed in seeds)
        row |= {place: mean, f"{place} seeds": Cell(" ".join(of_arm))}
    return tuple(row[column] for column in columns)


def _holding(judgments: Sequence[Judgment], findings: Sequence[tuple[Judgment, Finding]]) -> Iterator[str]:
    """Yield what several gates do not correct for, and what intervals hold for; named only where they differ."""
    if several := family(len(judgments)):
        yield several
    certain = ((item, found) for item, found in findings if found.estimate.interval)
    names = gathered((found.holds_for, f"{item.name} on {_datasets(item, found)}") for item, found in certain)
    for holds_for, of_gates in names.items():
        where = f" of {', '.join(of_gates)}" if len(names) > 1 else ""
        yield f"Intervals{where} hold for {holds_for}."


def _about(judgments: Sequence[Judgment]) -> tuple[str, ...]:
    """Return the notes that all tables of gates share.

    They say what each gate asks, which ones a file registers, and what a reader must know to trust a label.
    """
    claims: list[str] = []
    remarks: list[tuple[str, str]] = []  # what follows the name, and the name
    for item in judgments:
        gate, few = item.gate, len(item.gate.datasets) <= _DATASETS_NAMED
        of = f"TIR of {gate.against}, " if isinstance(gate, InterferenceGate) else ""
        where = ", ".join(gate.datasets) if few else f"{len(gate.datasets)} datasets"
        claims.append(f"{item.name}: {of}{wording.asked(gate)}; {gate.task}, {metric_name(item.metric)} on {where}.")
        said = [f": advisory, {reason}" for reason in item.advisory]
        said += [f" on {_datasets(item, part)}: INCONCLUSIVE, {part.why}." for _, part in _findings([item]) if part.why]
        if item.found.paired:
            said.append(": seeds pair, as the experiment declares.")
        if caveat := wording.unlearnt(item):
            said.append(f": {caveat}")
        said += [f": {note}." for note in (wording.other_way(item), *item.notes) if note]
        remarks += [(remark, item.name) for remark in said]
    registered = gathered(("yes" if i.registered else "no: the default cutoffs", i.name) for i in judgments)
    return (
        *claims,
        *(f"Registered: {word} ({', '.join(names)})." for word, names in registered.items()),
        *(f"{', '.join(names)}{remark}" for remark, names in gathered(remarks).items()),
    )


def _findings(judgments: Iterable[Judgment]) -> Iterator[tuple[Judgment, Finding]]:
    """Yield what each gate found on each dataset, and on all of them where there are several."""
    return ((item, found) for item in judgments for found in (*item.parts, item.found))


def _datasets(item: Judgment, found: Finding) -> str:
    """Return the name of a dataset, or by which mean all of them are one value."""
    if len(item.gate.datasets) == 1 or found is not item.found:
        return found.datasets[0]
    return f"all ({wording.WAYS[item.gate.across] if isinstance(item.gate, InterferenceGate) else 'mean'})"


def _heading(item: Judgment) -> str:
    return f"{item.name}: {item.gate.against}, {metric_name(item.gate.metric)}"


def _one_claim(judgments: Sequence[Judgment]) -> str:
    """Return what all gates ask, for a caption; empty where they ask several things, which the notes say."""
    claims = {wording.asked(item.gate) for item in judgments}
    return f" ({claims.pop()})" if len(claims) == 1 else ""


def _value(item: Judgment, value: float, std: float | None = None) -> Cell:
    if not math.isfinite(value):
        return Cell(ABSENT)
    return Cell(wording.number(item.gate, value), value=100 * value).with_spread(std and 100 * std)


def _means(found: Finding) -> list[Cell]:
    arms = zip(found.means, found.runs, strict=True)
    return [Cell.mean([100 * run for run in runs or (mean,)]) for mean, runs in arms]
