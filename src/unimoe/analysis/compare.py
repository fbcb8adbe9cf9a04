"""The public functions of the analysis: load an output folder or bring runs from anywhere, then ask.

    results = load_all_results("outputs")
    compute_interference_metrics(results)[0].found.estimate.interval
    generate_comparison_table(results).to_latex()
    compare({"bm25": "bm25.trec", "mono": ["mono-1.trec", ...]}, "qrels.txt").frame()

Light to import: no torch, no pandas, no pyplot, no scipy.stats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from unimoe.analysis.analysis import (
    Analysis,
    AnyResults,
    Pairs,
    SystemComparison,
    given_results,
    in_order,
    refuse_unknown,
)
from unimoe.analysis.any_statistic import compare_statistic
from unimoe.analysis.arms import ArmPair
from unimoe.analysis.comparisons import ITERATIONS, Comparison, compare_arms, unknown_arm
from unimoe.analysis.gates.definitions import Gate, InterferenceGate, Registration, given_gates, load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.registration import default_gates, registered_in, suites
from unimoe.analysis.saved_comparison import Correction, TestFamily
from unimoe.analysis.shown import TIR, Judgments, TIRs
from unimoe.analysis.standings import Chosen, check_chosen
from unimoe.analysis.tables.scores import generate_comparison_table
from unimoe.core.errors import DataError, UsageError
from unimoe.core.limits import name_problem
from unimoe.metrics import MetricLike, canonical_metrics
from unimoe.results import TASKS
from unimoe.results.clusters import Clusters, Groups
from unimoe.results.folder import Results, load_all_results
from unimoe.results.runs.building import score_systems
from unimoe.results.runs.sources import QrelsContent, RunContent, RunSource, Scoring, judged_by, judgments, refuse_draws

__all__ = [
    "TIR",
    "Judgments",
    "Results",
    "SystemComparison",
    "TIRs",
    "compare",
    "compare_statistic",
    "compute_interference_metrics",
    "compute_significance",
    "generate_comparison_table",
    "generate_plots",
    "judge",
    "load_all_results",
    "tir",
]

Given: TypeAlias = str | RunContent
SeedRuns: TypeAlias = Given | Sequence[Given]
OfSystem: TypeAlias = SeedRuns | Mapping[str, SeedRuns]


def compare(
    systems: Mapping[str, OfSystem],
    qrels: str | QrelsContent | Mapping[str, str | QrelsContent],
    *,
    baseline: str | None = None,
    metrics: MetricLike | Sequence[MetricLike] = ("ndcg@10",),
    pairs: Pairs = "all",
    correction: Correction = "holm",
    family: TestFamily = "table",
    relevance_level: int | None = None,
    depth: int | None = None,
    allow: str | Sequence[str] = (),
    paired: bool = False,
    pool_runs: bool = False,
    untrained: Collection[str] = (),
    chosen: Chosen | None = None,
    simultaneous: bool = False,
    clusters: Mapping[str, str] | Path | str | None = None,
    topics: str = "shared",
    predicted_qrels: str | QrelsContent | Mapping[str, str | QrelsContent] | None = None,
    groups: Mapping[str, str] | Path | str | None = None,
) -> SystemComparison:
    """Compare systems by their runs: scores, intervals, and who beats whom, on one dataset or several.

    A run is ``{query id: {document id: score}}`` or the path of a TREC run; a list of runs holds several seeds. With
    several datasets, both ``qrels`` and each system map a dataset's name to what it has there. A run that no dataset's
    name maps to serves every dataset if it holds the judged queries.

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
        >>> print(found.tests()[["system", "baseline", "metric", "difference", "significant"]].round(3).to_string())
          system baseline metric  difference  significant
        0   mono     bm25    mrr       0.556         True
        1   mono     bm25    p@1       1.000        False

    Args:
        systems: runs by the system's name.
        qrels: ``{query id: {document id: grade}}`` or the path of a qrels file.
        baseline: the system to compare the others with.
        metrics: in any spelling that ``canonical_metric`` knows, or objects of ir_measures; the first is the main one.
        pairs: ``all``: every two systems on every dataset are tested. ``baseline``: only each system against the
            baseline, which leaves more power.
        correction: of p for the tests of a family: ``holm``, ``bh`` (Benjamini-Hochberg), ``bonferroni`` or ``none``.
        family: the tests of a metric that are corrected together: all of the ``table``, those of a ``dataset``, or
            with these ``pairs`` those against the ``baseline``. Averages over datasets are families of their own.
        relevance_level: the lowest relevant grade of binary measures; by default what a qrels file states, else 1.
        depth: score only this many documents of each query.
        allow: what would be refused otherwise: ``queries``, ``zeros``, ``depth``, ``duplicates``, as in ``Scoring``.
        paired: whether run i of all systems shares data order and initial weights.
        pool_runs: whether systems are of one recipe and vary alike from run to run: the runs of all estimate one
            variance, which has more power where runs are few, and errs where some vary more than others.
        untrained: names of systems that are not one of many trainings, such as BM25, a hosted model or a public
            checkpoint; each has one run, and nothing is said of other seeds.
        chosen: how systems were chosen: ``dev``, or by their scores on these data from several settings, by number or,
            where all are systems here, by names. Tests and intervals are corrected for that.
        simultaneous: add intervals that hold for every two systems of a dataset or average together, and such ranks.
        clusters: ``{query id: cluster id}``, or the path of a file with such lines, separated by a tab. Queries of one
            cluster (paraphrases, topics of one user) are no independent draws: intervals and tests are over clusters.
        topics: ``separate`` where ids of queries coincide on several datasets by chance; else queries with one id, or
            with one text, are one topic, drawn with all its datasets.
        predicted_qrels: judgments by a model, in the form of ``qrels``; with several datasets, of those that have some.
            Then ``qrels`` are those of people on a random sample of the queries, and the estimates are
            prediction-powered: right whatever the model's errors, and narrower the better it judges.
        groups: ``{query id: group}``, or the path of a file with such lines: differences by group, and whether they
            vary between groups, are in ``groups()`` then.

    Raises:
        UsageError: unknown names, metrics or allowances, or fewer than two systems.
        DataError: files or runs that cannot be read or compared.
    """
    if not isinstance(systems, Mapping):
        raise UsageError(f"the systems are a {type(systems).__name__}; give a dictionary of their runs by name")
    first = next(iter(qrels.values()), None) if isinstance(qrels, Mapping) else None
    inner = next(iter(first.values()), None) if isinstance(first, Mapping) else None
    # Of one dataset, a dictionary holds dictionaries of grades; of several, whatever judgments come as.
    several = isinstance(inner, Mapping) or not isinstance(first, Mapping | None)
    of_dataset = cast("dict[Any, str | QrelsContent]", qrels if several else {None: qrels})
    names = canonical_metrics(metrics)
    datasets = {name: judgments(_content(given), name, relevance_level, names) for name, given in of_dataset.items()}
    if predicted_qrels is not None:
        by_model = cast("dict[Any, Any]", predicted_qrels if several else {None: predicted_qrels})
        if wrong := [str(name) for name in by_model if name not in datasets]:
            raise UsageError(f"predicted_qrels: no dataset {wrong[0]!r}; there is {', '.join(map(str, datasets))}")
        datasets |= {name: datasets[name].with_predicted(_content(of), names) for name, of in by_model.items()}
    several_names = isinstance(untrained, Collection) and not isinstance(untrained, str)
    no_seed, sources = [*untrained] if several_names else [untrained], list[RunSource]()
    if unknown := [str(name) for name in no_seed if not isinstance(name, str) or name not in systems]:
        raise UsageError(f"untrained: {unknown_arm(unknown[0], systems)}")
    for system, given in systems.items():
        if problem := name_problem(system) if isinstance(system, str) else "is no text":
            raise UsageError(f"a system cannot be named {system!r}, which {problem}; choose another name")
        by_dataset = isinstance(given, Mapping) and several and not _is_run(given)
        held: Any = given if by_dataset else dict.fromkeys(datasets, given)
        if absent := [str(name) for name in datasets if name not in held]:
            raise UsageError(f"{system} has no run on {', '.join(absent)}; map every dataset's name to its runs")
        for name, judged in datasets.items():
            one = isinstance(held[name], str) or not isinstance(held[name], Sequence)
            runs = [_content(run) for run in ([held[name]] if one else held[name])]
            if not runs:
                raise UsageError(f"no run of {system}; give one or more")
            called = [str(run) if isinstance(run, Path) else f"{system} run {i}" for i, run in enumerate(runs)]
            if system in no_seed:
                refuse_draws(system, judged.dataset, called)
            for run, content in enumerate(runs):
                if by_dataset or not several or judged in judged_by(content, list(datasets.values())):
                    seed = None if system in no_seed else run
                    sources.append(RunSource(system, judged, seed, called[run], content))
    allowed = tuple(allow) if isinstance(allow, Iterable) and not isinstance(allow, str) else (allow,)
    scoring = Scoring(names, depth=depth, allow=allowed, paired=paired, pool_runs=pool_runs, topics=topics)
    ordered = in_order(list(systems), baseline)
    check_chosen(chosen or {}, ordered)
    grouped = None if clusters is None else Clusters.read(_content(clusters))
    kinds = None if groups is None else Groups.given(_content(groups))
    found = score_systems(sources, scoring, f"comparison of {', '.join(ordered)}", clusters=grouped, groups=kinds)
    how = {"correction": correction, "family": family, "chosen": chosen or {}, "simultaneous": simultaneous}
    return SystemComparison(found.results, ordered, baseline, pairs, warnings=found.warnings, **how)


def judge(
    results: AnyResults,
    gates: Registration | Mapping[str, Gate | Mapping[str, Any]] | Path | str | None = None,
    *,
    advisory: bool = False,
) -> Judgments:
    """Judge results by gates.

    Args:
        results: what ``load_all_results`` or ``compare`` gives, or an output folder.
        gates: gates by name, each with the keys of a gate file, ``looks`` among them; or a gate file. By default those
            registered in the folder, else default gates. Of gates given as data ``judgment.registered`` is false:
            nothing shows that they were fixed before the scores.
        advisory: judge gates on those of their datasets and seeds that have results.

    Raises:
        UsageError: a gate given as data is malformed.
        DataError: the gate file or the folder cannot be read, or a gate cannot be judged on these results.
    """
    loaded = given_results(results)
    if gates is None:
        registration = registered_in(loaded.output_dir) or default_gates(loaded)
    elif isinstance(gates, str | Path):
        registration = load_gates(Path(gates))
    else:
        registration = gates if isinstance(gates, Registration) else given_gates(gates)
    outcomes = judge_all(loaded, registration, advisory=advisory)
    if refused := [str(outcome.error) for outcome in outcomes if isinstance(outcome, Refusal)]:
        raise DataError("; ".join(refused))
    return Judgments(outcome for outcome in outcomes if isinstance(outcome, Judgment))


def compute_interference_metrics(results: Results) -> Judgments:
    """Judge every joint arm against its specialist: reranking against rank_only, embedding against emb_only.

    Returns:
        A judgment for each gate: those registered in the folder, and default gates for every other pair of arms.
        ``judgment.rows`` holds the finding on each dataset, ``judgment.found`` that over all of them.

    Raises:
        DataError: the folder's gate file is malformed.
    """
    return Judgments(Analysis(results).interference)


def compute_significance(results: Results, iterations: int = ITERATIONS, seed: int = 0) -> tuple[Comparison, ...]:
    """Compare arms in pairs: trained arms with their baselines, joint arms with specialists, systems with each other.

    ``iterations`` are resamples and permutations of the checks of each test, ``seed`` is of their random numbers.
    """
    return compare_arms(results, iterations=iterations, seed=seed)


def generate_plots(results: Results, output_path: Path | str) -> tuple[Path, ...]:
    """Draw every figure the results allow: scores, TIR, per-query differences, power, and what training logged.

    Returns:
        The PNG files in the folder ``output_path``; each has a PDF of the same name.
    """
    from unimoe.analysis.figures import save_all  # matplotlib is only loaded by those who draw

    return save_all(Analysis(results), Path(output_path))


def tir(results: AnyResults, specialist: str | None = None, joint: str | None = None) -> TIRs:
    """Return the TIR of joint arms with its interval, as numbers.

    Args:
        results: what ``load_all_results`` or ``compare`` gives, or an output folder.
        specialist: an arm or system; with ``joint`` given, only this pair is judged. Without both, arms pair by name
            (``rank_only_r8`` and ``joint_r8``). Either way the gates registered in the folder judge what they name.
        joint: the arm that does both tasks.

    Returns:
        A list with a row for each pair, task and dataset, and one over all datasets where there are several.
        ``pandas.DataFrame(rows)`` has a column for each field; ``rows.plot()`` draws and ``rows.save(folder)`` keeps.

    Raises:
        UsageError: one of the two arms is given alone, or has no results.
        DataError: the results cannot be read or compared.
    """
    loaded = given_results(results)
    if (specialist is None) != (joint is None):
        raise UsageError("give the specialist and the joint arm, or neither")
    pair = None if specialist is None or joint is None else (specialist, joint)
    judged = Analysis(loaded).interference if pair is None else _judge_pair(loaded, *pair)
    return TIRs.of(judged)


def _judge_pair(results: Results, specialist: str, joint: str) -> tuple[Judgment, ...]:
    """Judge one pair by the gates registered for it, and by default gates what these leave out."""
    if specialist == joint:
        raise UsageError(f"specialist and joint are both {joint!r}; name two arms")
    refuse_unknown((specialist, joint), results)
    asked = [ArmPair(task, specialist, joint) for task in TASKS]
    if not suites(results, asked):
        raise DataError(f"{results.output_dir}: {specialist} and {joint} have no dataset in common")
    registered = registered_in(results.output_dir) or Registration({})
    of_pair = {
        name: gate
        for name, gate in registered.gates.items()
        if isinstance(gate, InterferenceGate) and gate.arms == (specialist, joint)
    }
    registered = replace(registered, gates=of_pair)
    return (*judge(results, registered), *judge(results, default_gates(results, registered, asked)))


def _is_run(given: Mapping[str, Any]) -> bool:
    """Return whether it is ``{query id: {document id: score}}``, and no such run, path or list by dataset."""
    first = next(iter(given.values()), None)
    return isinstance(first, Mapping) and not isinstance(next(iter(first.values()), None), Mapping)


def _content(given: Any) -> Any:
    return Path(given) if isinstance(given, str) else given
