"""Any number of systems on any number of datasets: who beats whom, with p corrected for all tests together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import Comparison, Question, unknown_arm
from unimoe.analysis.corrections import check_choice
from unimoe.analysis.standings import standings
from unimoe.analysis.statistics.estimates import Estimate
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import correction_text, significance_marks
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results

if TYPE_CHECKING:
    import pandas as pd

Pairs = Literal["all", "baseline"]
Layout = Literal["systems", "datasets"]

# Columns of a test that the rows of the scores repeat.
_REPEATED = ("baseline", "difference", "low", "high", "p", "p_corrected", "wins", "ties", "losses", "holds_for")


@dataclass(frozen=True)
class SystemComparison:
    """Systems with their scores on every dataset, and the tests between them.

    Attributes:
        analysis: of their results; its tests are those of every metric and average, with how their p is corrected.
        systems: in the order given, the baseline first.
        pairs: whether every two systems are compared, or each with the baseline alone.
        warnings: what should be known before the numbers are believed.
    """

    analysis: Analysis
    systems: tuple[str, ...]
    baseline: str | None
    pairs: Pairs
    warnings: tuple[str, ...] = ()

    @property
    def results(self) -> Results:
        """The results that are compared."""
        return self.analysis.results

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The tests on main metrics: on each dataset, then on average."""
        return self.analysis.comparisons

    def frame(self) -> pd.DataFrame:
        """Return a row for each dataset, system and metric.

        ``difference`` is the system's mean minus the baseline's, with its 95 % interval and p; rows of the baseline,
        and of metrics that some system lacks by query, have None there. ``beats`` holds the letters of the systems
        whose score on the metric is significantly lower, in brackets where one of the two has a single run.
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

    def table(self, layout: Layout = "systems") -> Table:
        """Return the systems in rows.

        Args:
            layout: ``systems``: a block for each dataset, metrics in columns. ``datasets``: datasets and their average
                in columns, on the first metric alone; without rows where there is one dataset.
        """
        check_choice("layout", layout, Layout)
        if layout == "datasets":
            return overview_table(self.results, self.comparisons)
        return generate_comparison_table(self.results, self.analysis.tests)

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
        return f"{which}{where}: {len(asked)} comparisons{possible}, p {correction_text(self.analysis.tests)}"

    @property
    def score_rows(self) -> list[dict[str, Any]]:
        """The rows of ``frame`` as plain data."""
        tests = self.analysis.tests
        against_baseline = {(c.key, c.metric, c.system): _row(c) for c in tests if c.baseline == self.baseline}
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
                        "queries": len(runs[0].per_query), "relevance_level": runs[0].relevance_level,
                        "runs": len(runs), "mean": fmean(means), "std": stdev(means) if len(means) > 1 else None,
                        **{column: test.get(column) for column in _REPEATED},
                        "letter": marks.letters.get(system),
                        "beats": marks.behind((key,), metric, system) if (key, metric) in tested else None,
                    })  # fmt: skip
        return rows

    @property
    def rank_rows(self) -> list[dict[str, Any]]:
        """The rows of ``ranks`` as plain data."""
        names = {c.place: c.key.partition("/") for c in self.analysis.tests}
        return [
            {
                "task": names[place][0], "dataset": names[place][2], "metric": metric, "system": one.system,
                "mean": one.mean, "rank": one.rank, "low": one.ranks[0], "high": one.ranks[1],
                "among_best": one.is_among_best,
            }
            for (place, metric), found in standings(self.analysis.tests).items()
            for one in found
        ]  # fmt: skip

    @property
    def test_rows(self) -> list[dict[str, Any]]:
        """The rows of ``tests`` as plain data."""
        return list(map(_row, self.analysis.tests))

    @property
    def main_rows(self) -> list[dict[str, Any]]:
        """Those of them that are on main metrics."""
        return list(map(_row, self.comparisons))


def _row(c: Comparison) -> dict[str, Any]:
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
        "collections_p": c.p_elsewhere,
    }  # fmt: skip


def _interval(name: str, found: Estimate | None) -> dict[str, float | None]:
    low, high = (found and found.interval) or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def in_order(systems: Sequence[str], baseline: str | None) -> tuple[str, ...]:
    """Return two systems or more with the baseline, which is one of them, first; anything else is a UsageError."""
    if baseline is not None and baseline not in systems:
        raise UsageError(unknown_arm(baseline, systems))
    if len(systems) < 2:
        raise UsageError(f"only {', '.join(systems) or 'no system'} to compare; give two systems or more")
    return tuple(sorted(systems, key=lambda system: system != baseline))


def compare_systems(
    results: Results,
    systems: Sequence[str],
    baseline: str | None,
    pairs: Pairs,
    *,
    warnings: Sequence[str] = (),
    **options: Any,
) -> SystemComparison:
    """Compare systems whose results are there already, in the order wanted with the baseline first.

    ``options`` are those of ``Analysis``. Pairs with a baseline that is not named are a UsageError; no dataset with
    results of two systems is a DataError.
    """
    check_choice("pairs", pairs, Pairs)
    if pairs == "baseline" and baseline is None:
        raise UsageError("pairs with the baseline need one; name it with --baseline, or compare all pairs")
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
    analysis = Analysis(results, questions=questions, **options)
    return SystemComparison(analysis, tuple(systems), baseline, pairs, tuple(warnings))
