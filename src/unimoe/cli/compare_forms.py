"""The three forms of ``unimoe compare``: a verdict on runs, a table of runs, a table of a folder's results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.arms import Pair, arm_order
from unimoe.analysis.comparisons import unknown_arm
from unimoe.analysis.drilldown import LIMIT, drilldown_table
from unimoe.analysis.gates.definitions import Registration, load_gates
from unimoe.analysis.gates.judging import Refusal
from unimoe.analysis.gates.output import filled, gate_lines, gates_as_json
from unimoe.analysis.gates.registration import gate_of, registered_in
from unimoe.analysis.report.systems import systems_headlines
from unimoe.analysis.saved_comparison import MARKER, save_comparison
from unimoe.analysis.systems import Layout, SystemComparison, comparison_row, in_order
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import comparisons_table
from unimoe.analysis.tables.scores import generate_comparison_table
from unimoe.cli.run_files import Pattern, name_systems, select_keys
from unimoe.core.console import print_error, stderr, stdout
from unimoe.core.errors import UsageError
from unimoe.core.grouping import gathered
from unimoe.metrics import DEFAULT_METRICS, canonical_metrics
from unimoe.results.comparability import with_metrics
from unimoe.results.folder import Results, load_all_results
from unimoe.results.runs.building import TASK, ScoredSystems
from unimoe.results.runs.scoring import ScoredRun

_METRIC = "ndcg@10"

Patterns: TypeAlias = Mapping[str, Sequence[Pattern]]  # of run files, by system
Read: TypeAlias = Callable[..., ScoredSystems]  # from patterns, the comparison's name, metrics, and others to show
Tabulate: TypeAlias = Callable[..., SystemComparison]  # from results, systems, and their baseline


@dataclass(frozen=True)
class Output:
    """Where a comparison goes, and how: into a folder that keeps it, and to standard output."""

    folder: Path | None
    overwrite: bool
    as_json: bool
    layout: Layout

    def keep(self, table: SystemComparison, gates: Registration | None, source: Path | None = None) -> None:
        """Write results, gates and tests to the folder, where there is one; sidecars come from ``source``."""
        if self.folder is not None:
            tests = [(question.key, question.system, question.baseline) for question in table.questions]
            how = partial(save_comparison, correction=table.correction, family=table.family)
            how(table.results, gates, tests, overwrite=self.overwrite, source=source)

    def show(self, analysis: Analysis, print_text: Callable[[], None], plain: Callable[[], dict[str, Any]]) -> None:
        """Write the report to the folder, and print the comparison.

        The report comes before the first line: a pager that quits closes the pipe, which ends the command there.
        """
        from unimoe.analysis.report import write_report

        report = None if self.folder is None else write_report(analysis)
        if self.as_json:
            stdout.out(json.dumps(to_jsonable_python(plain(), inf_nan_mode="null"), ensure_ascii=False))
        else:
            print_text()
        if report is not None:
            (stderr if self.as_json else stdout).print(f"\nReport: {report}", soft_wrap=True)


def say_read(run: ScoredRun) -> None:
    """Say on stderr which run was read."""
    where = f"{run.source.system} seed {run.source.seed} on {run.source.judged.dataset}, depth {run.depth:,}"
    stderr.print(f"read {run.source.name}: {where}", style="dim", soft_wrap=True)


def warn(warnings: Iterable[str]) -> None:
    """Say on stderr what to know before the numbers are believed."""
    for warning in warnings:
        stderr.print(f"warning: {warning}", style="yellow", soft_wrap=True)


def judge_runs(
    arms: Patterns,
    metrics: Sequence[str],
    gates: Path | None,
    looks: Sequence[int],
    read: Read,
    tabulate: Tabulate,
    output: Output,
) -> Analysis:
    """Judge a joint model against its specialist, print and keep the judgment."""
    specialist, joint = arms
    if len(metrics) > 1:
        asked = " ".join(metrics)
        raise UsageError(
            f"--metric {asked}: a verdict is on one metric; give one, or compare --systems, which shows all"
        )
    registration = _registered(gates, output)
    of_gates = [gate.metric for gate in registration.gates.values()] if registration else []
    main = metrics or of_gates[:1] or [_METRIC]
    scored = read(arms, f"{joint} against {specialist}", main, [*of_gates, *DEFAULT_METRICS])
    results = scored.results
    if registration is None:
        datasets = list(dict.fromkeys(run.source.judged.dataset for run in scored.runs))
        try:
            pair, metric = Pair(TASK, specialist, joint), results.results[0].main_metric
            gate = gate_of(pair, datasets=datasets, metric=metric, looks=list(looks) or None)
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise UsageError(f"--looks {' '.join(map(str, looks))}: {reason}") from None
        registration = Registration({"interference": gate})
    # With a folder, the gates that judge are those that are registered there.
    table = tabulate(
        results, (specialist, joint), specialist, pairs="baseline", gates=None if output.folder else registration
    )
    output.keep(table, registration)
    analysis = table.analysis

    def plain() -> dict[str, Any]:
        return _as_json(results, scored) | {
            "gates": gates_as_json(analysis.registration, analysis.outcomes, analysis.decisive),
            "comparisons": [comparison_row(comparison) for comparison in analysis.comparisons],
            "drilldown": [
                {"gate": gate, "dataset": dataset, **asdict(case)}
                for (gate, dataset), cases in analysis.cases.items()
                for case in cases[:LIMIT]
            ],
        }

    output.show(analysis, lambda: _print_verdict(analysis), plain)
    for outcome in analysis.decisive if gates else ():
        if isinstance(outcome, Refusal):
            print_error(outcome.error)
    return analysis


def _registered(gates: Path | None, output: Output) -> Registration | None:
    """Return the gates given, else those that the output folder holds already, but not those of what is replaced."""
    if gates is not None:
        return load_gates(gates)
    if output.folder is None or (output.overwrite and (output.folder / MARKER).exists()):
        return None
    return registered_in(output.folder)


def tabulate_runs(
    given: Sequence[Pattern], metrics: Sequence[str], read: Read, tabulate: Tabulate, output: Output
) -> None:
    """Compare systems given as run files, print the table, and keep it; errors are those of ``judge_runs``."""
    patterns = name_systems(given)
    baseline = next(iter(patterns)) if given[0].option == "--baseline" else None
    ordered = in_order(list(patterns), baseline)
    scored = read(patterns, f"comparison of {', '.join(ordered)}", metrics or [_METRIC])
    table = tabulate(scored.results, ordered, baseline)
    output.keep(table, None)
    _show_table(table, scored, output)


def tabulate_folder(
    folder: Path,
    baseline: str | None,
    systems: Sequence[str],
    datasets: Sequence[str],
    metrics: Sequence[str],
    allow: Sequence[str],
    tabulate: Tabulate,
    output: Output,
) -> None:
    """Compare arms of a folder of results, print the table, and keep it; errors are those of ``judge_runs``."""
    held = load_all_results(folder, allow)
    known = sorted({result.config_name for result in held.results}, key=arm_order)
    wanted = list(dict.fromkeys([*([baseline] if baseline else []), *(systems or known)]))
    for arm in wanted:
        if arm not in known:
            raise UsageError(f"--results {folder}: {unknown_arm(arm, known)}")
    ordered, keys = in_order(wanted, baseline), select_keys(held.dataset_keys, datasets)
    names = canonical_metrics(metrics)
    chosen = [with_metrics(r, names) for r in held.results if r.config_name in wanted and r.key in keys]
    results = Results(output.folder or folder, chosen, allow=allow)
    warn(results.notes(results.dataset_keys))
    table = tabulate(results, ordered, baseline)
    if output.folder is not None and output.folder.resolve() == folder.resolve():
        raise UsageError(f"--output-dir {folder} is what --results reads; choose another folder")
    output.keep(table, registered_in(folder), folder)
    _show_table(table, None, output)


def _show_table(table: SystemComparison, scored: ScoredSystems | None, output: Output) -> None:
    def plain() -> dict[str, Any]:
        return _as_json(table.results, scored) | {
            "baseline": table.baseline,
            "pairs": table.pairs,
            "correction": table.correction,
            "family": table.family,
            "scores": table.score_rows,
            "comparisons": table.test_rows,
        }

    output.show(table.analysis, lambda: _print_systems(table, output.layout), plain)


def _print_verdict(analysis: Analysis) -> None:
    """Print the judgment of two arms with their scores and the queries that differ most."""
    stdout.out(gate_lines(analysis.registration, analysis.outcomes))
    stdout.out(f"\n{_levels(analysis.results)}\n")
    _print_table(generate_comparison_table(analysis.results, analysis.tests))
    for item in analysis.judgments:
        for row in item.rows:
            if cases := analysis.cases[item.name, row.datasets[0]]:
                _print_table(drilldown_table(cases, item.gate, row.datasets[0]))


def _print_systems(table: SystemComparison, layout: Layout) -> None:
    """Print the table of systems, and every test between them."""
    for sentence in systems_headlines(table.results, table.comparisons):
        stdout.out(filled(sentence))
    stdout.out(filled(f"{table.summary}. {_levels(table.results)}"))
    stdout.print()
    metrics = {metric for result in table.results.results for metric in result.aggregate}
    overview = table.overview()
    if overview.groups and layout == "systems":
        _print_table(overview)
    if layout == "datasets" or not overview.groups or len(metrics) > 1:
        _print_table(table.table(layout))
    _print_table(comparisons_table(table.results, table.comparisons))


def _print_table(table: Table) -> None:
    stdout.print(table.to_rich(), crop=False)
    stdout.print()


def _levels(results: Results) -> str:
    """Say from which grade on a document counted as relevant."""
    levels = gathered((first.relevance_level, first.dataset) for first in results.firsts)
    return "; ".join(f"Relevance level {level} on {', '.join(names)}" for level, names in levels.items()) + "."


def _as_json(results: Results, scored: ScoredSystems | None) -> dict[str, Any]:
    """Return datasets, runs, and what to know before believing the numbers, which every form has."""
    of_system = gathered((run.source.system, run) for run in scored.runs) if scored else {}
    return {
        "datasets": {
            first.key: {
                "task": first.task,
                "metric": first.main_metric,
                "queries": len(first.per_query),
                "relevance_level": first.relevance_level,
            }
            for first in results.firsts
        },
        "runs": [
            {
                "system": run.source.system,
                "dataset": run.source.judged.dataset,
                "seed": run.source.seed,
                "path": run.source.name,
                "depth": run.depth,
                "hash": run.digest,
                "missing_queries": run.missing,
                "scores": results[run.source.system][run.source.seed][f"{TASK}/{run.source.judged.dataset}"],
            }
            for runs in of_system.values()
            for run in runs
        ],
        "caveats": list(results.caveats),
        "warnings": scored.warnings if scored else [],
    }
