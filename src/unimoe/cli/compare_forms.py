"""The three forms of ``unimoe compare``: a verdict on runs, a table of runs, a table of a folder's results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.arms import Pair, arm_order
from unimoe.analysis.comparisons import Question, unknown_arm
from unimoe.analysis.drilldown import LIMIT, drilldown_table
from unimoe.analysis.gates.definitions import Gate, Registration, load_gates
from unimoe.analysis.gates.judging import Refusal, exit_code
from unimoe.analysis.gates.output import filled, gate_lines, gates_as_json
from unimoe.analysis.gates.registration import gate_of, registered_in
from unimoe.analysis.report.systems import systems_headlines
from unimoe.analysis.saved_comparison import MARKER, Test, save_comparison
from unimoe.analysis.systems import Pairs, SystemComparison, compare_systems, comparison_row, in_order
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import comparisons_table
from unimoe.analysis.tables.scores import generate_comparison_table
from unimoe.cli.run_files import (
    PLACE,
    Pattern,
    name_systems,
    read_queries,
    select_datasets,
    select_keys,
    select_runs,
    two_arms,
)
from unimoe.core.console import print_error, stderr, stdout
from unimoe.core.errors import UsageError
from unimoe.core.grouping import gathered
from unimoe.metrics import DEFAULT_METRICS, canonical_metric
from unimoe.results.comparability import with_metrics
from unimoe.results.folder import Results, load_all_results
from unimoe.results.runs.building import TASK, ScoredSystems, score_systems
from unimoe.results.runs.scoring import ScoredRun, Scoring

_METRIC = "ndcg@10"

_RECORDED = (
    "specialist",
    "joint",
    "baseline",
    "systems",
    "dataset",
    "qrels",
    "relevance_level",
    "depth",
    "allow",
    "looks",
)
"""The options that say what was compared."""


@dataclass(frozen=True)
class Request:
    """The options of the command by name, which its help explains; what was not given is None or empty."""

    specialist: Sequence[str]
    joint: Sequence[str]
    names: tuple[str, str]
    gates: Path | None
    looks: Sequence[int]
    systems: Sequence[str]
    baseline: str | None
    pairs: Pairs
    metrics: Sequence[str]
    qrels: Path | None
    dataset: Sequence[str]
    relevance_level: int | None
    queries: str | None
    depth: int | None
    allow: Sequence[str]
    paired: bool
    output_dir: Path | None
    overwrite: bool
    iterations: int
    seed: int
    as_json: bool

    def given(self) -> list[str]:
        """Return the options that say what was compared, as the command line has them."""
        options = {name.replace("_", "-"): value for name in _RECORDED if (value := getattr(self, name))}
        given = [f"--{name} {' '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in options.items()]
        return [*given, "--paired"] if self.paired else given


def judge_runs(request: Request) -> int:
    """Judge a joint model against its specialist, print and keep the judgment, and return the exit code.

    Raises:
        UsageError: wrong or contradictory options.
        DataError: files that cannot be read or compared.
    """
    specialist, joint = request.names
    patterns = two_arms(request.names, request.specialist, request.joint)
    if len(request.metrics) > 1:
        asked = " ".join(request.metrics)
        raise UsageError(
            f"--metric {asked}: a verdict is on one metric; give one, or compare --systems, which shows all"
        )
    gates = _gates(request)
    of_gates = [gate.metric for gate in gates.gates.values()] if gates else []
    metrics = request.metrics or of_gates[:1] or [_METRIC]
    scored = _score(request, patterns, f"{joint} against {specialist}", metrics, [*of_gates, *DEFAULT_METRICS])
    results = scored.results
    if gates is None:
        datasets = list(dict.fromkeys(run.source.judged.dataset for run in scored.runs))
        gates = Registration({"interference": _gate(request, datasets, results.results[0].main_metric)})
    questions = [Question(key, joint, specialist) for key in results.dataset_keys]
    if request.output_dir is not None:
        gates = save_comparison(results, gates, _tests(questions), overwrite=request.overwrite) or gates
    analysis = Analysis(results, gates, questions=questions, iterations=request.iterations, seed=request.seed)
    report = _written(request, analysis)
    if request.as_json:
        _print_json(
            results,
            scored,
            gates=gates_as_json(analysis.registration, analysis.outcomes, analysis.decisive),
            comparisons=[comparison_row(comparison) for comparison in analysis.comparisons],
            drilldown=[
                {"gate": gate, "dataset": dataset, **asdict(case)}
                for (gate, dataset), cases in analysis.cases.items()
                for case in cases[:LIMIT]
            ],
        )
    else:
        _print_verdict(analysis)
    _say_where(request, report)
    if request.gates is None:
        return 0
    for outcome in analysis.decisive:
        if isinstance(outcome, Refusal):
            print_error(outcome.error)
    return exit_code(analysis.decisive)


def _gate(request: Request, datasets: Sequence[str], metric: str) -> Gate:
    looks = list(request.looks) or None
    try:
        return gate_of(Pair(TASK, *request.names), datasets=datasets, metric=metric, looks=looks)
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UsageError(f"--looks {' '.join(map(str, request.looks))}: {reason}") from None


def tabulate_runs(request: Request) -> None:
    """Compare systems given as run files, print the table, and keep it; errors are those of ``judge_runs``."""
    first = [Pattern.parse("--baseline", request.baseline)] if request.baseline else []
    patterns = name_systems([*first, *(Pattern.parse("--systems", text) for text in request.systems)])
    baseline = next(iter(patterns)) if request.baseline else None
    ordered = in_order(list(patterns), baseline)
    scored = _score(request, patterns, f"comparison of {', '.join(ordered)}", request.metrics or [_METRIC])
    found = _compared(request, scored.results, ordered, baseline)
    if request.output_dir is not None:
        save_comparison(scored.results, None, _tests(found.questions), overwrite=request.overwrite)
    _tabulate(request, found, scored)


def tabulate_folder(request: Request, folder: Path) -> None:
    """Compare arms of a folder of results, print the table, and keep it; errors are those of ``judge_runs``."""
    held = load_all_results(folder, request.allow)
    known = sorted({result.config_name for result in held.results}, key=arm_order)
    wanted = list(dict.fromkeys([*([request.baseline] if request.baseline else []), *(request.systems or known)]))
    for arm in wanted:
        if arm not in known:
            raise UsageError(f"--results {folder}: {unknown_arm(arm, known)}")
    ordered, keys = in_order(wanted, request.baseline), select_keys(held.dataset_keys, request.dataset)
    metrics = [canonical_metric(name) for name in request.metrics]
    chosen = [with_metrics(r, metrics) for r in held.results if r.config_name in wanted and r.key in keys]
    results = Results(request.output_dir or folder, chosen, allow=request.allow)
    for note in results.notes(results.dataset_keys):
        stderr.print(f"warning: {note}", style="yellow", soft_wrap=True)
    found = _compared(request, results, ordered, request.baseline)
    if request.output_dir is not None:
        if request.output_dir.resolve() == folder.resolve():
            raise UsageError(f"--output-dir {folder} is what --results reads; choose another folder")
        gates = registered_in(folder)
        save_comparison(results, gates, _tests(found.questions), overwrite=request.overwrite, source=folder)
    _tabulate(request, found, None)


def _compared(request: Request, results: Results, systems: Sequence[str], baseline: str | None) -> SystemComparison:
    return compare_systems(results, systems, baseline, request.pairs, iterations=request.iterations, seed=request.seed)


def _tests(questions: Sequence[Question]) -> list[Test]:
    return [(question.key, question.system, question.baseline) for question in questions]


def _tabulate(request: Request, found: SystemComparison, scored: ScoredSystems | None) -> None:
    report = _written(request, found.analysis)
    if request.as_json:
        _print_json(
            found.results,
            scored,
            baseline=found.baseline,
            pairs=found.pairs,
            correction=found.correction,
            family=found.family,
            scores=found.score_rows,
            comparisons=found.test_rows,
        )
    else:
        _print_systems(found)
    _say_where(request, report)


def _gates(request: Request) -> Registration | None:
    """Return the gates given, else those that the output folder holds already, but not those of what is replaced."""
    folder = request.output_dir
    if request.gates is not None:
        return load_gates(request.gates)
    if folder is None or (request.overwrite and (folder / MARKER).exists()):
        return None
    return registered_in(folder)


def _score(
    request: Request,
    patterns: Mapping[str, Sequence[Pattern]],
    experiment: str,
    metrics: Sequence[str],
    others: Sequence[str] = (),
) -> ScoredSystems:
    """Find, read and score runs; say on stderr what was read, and what to know before the numbers are believed."""
    scoring = Scoring(tuple(metrics), tuple(others), request.depth, tuple(request.allow), request.paired)
    datasets = select_datasets(request.qrels, request.dataset, request.relevance_level)
    if request.queries:
        files = [Path(request.queries.replace(PLACE, judged.dataset)) for judged in datasets]
        datasets = [replace(judged, texts=read_queries(path)) for judged, path in zip(datasets, files, strict=True)]
    sources = select_runs(patterns, datasets, in_order=request.paired)
    folder = request.output_dir or Path()
    scored = score_systems(sources, scoring, experiment, given=request.given(), output_dir=folder, on_run=_say_read)
    for warning in scored.warnings:
        stderr.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    return scored


def _written(request: Request, analysis: Analysis) -> Path | None:
    """Write tables, figures and the report where an output folder is given, and return the report's path.

    That comes before the first line is printed: a pager that quits closes the pipe, which ends the command there.
    """
    if request.output_dir is None:
        return None
    from unimoe.analysis.report import write_report

    return write_report(analysis)


def _say_where(request: Request, report: Path | None) -> None:
    if report is not None:
        (stderr if request.as_json else stdout).print(f"\nReport: {report}", soft_wrap=True)


def _say_read(run: ScoredRun) -> None:
    source = run.source
    where = f"{source.system} seed {source.seed} on {source.judged.dataset}, depth {run.depth:,}"
    stderr.print(f"read {run.source.name}: {where}", style="dim", soft_wrap=True)


def _print_verdict(analysis: Analysis) -> None:
    """Print the judgment of two arms with their scores and the queries that differ most."""
    stdout.out(gate_lines(analysis.registration, analysis.outcomes))
    stdout.out(f"\n{_levels(analysis.results)}\n")
    _print_table(generate_comparison_table(analysis.results, analysis.tests))
    for item in analysis.judgments:
        for row in item.rows:
            if cases := analysis.cases[item.name, row.datasets[0]]:
                _print_table(drilldown_table(cases, item.gate, row.datasets[0]))


def _print_systems(found: SystemComparison) -> None:
    """Print the table of systems, and every test between them."""
    for sentence in systems_headlines(found.results, found.comparisons):
        stdout.out(filled(sentence))
    stdout.out(filled(f"{found.summary}. {_levels(found.results)}"))
    stdout.print()
    overview, columns = found.overview(), {metric for result in found.results.results for metric in result.aggregate}
    if overview.groups:
        _print_table(overview)
    if not overview.groups or len(columns) > 1:
        _print_table(found.table())
    _print_table(comparisons_table(found.results, found.comparisons))


def _print_table(table: Table) -> None:
    stdout.print(table.to_rich(), crop=False)
    stdout.print()


def _levels(results: Results) -> str:
    """Say from which grade on a document counted as relevant."""
    levels = gathered((first.relevance_level, first.dataset) for first in results.firsts)
    return "; ".join(f"Relevance level {level} on {', '.join(names)}" for level, names in levels.items()) + "."


def _print_json(results: Results, scored: ScoredSystems | None, **own: Any) -> None:
    """Print datasets, runs, and what to know before believing the numbers; then what one form alone has."""
    of_system = gathered((run.source.system, run) for run in scored.runs) if scored else {}
    common = {
        "datasets": {
            first.key: {
                "task": first.task,
                "metric": first.main_metric,
                "queries": len(first.per_query),
                "relevance_level": first.relevance_level,
            }
            for first in results.firsts
        },
        "runs": [_run_as_json(results, run) for runs in of_system.values() for run in runs],
        "caveats": list(results.caveats),
        "warnings": scored.warnings if scored else [],
    }
    stdout.out(json.dumps(to_jsonable_python(common | own, inf_nan_mode="null"), ensure_ascii=False))


def _run_as_json(results: Results, run: ScoredRun) -> dict[str, Any]:
    source = run.source
    result = results.result(source.system, source.seed, f"{TASK}/{source.judged.dataset}")
    return {
        "system": source.system,
        "dataset": source.judged.dataset,
        "seed": source.seed,
        "path": run.source.name,
        "depth": run.depth,
        "hash": run.digest,
        "missing_queries": run.missing,
        "scores": result.aggregate if result else {},
    }
