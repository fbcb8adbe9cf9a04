"""Paired comparisons of arms as tables, and as letters behind scores: which arms each one beats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import ALPHA, Comparison
from unimoe.analysis.loading import Results
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.tables.cells import (
    ABSENT,
    Cell,
    Row,
    caveat_notes,
    gathered,
    mean_cell,
    number_cell,
    p_cell,
    row_groups,
    signed_cell,
)
from unimoe.analysis.tables.table import Table

_COLUMNS: dict[str, Callable[[Comparison], Cell]] = {
    "Comparison": lambda c: Cell(f"{c.system} − {c.baseline}"),
    "Metric": lambda c: Cell(c.metric),
    "Before": lambda c: mean_cell([100 * c.means[1]]),
    "After": lambda c: mean_cell([100 * c.means[0]]),
    "Holds for other": lambda c: Cell(ABSENT if c.p is None else c.holds_for),
    "Delta": lambda c: signed_cell(100 * c.delta),
    "Low": lambda c: signed_cell(c.interval and 100 * c.interval[0], keep_side=True),
    "High": lambda c: signed_cell(c.interval and 100 * c.interval[1], keep_side=True),
    "p": lambda c: p_cell(c.p),
    "Holm": lambda c: p_cell(c.p_holm),
    "d": lambda c: signed_cell(c.effect),
    "W/T/L": lambda c: Cell(f"{c.wins:,}/{c.ties:,}/{c.losses:,}"),
    "System mean": lambda c: mean_cell([100 * c.means[0]]),
    "Baseline mean": lambda c: mean_cell([100 * c.means[1]]),
    "Relative (%)": lambda c: signed_cell(None if c.relative is None else 100 * c.relative),
    "Superiority": lambda c: number_cell(c.superiority, ".3f"),
    "Check: bootstrap low": lambda c: signed_cell(100 * c.check_interval[0]),
    "Check: bootstrap high": lambda c: signed_cell(100 * c.check_interval[1]),
    "Check: sign-flip p": lambda c: p_cell(c.check_p),
    "Degrees of freedom": lambda c: number_cell(c.difference.degrees_of_freedom if c.difference.terms else math.nan),
    "Standard error": lambda c: number_cell(100 * c.difference.standard_error if c.difference.terms else math.nan),
}
_TEST = ("Delta", "Low", "High", "p", "Holm")
_CHECKS = tuple(_COLUMNS)[-5:]


@dataclass(frozen=True)
class Marks:
    """Which arms beat which, as letters; all is empty where nothing was compared.

    Attributes:
        letters: of each arm, the same in every table of one set of results.
        beaten: the letters of the arms that one beats significantly, by ``task/dataset`` and arm.
        notes: how that was tested, and what it holds for.
    """

    letters: Mapping[str, str]
    beaten: Mapping[tuple[str, str], str]
    notes: tuple[str, ...]

    def behind(self, key: str, arm: str) -> str:
        """Return what is raised behind the score of an arm."""
        return self.beaten.get((key, arm), "")


def significance_marks(results: Results, comparisons: Sequence[Comparison]) -> Marks:
    """Return a letter for each arm, and for each score on a main metric the letters of the arms it beats significantly.

    A comparison of two arms is read both ways: a system that is significantly worse is beaten by its baseline.
    """
    if not comparisons:
        return Marks({}, {}, ())
    arms = sorted({result.config_name for result in results.results}, key=arm_order)
    letters = {arm: _letter(place) for place, arm in enumerate(arms)}
    won: dict[tuple[str, str], set[int]] = {}
    for c in comparisons:
        if c.significant and c.metric == results.measured(c.key)[0].main_metric:
            better, worse = (c.system, c.baseline) if c.delta > 0 else (c.baseline, c.system)
            won.setdefault((c.key, better), set()).add(arms.index(worse))
    between = "" if len(arms) <= 26 else ","
    beaten = {place: between.join(map(_letter, sorted(worse))) for place, worse in won.items()}
    return Marks(letters, beaten, tuple(_mark_notes(comparisons, any_significant=bool(beaten))))


def comparisons_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each paired comparison of one family, differences in points (score x 100)."""
    csv_only = ("Metric", "System mean", "Baseline mean", "Relative (%)", "Superiority", *_CHECKS)
    columns = ("Comparison", "Holds for other", *_TEST, "d", "W/T/L", *csv_only)
    return Table(
        name="significance",
        title="Paired comparisons",
        caption=(
            "Paired comparisons: difference (delta) in points (score × 100) with its "
            f"{100 * LEVEL:g} % interval, p, and p corrected by Holm"
        ),
        columns=columns,
        csv_only=frozenset(csv_only),
        groups=row_groups((f"{c.key}, {c.metric} ({c.queries:,} queries)", _row(c, columns)) for c in comparisons),
        notes=(*_notes(comparisons), *caveat_notes(results)),
    )


def before_after_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each metric of a later arm and an earlier one, in points (score x 100)."""
    csv_only = ("Holds for other", "d", *_CHECKS)
    columns = ("Metric", "Before", "After", *_TEST, "W/T/L", *csv_only)
    where = "{0.key}: {0.system} (after) against {0.baseline} (before), {0.queries:,} queries"
    return Table(
        name="before_after",
        title="Before and after",
        caption=f"Scores before and after × 100, and their difference with its {100 * LEVEL:g} % interval",
        columns=columns,
        csv_only=frozenset(csv_only),
        groups=row_groups((where.format(c), _row(c, columns)) for c in comparisons),
        notes=(*_notes(comparisons), *caveat_notes(results)),
    )


def _row(c: Comparison, columns: Sequence[str]) -> Row:
    return tuple(_COLUMNS[column](c) for column in columns)


def _notes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield (
        f"p is below {ALPHA:g} exactly where the interval excludes 0, Holm's correction is over the "
        f"{_tested(comparisons)} of this table, and the checks in the CSV file (bootstrap and sign flips over queries) "
        "take the runs as they are."
    )
    yield (
        "p: two-sided t from the model of seeds and queries. d: mean over standard deviation of the differences by "
        "query. W/T/L: queries won, tied and lost."
    )
    yield from _limits(comparisons)


def _mark_notes(comparisons: Sequence[Comparison], *, any_significant: bool) -> Iterator[str]:
    test = (
        f"two-sided t from the model of seeds and queries, Holm-corrected over the {_tested(comparisons)} of the table "
        f"of paired comparisons, level {ALPHA:g}"
    )
    if any_significant:
        yield f"Raised letters name the arms that this one beats significantly on the main metric ({test})."
    elif any(c.p is not None for c in comparisons):
        yield f"No arm beats another significantly ({test})."
    yield from _limits(comparisons)


def _tested(comparisons: Sequence[Comparison]) -> str:
    number = sum(c.p is not None for c in comparisons)
    if number < len(comparisons):
        return f"{number:,} of {len(comparisons):,} rows that have a test"
    return f"{number:,} row{'s' if number != 1 else ''}"


def _limits(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield what rows hold for beyond the data, which arms have one run, and why rows have no test."""
    held = Counter(c.holds_for for c in comparisons if c.p is not None)
    if len(held) == 1:
        yield f"All rows hold for other {next(iter(held))}."
    elif held:
        counted = (f"other {what} ({number:,} row{'s' if number > 1 else ''})" for what, number in held.items())
        yield f"What rows hold for: {'; '.join(counted)}."
    keys: dict[str, dict[str, bool]] = {}
    for c in comparisons:
        for arm, seeds in zip((c.system, c.baseline), c.seeds, strict=True):
            keys.setdefault(arm, {})[c.key] = len(seeds) == 1 and seeds[0] is not None
    places = {arm: tuple(key for key, alone in single.items() if alone) for arm, single in keys.items()}
    everywhere = {arm for arm, single in keys.items() if all(single.values())}
    alike = gathered(("" if arm in everywhere else f" on {', '.join(on)}", arm) for arm, on in places.items() if on)
    for where, arms in alike.items():
        rows = "its rows take that run as it is" if len(arms) == 1 else "their rows take these runs as they are"
        yield f"One run of {', '.join(arms)}{where}: {rows}."
    untested = gathered((c.unfit, f"{c.system} − {c.baseline} on {c.key}") for c in comparisons if c.p is None)
    for reason, names in untested.items():
        yield f"No test of {', '.join(dict.fromkeys(names))}: {reason}."


def _letter(place: int) -> str:
    """Return a to z, then aa, ab and so on."""
    before, own = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("a") + own)
