"""Paired comparisons over queries: averages over seeds, and single seeds, each with its own correction."""

from __future__ import annotations

from collections.abc import Sequence

from unimoe.analysis.loading import Results
from unimoe.analysis.significance import Comparison
from unimoe.analysis.summaries.arms import caveat_notes, count_cell, mean_cell, signed_cell
from unimoe.analysis.summaries.symbols import averages
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table

_NUMBERS = ("Delta", "Low", "High", "p", "Holm", "d", "W/T/L")
_CSV_ONLY = (
    *("Metric", "System mean", "Baseline mean", "Relative (%)", "Bootstrap low", "Bootstrap high"),
    *("p t-test", "p Benjamini-Hochberg", "p max-T", "Superiority"),
)


def significance_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Paired comparisons over queries, per-query scores averaged over seeds; differences in points (score x 100).

    An arm with one seed stands here with that one.
    """
    rows = tuple(averages(comparisons))
    note = "Per-query scores are averaged over seeds first."
    return _table("significance", "Paired comparisons", results, rows, "Seeds", note)


def significance_by_seed_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """The same for single seeds, of arms that have several."""
    averaged = set(averages(comparisons))
    rows = tuple(c for c in comparisons if c not in averaged)
    note = "Single seeds are a family of their own in Holm's correction."
    return _table("significance_by_seed", "Paired comparisons by seed", results, rows, "Seed", note)


def _table(
    name: str, title: str, results: Results, comparisons: Sequence[Comparison], seed_column: str, note: str
) -> Table:
    level = comparisons[0].level if comparisons else 0.95
    groups: dict[str, list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault(f"{c.key} ({c.queries:,} queries)", []).append(c)
    return Table(
        name=name,
        title=title,
        caption=(
            f"{title} over queries: difference (delta) on the main metric in points (score × 100), with "
            f"{100 * level:g} % simultaneous intervals"
        ),
        columns=("Comparison", seed_column, *_NUMBERS, *_CSV_ONLY),
        csv_only=frozenset(_CSV_ONLY),
        groups=tuple(
            RowGroup(heading, tuple(_row(c, single=seed_column == "Seed") for c in rows))
            for heading, rows in groups.items()
        ),
        notes=(
            f"{note} Low, high: max-T intervals, which hold together for the comparisons of a family on one dataset. "
            "p: two-sided sign-flip permutation. Holm: p corrected within its family over all datasets. d: mean over "
            "standard deviation of paired differences. W/T/L: queries won, tied, lost.",
            "These tests ask about other queries and take the trained seeds as they are.",
            *caveat_notes(results),
        ),
    )


def _row(c: Comparison, single: bool) -> tuple[Cell, ...]:
    return (
        Cell(f"{c.system} − {c.baseline}"),
        Cell(str(c.seed)) if single else count_cell(len(c.seeds)),
        *(signed_cell(100 * x) for x in (c.delta, c.simultaneous_low, c.simultaneous_high)),
        _p_cell(c.p),
        _p_cell(c.p_holm),
        Cell(ABSENT) if c.effect is None else signed_cell(c.effect),
        Cell(f"{c.wins:,}/{c.ties:,}/{c.losses:,}"),
        Cell(c.metric),
        *(mean_cell([100 * x]) for x in (c.system_mean, c.baseline_mean)),
        Cell(ABSENT) if c.relative is None else signed_cell(100 * c.relative),
        *(signed_cell(100 * x) for x in (c.low, c.high)),
        *map(_p_cell, (c.p_t, c.p_bh, c.p_max_t)),
        Cell(f"{c.superiority:.3f}", value=c.superiority),
    )


def _p_cell(p: float) -> Cell:
    return Cell(f"{p:.4f}" if p >= 0.00005 else "<0.0001", value=p)
