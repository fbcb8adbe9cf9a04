"""Paired comparisons of arms: as tables, as letters behind scores, before and after, and as cells of a study's table.

The interval and the p of a difference are one statement of the model of variance: they hold for other queries and, of
arms with several seeds, for other seeds. All differences that one table shows are one family.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from unimoe.analysis.arms import arm_order
from unimoe.analysis.comparisons import ALPHA, Comparison, before_after
from unimoe.analysis.statistics.estimates import LEVEL, TWO_SEEDS
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, caveat_notes, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.console import stderr, stdout
from unimoe.core.grouping import gathered
from unimoe.results.folder import Results, load_all_results

Asked = TypeVar("Asked", bound=Hashable)

_COLUMNS: dict[str, Callable[[Comparison], Cell]] = {
    "Comparison": lambda c: Cell(f"{c.system} − {c.baseline}"),
    "Metric": lambda c: Cell(c.metric),
    "Before": lambda c: Cell.mean([100 * c.means[1]]),
    "After": lambda c: Cell.mean([100 * c.means[0]]),
    "Holds for other": lambda c: Cell(ABSENT if c.p is None else c.holds_for),
    "Delta": lambda c: Cell.signed(100 * c.delta),
    "Low": lambda c: Cell.signed(c.interval and 100 * c.interval[0], keep_side=True),
    "High": lambda c: Cell.signed(c.interval and 100 * c.interval[1], keep_side=True),
    "p": lambda c: Cell.p(c.p),
    "Holm": lambda c: Cell.p(c.p_holm),
    "d": lambda c: Cell.signed(c.effect),
    "W/T/L": lambda c: Cell(f"{c.wins:,}/{c.ties:,}/{c.losses:,}"),
    "System mean": lambda c: Cell.mean([100 * c.means[0]]),
    "Baseline mean": lambda c: Cell.mean([100 * c.means[1]]),
    "Relative (%)": lambda c: Cell.signed(None if c.relative is None else 100 * c.relative),
    "Superiority": lambda c: Cell.number(c.superiority, ".3f"),
    "Check: bootstrap low": lambda c: Cell.signed(100 * c.check_interval[0]),
    "Check: bootstrap high": lambda c: Cell.signed(100 * c.check_interval[1]),
    "Check: sign-flip p": lambda c: Cell.p(c.check_p),
    "Degrees of freedom": lambda c: Cell.number(c.difference.degrees_of_freedom if c.difference.terms else math.nan),
    "Standard error": lambda c: Cell.number(100 * c.difference.standard_error if c.difference.terms else math.nan),
}
_TEST = ("Delta", "Low", "High", "p", "Holm")
_CHECKS = tuple(_COLUMNS)[-5:]


@dataclass(frozen=True)
class Marks:
    """Which arms beat which, as letters; all is empty where nothing was compared."""

    letters: Mapping[str, str]  # of each arm, the same in every table of one set of results
    beaten: Mapping[tuple[str, str], str]  # letters of the arms that one beats significantly, by task/dataset and arm;
    # in brackets where one of the two has a single run, which the test takes as it is
    notes: tuple[str, ...]  # how that was tested, and what it holds for

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
    won: dict[tuple[str, str], dict[int, bool]] = {}
    for c in comparisons:
        if c.significant and c.metric == results.measured(c.key)[0].main_metric:
            better, worse = (c.system, c.baseline) if c.delta > 0 else (c.baseline, c.system)
            won.setdefault((c.key, better), {})[arms.index(worse)] = bool(c.alone)
    between = "" if len(arms) <= 26 else ","
    beaten = {place: _symbols(worse, between) for place, worse in won.items()}
    return Marks(letters, beaten, tuple(_mark_notes(comparisons, beaten.values())))


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


def print_before_after(
    output_dir: Path, before: str, after: Sequence[str], keys: Sequence[str], allow: Collection[str] = ()
) -> None:
    """Print how arms differ from an earlier one on ``task/dataset`` keys, and name on stderr the keys that it lacks."""
    after = [arm for arm in after if arm != before]
    if not keys or not after:
        return
    results = load_all_results(output_dir, allow, only={(arm, key) for arm in (before, *after) for key in keys})
    compared = [key for key in keys if results.measured(key, before)]
    for key in keys:
        if key not in compared:
            stderr.print(f"{key}: no result of {before} to compare with", style="yellow", soft_wrap=True)
    if compared:
        stdout.print()
        stdout.print(before_after_table(results, before_after(results, before, after, keys=compared)).to_rich())


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


def _symbols(worse: Mapping[int, bool], between: str) -> str:
    """Return the letters of the arms at some places, those that take a single run as it is in brackets behind."""
    plain, alone = (between.join(_letter(i) for i in sorted(worse) if worse[i] == of) for of in (False, True))
    return f"{plain}({alone})" if alone else plain


def _mark_notes(comparisons: Sequence[Comparison], beaten: Collection[str]) -> Iterator[str]:
    test = (
        f"two-sided t from the model of seeds and queries, Holm-corrected over the {_tested(comparisons)} of the table "
        f"of paired comparisons, level {ALPHA:g}"
    )
    if beaten:
        yield f"Raised letters name the arms that this one beats significantly on the main metric ({test})."
    if any("(" in letters for letters in beaten):
        yield (
            "Letters in brackets hold for other queries alone: one of the two systems has a single run, and where that "
            "is a training, another seed may well say otherwise."
        )
    if not beaten and any(c.p is not None for c in comparisons):
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
        for arm in (c.system, c.baseline):
            keys.setdefault(arm, {})[c.key] = arm in c.alone
    places = {arm: tuple(key for key, alone in single.items() if alone) for arm, single in keys.items()}
    everywhere = {arm for arm, single in keys.items() if all(single.values())}
    alike = gathered(("" if arm in everywhere else f" on {', '.join(on)}", arm) for arm, on in places.items() if on)
    for where, arms in alike.items():
        rows = "its rows take that run as it is" if len(arms) == 1 else "their rows take these runs as they are"
        yield f"One run of {', '.join(arms)}{where}: {rows}."
    two = (a for c in comparisons for a, seeds in zip((c.system, c.baseline), c.seeds, strict=True) if len(seeds) == 2)
    if named := ", ".join(dict.fromkeys(two)):
        yield f"Two seeds of {named}: {TWO_SEEDS}."
    unpaired = gathered((f"{c.system} − {c.baseline} on {c.key}", run) for c in comparisons for run in c.left_out)
    for row, runs in unpaired.items():
        yield f"Left out of {row}, since seeds pair and the other arm lacks the seed: {', '.join(dict.fromkeys(runs))}."
    untested = gathered((c.unfit, f"{c.system} − {c.baseline} on {c.key}") for c in comparisons if c.p is None)
    for reason, names in untested.items():
        yield f"No test of {', '.join(dict.fromkeys(names))}: {reason}."


def _letter(place: int) -> str:
    """Return a to z, then aa, ab and so on."""
    before, own = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("a") + own)
