"""Paired comparisons of systems: as tables, as letters behind scores, before and after, and on judged documents.

The interval and the p of a difference are one statement of the model of variance: they hold for other queries and, of
systems with several seeds, for other seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from unimoe.analysis.comparisons import ALPHA, Comparison, Question, compare_arms, shared_metrics, systems_of
from unimoe.analysis.formats import listed, metric_name
from unimoe.analysis.saved_comparison import NAMES, OF_FAMILY
from unimoe.analysis.standings import standings
from unimoe.analysis.statistics.estimates import LEVEL, TWO_SEEDS, Estimate
from unimoe.analysis.tables.cells import ABSENT, Cell, caveat_notes, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.checks import lines
from unimoe.checks.rankings import APART
from unimoe.core.console import stderr, stdout
from unimoe.core.errors import first_few
from unimoe.core.grouping import gathered
from unimoe.results.folder import Results, load_all_results

_TEST = "two-sided t from the model of seeds and queries"
_ALL = (
    f"All: intervals and p that hold for every two systems of a dataset or average together, at {100 * LEVEL:g} % "
    "(max-t)."
)

_OPEN = (
    "Nobody judged what a system alone found, and it counts as not relevant: a system that no pool knew loses by it."
)
_NO_NEGATIVES = (
    "No difference: the judgments name relevant documents alone, so that judged documents say nothing of the others."
)

COLUMNS: dict[str, Callable[[Comparison], Cell]] = {
    "Comparison": lambda c: Cell(c.name),
    "Metric": lambda c: Cell(metric_name(c.metric), full=c.metric),
    "Before": lambda c: Cell.mean([100 * c.means[1]]),
    "After": lambda c: Cell.mean([100 * c.means[0]]),
    "Holds for other": lambda c: Cell(ABSENT if c.p is None else c.holds_for),
    "Delta": lambda c: Cell.signed(100 * c.delta),
    "Low": lambda c: Cell.signed(c.interval and 100 * c.interval[0], keep_side=True),
    "High": lambda c: Cell.signed(c.interval and 100 * c.interval[1], keep_side=True),
    "p": lambda c: Cell.p(c.p),
    "Corrected": lambda c: Cell.p(c.p_corrected),
    "All: low": lambda c: Cell.signed(_end(c.simultaneous, 0), keep_side=True),
    "All: high": lambda c: Cell.signed(_end(c.simultaneous, 1), keep_side=True),
    "All: p": lambda c: Cell.p(c.p_simultaneous),
    "d": lambda c: Cell.signed(c.effect),
    "W/T/L": lambda c: Cell(f"{c.wins:,}/{c.ties:,}/{c.losses:,}"),
    "System mean": lambda c: Cell.mean([100 * c.means[0]]),
    "Baseline mean": lambda c: Cell.mean([100 * c.means[1]]),
    "Relative (%)": lambda c: Cell.signed(100 * (c.delta / c.means[1]) if c.means[1] else None),
    "Superiority": lambda c: Cell.number(c.superiority, ".3f"),
    "Check: bootstrap low": lambda c: Cell.signed(c.check_interval and 100 * c.check_interval[0]),
    "Check: bootstrap high": lambda c: Cell.signed(c.check_interval and 100 * c.check_interval[1]),
    "Check: sign-flip p": lambda c: Cell.p(c.check_p),
    "Degrees of freedom": lambda c: Cell.number(c.difference.degrees_of_freedom if c.difference.terms else math.nan),
    "Standard error": lambda c: Cell.number(100 * c.difference.standard_error if c.difference.terms else math.nan),
}
PairLayout = Literal["pairs", "before_after", "against"]
"""A table of all pairs by metric, or one for each pair by metric with both scores: of a later and an earlier state of
one system, or of a system and a baseline."""
_OF_TEST = ("Delta", "Low", "High", "p", "Corrected")
_OF_ALL = ("All: low", "All: high", "All: p")
_IN_CSV = ("Metric", *tuple(COLUMNS)[-9:])


class Marks(NamedTuple):
    """Which systems beat which, as letters; all is empty where nothing was compared."""

    letters: Mapping[str, str]  # of each system, the same in every table of one set of results
    beaten: Mapping[tuple[tuple[str, ...], str, str], str]  # letters of the systems that one beats significantly, by
    # ``task/dataset`` keys (several of an average), metric and system; in brackets where one of the two has one run
    notes: tuple[str, ...]  # how that was tested, and what it holds for

    def behind(self, keys: tuple[str, ...], metric: str, system: str) -> str:
        """Return what is raised behind the score of a system on a dataset, or on the average of several."""
        return self.beaten.get((keys, metric, system), "")


def significance_marks(results: Results, comparisons: Sequence[Comparison]) -> Marks:
    """Return a letter for each system, and for each score the letters of the systems it beats significantly.

    A comparison of two systems is read both ways: one that is significantly worse is beaten by its baseline.
    """
    if not comparisons:
        return Marks({}, {}, ())
    systems = systems_of(results.results)
    letters = {system: _letter(place) for place, system in enumerate(systems)}
    worse = gathered(
        ((c.place, c.metric, c.ordered[0]), (systems.index(c.ordered[1]), bool(c.alone)))
        for c in comparisons
        if c.significant
    )
    between = "" if len(systems) <= 26 else ","
    beaten = {}
    for place, found in worse.items():
        plain, alone = (between.join(_letter(i) for i, single in sorted(found) if single == of) for of in (False, True))
        beaten[place] = f"{plain}({alone})" if alone else plain
    test, notes = f"{_TEST}, p {correction_text(comparisons)}, level {ALPHA:g}", list[str]()
    if beaten:
        notes.append(f"Superscripts mark the systems that each row significantly outperforms ({test}).")
    elif any(c.p is not None for c in comparisons):
        notes.append(f"No system beats another significantly ({test}).")
    if any("(" in letters for letters in beaten.values()):
        notes.append(
            "A superscript in brackets holds for other queries alone: one of the two systems has a single run, and "
            "another training seed may reverse it."
        )
    return Marks(letters, beaten, (*notes, *limits(comparisons)))


def correction_text(comparisons: Sequence[Comparison]) -> str:
    """Say how p is corrected, and for how many tests of which family."""
    tested = [c for c in comparisons if c.p is not None]
    if not tested:
        return "not computed, since nothing can be tested"
    name, family = NAMES[tested[0].correction], tested[0].family
    how = f"corrected by {name}" if name else "not corrected"
    if family is None or all(c.tests == len(tested) for c in tested):
        return f"{how} for {'the 1 test' if len(tested) == 1 else f'all {len(tested):,} tests'}"
    metrics = {c.metric for c in tested}
    of = "each metric" if len(metrics) > 1 else metric_name(*metrics)
    said = []
    for what, averages in ((f"{of}{OF_FAMILY[family]}", False), ("its average", True)):
        if sizes := sorted({c.tests for c in tested if bool(c.parts) == averages}):
            number = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
            said.append(f"for the {number} test{'s' if sizes[-1] > 1 else ''} of {what}")
    return f"{how} {' and '.join(said)}"


def comparisons_table(results: Results, comparisons: Sequence[Comparison], layout: PairLayout = "pairs") -> Table:
    """Return a row for each paired comparison, differences in points (score x 100)."""
    if layout == "before_after":
        name, title = "before_after", "Before and after"
        caption = "Scores before and after × 100, and their difference"
        heading = "{0.key}: {0.system} (after) against {0.baseline} (before), {0.queries:,} queries"
        columns = ["Metric", "Before", "After", *_OF_TEST, "W/T/L"]
    elif layout == "against":
        name, title = "against", "Against a baseline"
        caption = "Scores of baseline and system × 100, and their difference"
        heading = "{0.key}: {0.system} against {0.baseline}, {0.queries:,} queries"
        columns = ["Metric", "Baseline mean", "System mean", *_OF_TEST, "W/T/L"]
    else:
        name, title = "significance", "Paired comparisons"
        caption = "Paired comparisons of systems: difference in points (score × 100)"
        heading = "{0.key}, {1} ({0.queries:,} queries)"
        of_all = _OF_ALL if any(c.simultaneous for c in comparisons) else ()
        columns = ["Comparison", *_OF_TEST, *of_all, "d", "W/T/L", "Holds for other", *_IN_CSV]
    correction = NAMES[comparisons[0].correction] if comparisons else ""
    if not correction:
        columns.remove("Corrected")
    shown = [*comparisons, *filter(None, map(_elsewhere, comparisons))]
    rows = ((heading.format(c, metric_name(c.metric)), tuple(COLUMNS[column](c) for column in columns))
            for c in shown)  # fmt: skip
    how = f"p corrected by {correction}" if correction else "no correction"
    effect = "d: mean over standard deviation of the differences by query. " if "d" in columns else ""
    return Table(
        name=name,
        title=title,
        caption=f"{caption} with its {100 * LEVEL:g} % interval, p, and {how}",
        columns=tuple(f"p ({correction})" if column == "Corrected" else column for column in columns),
        csv_only=frozenset(_IN_CSV if layout == "pairs" else ()),
        groups=row_groups(rows),
        notes=(
            f"p: {_TEST}, below {ALPHA:g} exactly where the interval excludes 0; {correction_text(comparisons)}. The "
            "checks in the CSV file (bootstrap and sign flips over queries) take the runs as they are.",
            f"{effect}W/T/L: queries won, tied and lost.",
            *([_ALL, *_rough(comparisons)] if "All: p" in columns else []),
            *limits(comparisons),
            *caveat_notes(results),
        ),
    )


def _rough(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield between which systems max-t is rough, since their differences are skewed and queries are few."""
    skewed = [c for c in comparisons if c.simultaneous and c.difference.terms and c.difference.terms.is_rough]
    for place, names in gathered((f"{c.key}, {metric_name(c.metric)}", c.name) for c in skewed).items():
        yield (
            f"{place}: differences are skewed, and there are fewer than 25 skew² queries, so that intervals for all "
            f"together are rough: {first_few(names)}."
        )


def standings_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each system with its rank, where every two of three or more systems were compared.

    An average speaks for its datasets.
    """
    names = {c.place: c.key for c in comparisons}
    averaged = {key for place in names if len(place) > 1 for key in place}
    rows = (
        (
            f"{names[place]}, {metric_name(metric)}",
            (
                Cell(one.system),
                Cell.mean([100 * one.mean]),
                Cell.count(one.rank),
                Cell("{} to {}".format(*one.ranks)),
                Cell("yes" if one.is_among_best else "no"),
            ),
        )
        for (place, metric), found in standings(comparisons).items()
        if averaged.isdisjoint(place) or len(place) > 1
        for one in found
    )
    return Table(
        name="standings",
        title="Which systems are the best?",
        caption=f"Ranks of the systems with {100 * LEVEL:g} % intervals, and which systems may be the best",
        columns=("System", "Score", "Rank", f"{100 * LEVEL:g} % interval", "Among the best"),
        groups=row_groups(rows),
        notes=(
            (
                "The intervals of all ranks hold together: they count the systems that are surely ahead and behind by "
                "simultaneous intervals of all differences (max-t). "
                if any(c.simultaneous for c in comparisons)
                else "The interval of a rank counts the systems that are surely ahead and behind: two-sided p below "
                f"{ALPHA:g}, corrected by Holm for the tests of that system. "
            )
            + f"Among the best: no system is better by a one-sided p below {ALPHA:g}, corrected for all others; so the "
            f"best system is missed at most in {100 * ALPHA:g} % of tables.",
            *caveat_notes(results),
        ),
    )


def print_compared(
    output_dir: Path,
    pairs: Sequence[tuple[str, str]],
    keys: Sequence[str],
    allow: Collection[str] = (),
    layout: PairLayout = "before_after",
) -> None:
    """Print how arms differ from others, given in pairs, on ``task/dataset`` keys; name on stderr the keys they lack.

    The tests on all keys, of every metric that both arms hold, are one family.
    """
    pairs = [(arm, other) for arm, other in pairs if arm != other]
    if not keys or not pairs:
        return
    results = load_all_results(output_dir, allow, only={(arm, key) for arms in pairs for arm in arms for key in keys})
    others = dict.fromkeys(other for _, other in pairs)
    for key, other in ((key, other) for key in keys for other in others if not results.measured(key, other)):
        stderr.print(f"{key}: no result of {other} to compare with", style="yellow", soft_wrap=True)
    questions = [
        Question(key, arm, other, metric)
        for arm, other in pairs
        for key in results.dataset_keys
        if key in keys and (held := results.measured(key, arm)) and (before := results.measured(key, other))
        for metric in shared_metrics([*held, *before])
    ]
    if questions:
        stdout.print()
        found = compare_arms(results, questions, family=None)
        stdout.print(comparisons_table(results, found, layout).to_rich())


def _elsewhere(c: Comparison) -> Comparison | None:
    """Return the row of an average for other collections like its datasets, where there are enough of them."""
    if c.elsewhere is None:
        return None
    key = f"{c.key} and others like these"
    of_all = replace(c, p_corrected=None, simultaneous=None, p_simultaneous=None)
    return replace(of_all, key=key, difference=c.elsewhere, p=c.p_elsewhere)


def _end(found: Estimate | None, place: int) -> float | None:
    return 100.0 * found.interval[place] if found and found.interval else None


def limits(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield how systems were chosen, what tests hold for, which systems have one run, and what has no test and why."""
    yield from (f"{said}." for said in dict.fromkeys(said for c in comparisons for said in c.chosen))
    held = Counter(c.holds_for for c in comparisons if c.p is not None)
    if len(held) == 1:
        yield f"All tests hold for other {next(iter(held))}."
    elif held:
        counted = (f"other {what} ({number:,} test{'s' if number > 1 else ''})" for what, number in held.items())
        yield f"What tests hold for: {'; '.join(counted)}."
    if any(c.elsewhere for c in comparisons):
        yield (
            "Other collections: the mean difference over collections like these, with a random effect of datasets "
            "(Student's t over datasets); its p is not corrected."
        )
    if alone := list(dict.fromkeys(system for c in comparisons for system in c.alone)):
        rows = "its tests take that run as it is" if len(alone) == 1 else "their tests take these runs as they are"
        yield f"One run of {', '.join(alone)}: {rows}."
    for number in dict.fromkeys(c.pooled for c in comparisons if c.pooled):
        yield f"Runs pooled over {number} systems: all are taken to vary alike from run to run, as was declared."
    apart = [c for c in comparisons if not c.pooled]
    runs = ((system, c.runs[place]) for c in apart for place, system in enumerate((c.system, c.baseline)))
    if two := list(dict.fromkeys(system for system, number in runs if number == 2)):
        yield f"Two seeds of {', '.join(two)}: {TWO_SEEDS}."
    left_out = gathered(((f"{c.name} on {c.key}", bool(c.parts)), run) for c in comparisons for run in c.left_out)
    for (row, average), seeds in left_out.items():
        why = (
            "which takes runs on all its datasets"
            if average
            else "since seeds pair and the other system lacks the seed"
        )
        yield f"Left out of {row}, {why}: {', '.join(dict.fromkeys(seeds))}."
    yield from (f"Caveat: {line}." for c in comparisons for line in lines(c.checks, "caveat"))
    several = len({c.metric for c in comparisons}) > 1
    untested = gathered(((c.unfit, f"{c.name} on {c.key}"), metric_name(c.metric)) for c in comparisons if c.p is None)
    reasons = gathered(
        (reason, f"{row} ({', '.join(metrics)})" if several else row) for (reason, row), metrics in untested.items()
    )
    for reason, names in reasons.items():
        yield f"No test of {listed(names)}: {reason}."


def _letter(place: int) -> str:
    """Return a to z, then aa, ab and so on."""
    before, own = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("a") + own)


def judged_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each two systems with other shares of unjudged documents; the rest of ``checks`` is notes."""
    rows, notes = [], [_OPEN]
    for c in comparisons:
        for check in (check for check in c.checks if check.name == "unjudged"):
            data = check.data
            low, high = data.get("interval") or (None, None)
            alone = [None if value is None else 100 * value for value in (data.get("judged_only"), low, high)]
            heading = f"{c.key}, {metric_name(c.metric)}"
            shares = [Cell.number(100 * share, ".1f") for share in data["shares"]]
            finding = "" if "finding_changes" not in data else "changes" if data["finding_changes"] else "stays"
            cells = (Cell(c.name), *shares, Cell.signed(100 * c.delta), *map(Cell.signed, alone), Cell(finding))
            rows.append((heading, cells))
            notes += [_NO_NEGATIVES] * (data.get("negatives") is False)
    return Table(
        name="judged",
        title="On judged documents alone",
        caption=(
            f"Unjudged among the first documents of both systems (%), difference as reported, and on judged documents "
            f"alone with its {100 * LEVEL:g} % interval; pairs whose shares differ by {100 * APART:g} points or more"
        ),
        columns=("Comparison", "Unjudged", "other", "Delta", "Judged only", "Low", "High", "Finding"),
        groups=row_groups(rows),
        notes=(*dict.fromkeys(notes), *caveat_notes(results)),
    )
