"""Any number of systems on any number of datasets: who beats whom, with p corrected for all tests together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import ITERATIONS, Comparison, Question, all_pairs, unknown_arm
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import significance_marks
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results
from unimoe.results.runs.building import score_systems
from unimoe.results.runs.scoring import Judgments, QrelsContent, RunContent, RunSource, Scoring, judgments

if TYPE_CHECKING:
    import pandas as pd

Pairs = Literal["all", "baseline"]

_AGAINST_BASELINE = ("baseline", "difference", "low", "high", "p", "p_holm", "wins", "ties", "losses", "holds_for")
"""Columns of a test that the rows of the scores repeat."""

Given: TypeAlias = str | RunContent
Seeds: TypeAlias = Given | Sequence[Given]
OfSystem: TypeAlias = Seeds | Mapping[str, Seeds]


@dataclass(frozen=True)
class SystemComparison:
    """Systems with their scores on every dataset, and the tests between them.

    Attributes:
        analysis: of their results; its comparisons are the tests.
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
    def questions(self) -> tuple[Question, ...]:
        """What is tested."""
        return self.analysis.questions

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The tests, one family: Holm's correction counts all of them."""
        return self.analysis.comparisons

    def frame(self) -> pd.DataFrame:
        """Return a row for each dataset, system and metric.

        ``difference`` is the system's mean minus the baseline's, with its 95 % interval and p. Only the main metric is
        tested; rows of the other metrics, and those of the baseline, have None there. ``beats`` holds the letters of
        the systems whose main metric is significantly lower on the dataset, in brackets where one of the two has a
        single run.
        """
        import pandas as pd  # only loaded by those who ask for a frame

        return pd.DataFrame(self.score_rows)

    def tests(self) -> pd.DataFrame:
        """Return a row for each comparison of two systems on a dataset."""
        import pandas as pd

        return pd.DataFrame(self.test_rows)

    def table(self) -> Table:
        """Return the systems in rows and the metrics in columns, a block for each dataset."""
        return generate_comparison_table(self.results, self.comparisons)

    def overview(self) -> Table:
        """Return the datasets in rows and the systems in columns; without rows where there is one dataset."""
        return overview_table(self.results, self.comparisons)

    @property
    def family(self) -> str:
        """Say which tests there are, and that they are one family."""
        tested, asked = sum(c.p is not None for c in self.comparisons), len(self.comparisons)
        if asked == 1:
            return f"{self.comparisons[0].system} against {self.comparisons[0].baseline}: 1 comparison"
        which = "every two systems" if self.pairs == "all" else f"each system against {self.baseline}"
        datasets = len(self.results.dataset_keys)
        where = f" on each of {datasets} datasets" if datasets > 1 else ""
        possible = "" if tested == asked else f", {tested} of them with a test"
        return (
            f"{which[0].upper()}{which[1:]}{where}: {asked} comparisons{possible}, p corrected by Holm for all of them"
        )

    @property
    def score_rows(self) -> list[dict[str, Any]]:
        """The rows of ``frame`` as plain data."""
        marks = significance_marks(self.results, self.comparisons)
        tests = {(c.key, c.system): comparison_row(c) for c in self.comparisons if c.baseline == self.baseline}
        rows = []
        for key in self.results.dataset_keys:
            for system in self.systems:
                runs = self.results.measured(key, system)
                for metric in (runs[0].main_metric, *runs[0].per_query_metrics) if runs else ():
                    main, means = metric == runs[0].main_metric, [run.aggregate[metric] for run in runs]
                    test = tests.get((key, system), {}) if main else {}
                    rows.append({
                        "task": runs[0].task, "dataset": runs[0].dataset, "system": system, "metric": metric,
                        "queries": len(runs[0].per_query), "relevance_level": runs[0].relevance_level,
                        "runs": len(runs), "mean": fmean(means), "std": stdev(means) if len(means) > 1 else None,
                        **{column: test.get(column) for column in _AGAINST_BASELINE},
                        "letter": marks.letters.get(system),
                        "beats": marks.behind(key, system) if main else None,
                    })  # fmt: skip
        return rows

    @property
    def test_rows(self) -> list[dict[str, Any]]:
        """The rows of ``tests`` as plain data."""
        return [comparison_row(comparison) for comparison in self.comparisons]


def comparison_row(c: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data; what cannot be had is None, the interval too where there is no test."""
    task, _, dataset = c.key.partition("/")
    low, high = c.interval or (None, None)
    return {
        "task": task, "dataset": dataset, "metric": c.metric, "system": c.system, "baseline": c.baseline,
        "queries": c.queries, "system_runs": len(c.seeds[0]), "baseline_runs": len(c.seeds[1]),
        "system_mean": c.means[0], "baseline_mean": c.means[1], "difference": c.delta, "low": low, "high": high,
        "p": c.p, "p_holm": c.p_holm, "significant": c.significant, "unfit": c.unfit or None,
        "effect": c.effect, "superiority": c.superiority, "wins": c.wins, "ties": c.ties, "losses": c.losses,
        "holds_for": c.holds_for, "check_low": c.check_interval[0], "check_high": c.check_interval[1],
        "check_p": c.check_p,
    }  # fmt: skip


def compare(
    systems: Mapping[str, OfSystem],
    qrels: str | QrelsContent | Mapping[str, str | QrelsContent],
    *,
    baseline: str | None = None,
    metrics: str | Sequence[str] = ("ndcg@10",),
    pairs: Pairs = "all",
    relevance_level: int | None = None,
    depth: int | None = None,
    allow: str | Sequence[str] = (),
    paired: bool = False,
) -> SystemComparison:
    """Compare systems by their runs: scores, intervals, and who beats whom, on one dataset or several.

    A run is ``{query id: {document id: score}}`` or the path of a TREC run; a list of runs holds several seeds. With
    several datasets, both ``qrels`` and each system map a dataset's name to what it has there.

    Example:
        >>> qrels = {f"q{i}": {"relevant": 1} for i in range(9)}
        >>> good = {query: {"relevant": 3.0, "other": 2.0, "third": 1.0} for query in qrels}
        >>> poor = {f"q{i}": {"relevant": 1.5, "other": 2.0, "third": i % 3} for i in range(9)}
        >>> found = compare({"bm25": poor, "mono": good}, qrels, baseline="bm25", metrics=["mrr", "p@1"])
        >>> print(found.frame()[["system", "metric", "mean"]].round(3).to_string())
          system metric   mean
        0   bm25    mrr  0.444
        1   bm25    p@1  0.000
        2   mono    mrr  1.000
        3   mono    p@1  1.000
        >>> print(found.tests()[["system", "baseline", "difference", "significant"]].round(3).to_string())
          system baseline  difference  significant
        0   mono     bm25       0.556         True

    Args:
        systems: runs by the system's name.
        qrels: ``{query id: {document id: grade}}`` or the path of a qrels file.
        baseline: the system to compare the others with.
        metrics: in any spelling that ``canonical_metric`` knows; the first is tested, the others are shown.
        pairs: the tests of one family: ``all``: every two systems on every dataset. ``baseline``: only each system
            against the baseline, which leaves more power.
        relevance_level: the lowest relevant grade of binary measures; by default what a qrels file states, else 1.
        depth: score only this many documents of each query.
        allow: what would be refused otherwise: ``queries``, ``zeros``, ``depth``, ``duplicates``, as in ``Scoring``.
        paired: whether run i of all systems shares data order and initial weights.

    Raises:
        UsageError: unknown names, metrics or allowances, or fewer than two systems.
        DataError: files or runs that cannot be read or compared.
    """
    if not isinstance(systems, Mapping):
        raise UsageError(f"the systems are a {type(systems).__name__}; give a dictionary of their runs by name")
    several = _is_several(qrels)
    of_dataset = cast("dict[Any, str | QrelsContent]", qrels if several else {None: qrels})
    datasets = [judgments(_content(given), name, relevance_level) for name, given in of_dataset.items()]
    sources: list[RunSource] = []
    for system, given in systems.items():
        held: Any = given if several else {None: given}
        absent = [dataset for dataset in of_dataset if not isinstance(held, Mapping) or dataset not in held]
        if absent:
            raise UsageError(f"{system} has no run on {', '.join(absent)}; map every dataset's name to its runs")
        for dataset, judged in zip(of_dataset, datasets, strict=True):
            sources += _sources(system, judged, held[dataset])
    asked = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    scoring = Scoring(asked, depth=depth, allow=(allow,) if isinstance(allow, str) else tuple(allow), paired=paired)
    ordered = in_order(list(systems), baseline)
    scored = score_systems(sources, scoring, f"comparison of {', '.join(ordered)}")
    return compare_systems(scored.results, ordered, baseline, pairs, warnings=scored.warnings)


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
    iterations: int = ITERATIONS,
    seed: int = 0,
    warnings: Sequence[str] = (),
) -> SystemComparison:
    """Compare systems, in the order wanted with the baseline first, whose results are there already.

    Pairs with a baseline that is not named are a UsageError; no dataset with results of two systems is a DataError.
    """
    if pairs not in get_args(Pairs):
        raise UsageError(f"pairs {pairs!r}: unknown; use {' or '.join(get_args(Pairs))}")
    if pairs == "baseline" and baseline is None:
        raise UsageError("pairs with the baseline need one; name it with --baseline, or compare all pairs")
    questions: list[Question] = []
    for key in results.dataset_keys:
        here = [system for system in systems if results.measured(key, system)]
        if pairs == "all":
            questions += all_pairs(key, here)
        elif baseline in here:
            questions += [Question(key, system, baseline) for system in here if system != baseline]
    if not questions:
        raise DataError(f"{results.output_dir}: no dataset has results of two of {', '.join(systems)} to compare")
    analysis = Analysis(results, questions=questions, iterations=iterations, seed=seed)
    return SystemComparison(analysis, tuple(systems), baseline, pairs, tuple(warnings))


def _is_several(qrels: object) -> bool:
    """Return whether judgments are those of several datasets by name, not of one."""
    first = next(iter(qrels.values()), None) if isinstance(qrels, Mapping) else None
    inner = next(iter(first.values()), None) if isinstance(first, Mapping) else None
    return isinstance(first, str | Path) or isinstance(inner, Mapping)


def _sources(system: str, judged: Judgments, given: Seeds) -> Iterator[RunSource]:
    runs = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not runs:
        raise UsageError(f"no run of {system}; give one or more")
    for seed, content in enumerate(map(_content, runs)):
        name = str(content) if isinstance(content, Path) else f"{system} run {seed}"
        yield RunSource(system, judged, seed, name, content)


def _content(given: Any) -> Any:
    return Path(given) if isinstance(given, str) else given
