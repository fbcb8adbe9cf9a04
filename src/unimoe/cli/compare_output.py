"""What ``unimoe compare`` prints: a verdict, or a table of systems, as parts of text or as one JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from unimoe.analysis.analysis import SystemComparison, as_row
from unimoe.analysis.drilldown import LIMIT, TOP, drilldown_table
from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.gates.output import filled, gate_lines, gates_as_json
from unimoe.analysis.report.systems import systems_headlines
from unimoe.analysis.saved_comparison import CORRECTED
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import comparisons_table, judged_table, standings_table
from unimoe.analysis.tables.groups import groups_as_rows, groups_table
from unimoe.analysis.tables.scores import generate_comparison_table
from unimoe.checks import lines
from unimoe.cli.compare import Options
from unimoe.core.grouping import gathered
from unimoe.results.folder import Results
from unimoe.results.runs.building import TASK, ScoredSystems


class Compared(NamedTuple):
    """What a form compared, and what is kept with it."""

    table: SystemComparison
    scored: ScoredSystems | None  # the runs that were read
    gates: Registration | None
    source: Path | None = None  # a folder to keep the sidecars of, too
    missing: Sequence[str] = ()  # parts that the options name and that have no runs or judgments


def verdict_parts(table: SystemComparison) -> Iterable[str | Table]:
    """Yield the judgment of two arms, their scores and the queries that differ most."""
    yield gate_lines(table.registration, table.outcomes)
    yield from _at_risk(table)
    yield f"\n{_levels(table.results)}\n"
    yield generate_comparison_table(table.results, table.all_comparisons)
    if table.by_group:
        yield groups_table(table.results, table.by_group)
    for item in table.judgments:
        for row in item.rows:
            if cases := table.cases[item.name, row.datasets[0]]:
                yield drilldown_table(cases, item.gate, row.datasets[0])


def table_parts(options: Options, found: Compared) -> Iterable[str | Table]:
    """Yield judgments and what was found, the table of systems, every test, and the queries that differ most."""
    table = found.table
    if found.gates:
        yield f"{gate_lines(found.gates, table.decisive)}\n"
    yield from map(filled, systems_headlines(table.results, table.comparisons))
    yield from _at_risk(table)
    yield f"{filled(f'{table.summary}. {_levels(table.results)}')}\n"
    overview, metrics = table.table("datasets"), {m for result in table.results.results for m in result.aggregate}
    if overview.groups:
        yield overview
    if not overview.groups or (options.layout != "datasets" and len(metrics) > 1):
        yield table.table()
    of_pairs = (standings_table, judged_table)
    yield from (made for make in of_pairs if (made := make(table.results, table.comparisons)).groups)
    yield comparisons_table(table.results, table.comparisons)
    if table.by_group:
        yield groups_table(table.results, table.by_group)
    for of in table.drilled if options.queries else ():  # many pairs have fewer queries each
        cases, top = table.cases[of.name, of.found.datasets[0]], max(3, min(TOP, 3 * TOP // len(table.drilled)))
        if cases:
            yield drilldown_table(cases, of.gate, of.found.datasets[0], top)


def _at_risk(table: SystemComparison) -> Iterable[str]:
    """Yield which findings depend on equal scores or unjudged documents."""
    return (filled(f"Caveat: {line}.") for test in table.comparisons for line in lines(test.checks, "caveat"))


def _levels(results: Results) -> str:
    """Say from which grade on a document counted as relevant."""
    levels = gathered((first.relevance_level, first.dataset) for first in results.firsts)
    return "; ".join(f"Relevance level {level} on {', '.join(names)}" for level, names in levels.items()) + "."


def as_json(options: Options, found: Compared, *, verdict: bool) -> dict[str, Any]:
    """Return what was compared, and what to know before believing the numbers; then what was found."""
    table, results = found.table, found.table.results
    of_system = gathered((run.source.system, run) for run in found.scored.runs) if found.scored else {}
    plain = {
        "datasets": {
            first.key: {
                "task": first.task,
                "metric": first.main_metric,
                "queries": len(results.queries(first.key)),
                "labelled": len(first.per_query) if first.predicted else None,
                "predicted": first.predicted
                and {
                    "judgments": first.predicted.judgments,
                    "hash": first.predicted.hash,
                    "lambda": first.predicted.weights,
                },
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
        "clusters": results.cluster_numbers,
        "by_group": groups_as_rows(table.by_group),
        "caveats": list(results.caveats),
        "warnings": found.scored.warnings if found.scored else [],
        "checks": [asdict(check) for check in table.checks],
    }
    if verdict or found.gates:
        outcomes = table.outcomes if verdict else table.decisive
        plain["gates"] = gates_as_json(table.registration, outcomes, table.decisive)
    if verdict or options.queries:
        plain["drilldown"] = [
            {"gate": of.name, "dataset": of.found.datasets[0], "arms": of.gate.arms, **asdict(case)}
            for of in table.drilled
            for case in table.cases[of.name, of.found.datasets[0]][:LIMIT]
        ]
    if verdict:
        return plain | {"comparisons": list(map(as_row, table.comparisons))}
    return plain | {
        "baseline": table.baseline,
        "pairs": table.pairs,
        **{name: getattr(table, name) for name in CORRECTED},
        "pool_runs": results.pools_runs,
        "scores": table.score_rows,
        "comparisons": table.test_rows,
        "ranks": table.rank_rows,
    }
