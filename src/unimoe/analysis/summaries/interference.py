"""Task interference: one line per dataset, and by seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unimoe.analysis.crossed import LEVEL
from unimoe.analysis.interference import Interference, InterferenceMetrics, NotComputable
from unimoe.analysis.loading import Pair, Results
from unimoe.analysis.summaries.arms import caveat_notes, count_cell, mean_cell, signed_cell
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table


def tir_table(results: Results, metrics: InterferenceMetrics) -> Table:
    """TIR of every pair of arms, a row per dataset: scores, difference, interval over seeds and queries, labels."""
    of_pair: dict[Pair, list[Interference]] = {}
    for item in metrics.measured:
        of_pair.setdefault(item.pair, []).append(item)
    return Table(
        name="tir",
        title="Task interference by dataset",
        caption=(
            "Task interference: TIR = (specialist − joint) / specialist on the main metric, mean ± standard deviation "
            f"over seeds, and the {100 * LEVEL:g} % interval over seeds and queries; scores × 100"
        ),
        columns=(
            *("Dataset", "Queries", "Seeds", "Specialist", "Joint", "Delta", "TIR (%)", "Low", "High"),
            *("Rule", "Verdict", "Metric", "Standard error", "Degrees of freedom"),
        ),
        csv_only=frozenset({"Seeds", "Metric", "Standard error", "Degrees of freedom"}),
        groups=tuple(
            RowGroup(
                f"{_arms(pair)} ({_seed_counts(items)})",
                tuple(map(_tir_row, items)),
            )
            for pair, items in of_pair.items()
        ),
        notes=(
            "Delta: joint minus specialist. Low, high: in percent, around the ratio of means.",
            "Rule: where the mean stands against the cutoffs. Verdict: the label that holds .90 confidence when other "
            "seeds and other queries are considered. PASS: interference is confirmed, bad news for the joint model.",
            *_warnings(metrics),
            *caveat_notes(results),
        ),
    )


def interference_table(results: Results, metrics: InterferenceMetrics) -> Table:
    """TIR by seed, and its mean, for every pair of arms and dataset."""
    return Table(
        name="interference",
        title="Task interference by seed",
        caption="Task interference by seed: TIR = (specialist − joint) / specialist, scores on the main metric × 100",
        columns=("Seed", "Specialist", "Joint", "Delta", "TIR (%)"),
        groups=tuple(
            RowGroup(f"{_heading(item)} ({item.queries:,} queries)", tuple(_seed_rows(item)))
            for item in metrics.measured
        ),
        notes=(
            "Delta: joint minus specialist. Seeds are the training seeds both arms have; equal numbers do not make two "
            "training runs a pair.",
            *_warnings(metrics),
            *caveat_notes(results),
        ),
    )


def tir_without_queries_table(results: Results, metrics: InterferenceMetrics) -> Table:
    """TIR of every pair of arms on MTEB's tasks without queries, a row per task: descriptive, nothing is paired."""
    rows: dict[Pair, list[tuple[Cell, ...]]] = {}
    for item in metrics.without_queries:
        if isinstance(item, Interference):
            task_type = results.measured(f"{item.pair.task}/{item.dataset}")[0].task_type or ABSENT
            rows.setdefault(item.pair, []).append(_unpaired_row(item, task_type))
    return Table(
        name="tir_without_queries",
        title="TIR on tasks without queries",
        caption=(
            "Task interference on tasks without queries: TIR on the main score, mean ± standard deviation over seeds, "
            "without interval or test; scores × 100"
        ),
        columns=("Task", "Type", "Metric", "Seeds", "Specialist", "Joint", "Delta", "TIR (%)"),
        groups=tuple(RowGroup(_arms(pair), tuple(sorted(of_pair, key=_by_type))) for pair, of_pair in rows.items()),
        notes=(
            "No interval and no test: without queries nothing is paired, and seeds alone say nothing of other data. "
            "These tasks enter no gate, no verdict and no TIR across datasets. Delta: joint minus specialist.",
            *dict.fromkeys(_unpaired_notes(metrics)),
            *caveat_notes(results),
        ),
    )


def _unpaired_row(item: Interference, task_type: str) -> tuple[Cell, ...]:
    specialist, joint, _, tir = (mean_cell(column) for column in _columns(item))
    facts = Cell(item.dataset), Cell(task_type), Cell(item.metric), count_cell(len(item.seeds))
    return (*facts, specialist, joint, signed_cell(100 * item.delta), tir)


def _by_type(row: tuple[Cell, ...]) -> tuple[str, str]:
    return row[1].text, row[0].text


def _unpaired_notes(metrics: InterferenceMetrics) -> Iterator[str]:
    for item in metrics.without_queries:
        if isinstance(item, NotComputable):
            yield f"{_arms(item.pair)}: TIR on {item.dataset} is not computable, {item.reason}"
            continue
        if item.left_out:
            yield f"{_arms(item.pair)}: without a counterpart on {item.dataset}: {', '.join(item.left_out)}"
        yield from (f"{_arms(item.pair)}: {warning}" for warning in item.warnings)


def _tir_row(item: Interference) -> tuple[Cell, ...]:
    specialist, joint, _, tir = (mean_cell(column) for column in _columns(item))
    crossed = item.crossed
    statistics = [Cell(ABSENT)] * 2
    ends = [Cell(ABSENT)] * 2
    if crossed is not None:
        ends = [signed_cell(100 * end) for end in (crossed.low, crossed.high)]
        statistics = [Cell(f"{x:.4g}", value=x) for x in (100 * crossed.standard_error, crossed.degrees_of_freedom)]
    return (
        Cell(item.dataset),
        count_cell(item.queries),
        count_cell(len(item.seeds)),
        specialist,
        joint,
        signed_cell(100 * item.delta),
        tir,
        *ends,
        Cell(item.rule),
        Cell(ABSENT if crossed is None else crossed.label),
        Cell(item.metric),
        *statistics,
    )


def _seed_counts(items: Sequence[Interference]) -> str:
    counts = [len(item.seeds) for item in items]
    fewest, most = min(counts), max(counts)
    numbers = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"{numbers} {'seed' if most == 1 else 'seeds'}"


def _arms(pair: Pair) -> str:
    return f"{pair.task}: {pair.joint} against {pair.specialist}"


def _heading(item: Interference) -> str:
    return f"{item.pair.task}/{item.dataset}: {item.pair.joint} against {item.pair.specialist}"


def _warnings(metrics: InterferenceMetrics) -> Iterator[str]:
    yield from (f"{_heading(item)}: {warning}" for item in metrics.measured for warning in item.warnings)


def _seed_rows(item: Interference) -> Iterator[tuple[Cell, ...]]:
    columns = _columns(item)
    for i, seed in enumerate(item.seeds):
        yield (Cell(str(seed)), *(mean_cell(column[i : i + 1]) for column in columns))
    if len(item.seeds) > 1:
        yield (Cell("mean"), *(mean_cell(column) for column in columns))


def _columns(item: Interference) -> list[list[float]]:
    """Specialist, joint, difference and TIR by seed, × 100."""
    return [[100 * x for x in column] for column in (item.specialist, item.joint, item.deltas, item.per_seed)]
