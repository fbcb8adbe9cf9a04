"""Everything that is asked of one set of results, each answer computed once; and of systems, who beats whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from unimoe.analysis.arms import NotComputable, missing_pairs
from unimoe.analysis.comparisons import (
    ITERATIONS,
    Comparison,
    Question,
    compare_arms,
    questions_of,
    unknown_arm,
    with_other_metrics,
)
from unimoe.analysis.drilldown import Drilled, QueryCase, drill_down_all, drilled_of
from unimoe.analysis.gates.definitions import InterferenceGate, Registration
from unimoe.analysis.gates.judging import GateOutcome, Judgment, judge_all
from unimoe.analysis.gates.registration import default_gates, registered_in
from unimoe.analysis.groups import ByGroup, compare_groups
from unimoe.analysis.robustness import with_checks
from unimoe.analysis.saved_comparison import Correction, TestFamily, check_choice, saved_comparison
from unimoe.analysis.standings import Chosen, corrected_together, standings
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import correction_text, significance_marks
from unimoe.analysis.tables.groups import groups_as_rows
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table
from unimoe.checks import Check
from unimoe.core.errors import DataError, UsageError, path_of
from unimoe.core.shown import Shown
from unimoe.results.folder import Results, load_all_results

if TYPE_CHECKING:
    import pandas as pd

Pairs = Literal["all", "baseline"]
Layout = Literal["systems", "datasets"]

# Columns of a test that the rows of the scores repeat.
_REPEATED = ("baseline", "difference", "low", "high", "p", "p_corrected", "wins", "ties", "losses", "holds_for")


class Analysis:
    """One set of results and what is computed from it; an answer is computed when it is first asked for, then kept.

    The commands, the tables, the figures and the report of one run share one of these, so that they cannot disagree
    and nothing is computed twice.
    """

    def __init__(
        self,
        results: Results,
        gates: Registration | None = None,
        *,
        questions: Sequence[Question] | None = None,
        iterations: int = ITERATIONS,
        seed: int = 0,
        correction: Correction | None = None,
        family: TestFamily | None = None,
        chosen: Chosen | None = None,
        simultaneous: bool = False,
    ) -> None:
        """Take results, gates that replace those registered in their folder, and what to compare if not by names.

        ``iterations`` and ``seed`` are those of the resampling checks of each test. ``correction`` and ``family``
        say how p is corrected: by default as the comparison saved in the folder is, else by Holm over the table.
        ``chosen`` and ``simultaneous`` are those of ``corrected_together``, by default as saved too.
        """
        check_choice("correction", correction, Correction)
        check_choice("family", family, TestFamily)
        saved = saved_comparison(results.output_dir) if questions is None else None
        self.results = results
        self.iterations = iterations
        self.seed = seed
        self.correction: Correction = correction or (saved.correction if saved else "holm")
        self.family: TestFamily = family or (saved.family if saved else "table")
        self.chosen: Chosen = chosen or (saved.chosen if saved else {})
        self.simultaneous = simultaneous or bool(saved and saved.simultaneous)
        self._gates = gates
        self._questions = questions
        self._compares_systems = questions is not None or saved is not None

    @cached_property
    def registration(self) -> Registration | None:
        """The gates given, else those registered in the output folder, whose file may be malformed: a DataError."""
        return self._gates or registered_in(self.results.output_dir)

    @cached_property
    def outcomes(self) -> tuple[GateOutcome, ...]:
        """Every judgment: of the registered gates, then of default gates for what they leave out."""
        registered = () if self.registration is None else judge_all(self.results, self.registration)
        return (*registered, *judge_all(self.results, default_gates(self.results, self.registration)))

    @property
    def decisive(self) -> tuple[GateOutcome, ...]:
        """The outcomes that count for an exit code: those of registered gates, or all where no file registers any."""
        return self.outcomes if self.registration is None else self.outcomes[: len(self.registration.gates)]

    @property
    def judgments(self) -> tuple[Judgment, ...]:
        """The outcomes that are judgments."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, Judgment))

    @property
    def interference(self) -> tuple[Judgment, ...]:
        """The judgments of a joint arm against its specialist."""
        return tuple(item for item in self.judgments if isinstance(item.gate, InterferenceGate))

    @property
    def missing(self) -> tuple[NotComputable, ...]:
        """Every pair of a specialist and a joint arm that has no TIR, and why."""
        return missing_pairs(self.results)

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """What to compare, on each dataset by its main metric."""
        return questions_of(self.results) if self._questions is None else tuple(self._questions)

    @cached_property
    def all_comparisons(self) -> tuple[Comparison, ...]:
        """The paired comparisons of arms on every metric: those on main metrics, then their averages, then others."""
        found = compare_arms(
            self.results,
            with_other_metrics(self.results, self.questions),
            iterations=self.iterations,
            seed=self.seed,
            correction=self.correction,
            family=self.family,
            first=lambda rows: corrected_together(rows, self.chosen, simultaneous=self.simultaneous),
        )
        return tuple(with_checks(self.results, found))

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Those of all comparisons that are on main metrics, with their averages."""
        return tuple(test for test in self.all_comparisons if test.main)

    @cached_property
    def by_group(self) -> tuple[ByGroup, ...]:
        """Each judgment, and each comparison of systems on a main metric, by groups of queries; empty without these."""
        asked = self._compares_systems or not self.judgments
        return compare_groups(self.results, self.judgments, self.comparisons if asked else ())

    @property
    def checks(self) -> tuple[Check, ...]:
        """What the doors found of runs and judgments, and which comparisons depend on it."""
        of_runs = (check for result in self.results.results for check in result.checks)
        return (*of_runs, *(check for test in self.all_comparisons for check in test.checks))

    @cached_property
    def drilled(self) -> tuple[Drilled, ...]:
        """What has a drill-down: each judgment, and of systems, each pair with the baseline, or else the first system.

        The first question is about that one.
        """
        asked = self.questions if self._compares_systems else ()
        with_first = [q for q in asked if not q.parts and asked[0].baseline in (q.system, q.baseline)]
        return drilled_of(self.results, self.judgments, with_first)

    @cached_property
    def cases(self) -> dict[tuple[str, str], tuple[QueryCase, ...]]:
        """The queries that contribute most to each difference of ``drilled``, by its name and dataset."""
        return drill_down_all(self.results, self.drilled)


class SystemComparison(Shown, Analysis):
    """Systems with their scores on every dataset, and the tests between them: on every metric and average.

    Attributes:
        systems: in the order given, the baseline first.
        pairs: whether every two systems are compared, or each with the baseline alone.
        warnings: what should be known before the numbers are believed.
    """

    def __init__(
        self,
        results: Results,
        systems: Sequence[str],
        baseline: str | None,
        pairs: Pairs,
        *,
        warnings: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Compare systems that have results already, in the order wanted with the baseline first.

        ``options`` are those of ``Analysis``. Pairs with a baseline that is not named are a UsageError; no dataset with
        results of two systems is a DataError.
        """
        check_choice("pairs", pairs, Pairs)
        if pairs == "baseline" and baseline is None:
            raise UsageError("pairs with the baseline need one; name it with --baseline, or compare all pairs")
        if pairs == "all" and options.get("family") == "baseline":
            raise UsageError("the family of the tests against a baseline has no others; compare with --pairs baseline")
        if pairs == "baseline" and options.get("simultaneous"):
            raise UsageError("simultaneous intervals are of every two systems; compare all pairs")
        questions: list[Question] = []
        for key in results.dataset_keys:
            here = [system for system in systems if results.measured(key, system)]
            if pairs == "all":  # each pair once, the later system against the earlier
                questions += [Question(key, later, earlier) for i, later in enumerate(here) for earlier in here[:i]]
            elif baseline in here:
                questions += [Question(key, system, baseline) for system in here if system != baseline]
        if not questions:
            raise DataError(f"{results.output_dir}: no dataset has results of two of {', '.join(systems)} to compare")
        super().__init__(results, questions=questions, **options)
        self.systems, self.baseline, self.pairs, self.warnings = tuple(systems), baseline, pairs, tuple(warnings)

    def frame(self) -> pd.DataFrame:
        """Return a row for each dataset, system and metric.

        ``difference`` is the system's mean minus the baseline's, with its 95 % interval and p; rows of the baseline,
        and of metrics that some system lacks by query, have None there. ``beats`` holds the letters of the systems
        that score significantly lower on the metric, in brackets where one of the two is a single training.
        """
        import pandas as pd  # only loaded by those who ask for a frame

        return pd.DataFrame(self.score_rows)

    def tests(self) -> pd.DataFrame:
        """Return a row for each comparison of two systems, on a dataset or on the average of several.

        The rows of main metrics come first, then their averages, then the same of each other metric. Only main
        metrics have ``check_`` columns; an average has neither those nor an ``effect``.
        """
        import pandas as pd

        return pd.DataFrame(self.test_rows)

    def ranks(self) -> pd.DataFrame:
        """Return a row for each system on a dataset or average and metric: its rank, the 95 % interval of the rank.

        ``among_best`` says whether it may be the best system. Without rows where not every two of three or more systems
        were compared.
        """
        import pandas as pd

        return pd.DataFrame(self.rank_rows)

    def groups(self) -> pd.DataFrame:
        """Return a row for each group of queries of each two systems: difference or TIR, with interval and p.

        ``p_corrected`` is by Holm over the groups. ``varies_p`` is the test of whether the difference varies between
        groups, and ``between`` the two groups that differ most surely. Without rows where no groups were given.
        """
        import pandas as pd

        return pd.DataFrame(groups_as_rows(self.by_group))

    def table(self, layout: Layout = "systems") -> Table:
        """Return the systems in rows.

        Args:
            layout: ``systems``: a block for each dataset, metrics in columns. ``datasets``: datasets and their average
                in columns, on the first metric alone; without rows where there is one dataset.
        """
        check_choice("layout", layout, Layout)
        if layout == "datasets":
            return overview_table(self.results, self.comparisons)
        return generate_comparison_table(self.results, self.all_comparisons)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write results and report as ``unimoe compare --output-dir`` does, and return the folder.

        ``load_all_results`` and ``unimoe analyze`` read it. Where it holds this comparison already, the rest is added.

        Raises:
            DataError: the folder holds other results or, without ``overwrite``, another comparison.
        """
        from unimoe.analysis.report import keep_comparison  # matplotlib and jinja2 are loaded by those who save

        return keep_comparison(self, path_of(folder, "the folder"), None, overwrite=overwrite)

    @property
    def summary(self) -> str:
        """Say in a sentence which tests there are on the main metric, and how their p is corrected."""
        asked = [c for c in self.comparisons if not c.parts]
        if len(asked) == 1:
            return f"{asked[0].system} against {asked[0].baseline}: 1 comparison"
        which = "Every two systems" if self.pairs == "all" else f"Each system against {self.baseline}"
        datasets, tested = len(self.results.dataset_keys), sum(c.p is not None for c in asked)
        where = f" on each of {datasets} datasets" if datasets > 1 else ""
        possible = "" if tested == len(asked) else f", {tested} of them with a test"
        return f"{which}{where}: {len(asked)} comparisons{possible}, p {correction_text(self.all_comparisons)}"

    @property
    def score_rows(self) -> list[dict[str, Any]]:
        """The rows of ``frame`` as plain data."""
        tests = self.all_comparisons
        against_baseline = {(c.key, c.metric, c.system): as_row(c) for c in tests if c.baseline == self.baseline}
        tested = {(c.key, c.metric) for c in tests}
        marks, rows = significance_marks(self.results, tests), []
        for key in self.results.dataset_keys:
            for system in self.systems:
                runs = self.results.measured(key, system)
                for metric in (runs[0].main_metric, *runs[0].per_query_metrics) if runs else ():
                    means = [run.aggregate[metric] for run in runs]
                    test = against_baseline.get((key, metric, system), {})
                    rows.append({
                        "task": runs[0].task, "dataset": runs[0].dataset, "system": system, "metric": metric,
                        "queries": len(self.results.queries(key)), "relevance_level": runs[0].relevance_level,
                        "runs": len(runs), "mean": fmean(means), "std": stdev(means) if len(means) > 1 else None,
                        **{column: test.get(column) for column in _REPEATED},
                        "letter": marks.letters.get(system),
                        "beats": marks.behind((key,), metric, system) if (key, metric) in tested else None,
                    })  # fmt: skip
        return rows

    @property
    def rank_rows(self) -> list[dict[str, Any]]:
        """The rows of ``ranks`` as plain data."""
        names = {c.place: c.key.partition("/") for c in self.all_comparisons}
        return [
            {
                "task": names[place][0], "dataset": names[place][2], "metric": metric, "system": one.system,
                "mean": one.mean, "rank": one.rank, "low": one.ranks[0], "high": one.ranks[1],
                "among_best": one.is_among_best,
            }
            for (place, metric), found in standings(self.all_comparisons).items()
            for one in found
        ]  # fmt: skip

    @property
    def test_rows(self) -> list[dict[str, Any]]:
        """The rows of ``tests`` as plain data."""
        return list(map(as_row, self.all_comparisons))


def as_row(c: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data; what cannot be had is None, the interval too where there is no test."""
    task, _, dataset = c.key.partition("/")
    (low, high), (check_low, check_high) = c.interval or (None, None), c.check_interval or (None, None)
    return {
        "task": task, "dataset": dataset, "metric": c.metric, "system": c.system, "baseline": c.baseline,
        "queries": c.queries, "system_runs": c.runs[0], "baseline_runs": c.runs[1],
        "system_mean": c.means[0], "baseline_mean": c.means[1], "difference": c.delta, "low": low, "high": high,
        "p": c.p, "p_corrected": c.p_corrected, "significant": c.significant, "unfit": c.unfit or None,
        "effect": c.effect, "superiority": c.superiority, "wins": c.wins, "ties": c.ties, "losses": c.losses,
        "holds_for": c.holds_for, "check_low": check_low, "check_high": check_high, "check_p": c.check_p,
        **_interval("simultaneous", c.simultaneous), "simultaneous_p": c.p_simultaneous,
        "collections_mean": c.elsewhere and c.elsewhere.value, **_interval("collections", c.elsewhere),
        "collections_p": c.p_elsewhere, "checks": "; ".join(check.line for check in c.checks) or None,
    }  # fmt: skip


def _interval(name: str, found: Estimate | None) -> dict[str, float | None]:
    low, high = (found and found.interval) or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


AnyResults: TypeAlias = Results | SystemComparison | Path | str


def given_results(results: AnyResults) -> Results:
    """Return results given in any of their forms; a folder is read."""
    if isinstance(results, str | Path):
        return load_all_results(results)
    found = results.results if isinstance(results, SystemComparison) else results
    if not isinstance(found, Results):
        raise UsageError(
            f"the results are a {type(results).__name__}; give an output folder, or what load_all_results gives"
        )
    return found


def refuse_unknown(arms: Sequence[object], results: Results) -> None:
    """Refuse an arm that has no results by a UsageError that names the closest."""
    for arm in arms:
        if not isinstance(arm, str) or arm not in results:
            raise UsageError(unknown_arm(arm, results))


def in_order(systems: Sequence[str], baseline: str | None) -> tuple[str, ...]:
    """Return two systems or more with the baseline, which is one of them, first; anything else is a UsageError."""
    if baseline is not None and baseline not in systems:
        raise UsageError(unknown_arm(str(baseline), systems))
    if len(systems) < 2:
        raise UsageError(f"only {', '.join(systems) or 'no system'} to compare; give two systems or more")
    return tuple(sorted(systems, key=lambda system: system != baseline))
