"""The command line of the analysis, behind ``scripts/analyze_results.py``."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import typer

from unimoe.cli.options import Iterations, ResamplingSeed
from unimoe.core.console import print_error, stderr, stdout
from unimoe.core.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


AnalysisPart = Literal["all", "tables", "figures", "report", "verdicts"]


@app.command()
def analyze(
    part: Annotated[
        AnalysisPart, typer.Argument(help="Tables, figures, the report, the gates' verdicts, or all.")
    ] = "all",
    output_dir: Annotated[
        Path, typer.Option(help="The experiment's folder; the analysis goes to its analysis/.")
    ] = Path("outputs"),
    iterations: Iterations = 10_000,
    seed: ResamplingSeed = 0,
    gates: Annotated[
        Path | None,
        typer.Option(
            help="A gate file, or the name of a shipped one. By default the one registered in the experiment's folder, "
            "else default gates."
        ),
    ] = None,
    advisory: Annotated[
        bool, typer.Option("--advisory", help="verdicts: a look ahead, on those of a gate's datasets that are there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="verdicts: print one JSON object.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare arms although this differs between them: queries (those all share are then compared), "
            "candidates, metrics, max_queries, depth, collections, duplicates. May be repeated; becomes a caveat "
            "everywhere."
        ),
    ] = None,
) -> None:
    """Compare the arms of an experiment and say whether the joint model loses to the specialists.

    Works on what is there: missing arms, seeds and datasets are named and the rest is analysed. ``verdicts`` judges
    gates and ends with 0 (all PASS: go on), 10 (FAIL), 11 (MARGINAL), 12 (INCONCLUSIVE, or advisory) or 3 (wrong data);
    everything else ends with 0 whatever the verdict.
    """
    if part == "verdicts":
        raise typer.Exit(judge_gates(output_dir, gates, advisory=advisory, as_json=as_json, allow=allow or ()))
    if advisory or as_json:
        raise UsageError("--advisory and --json belong to verdicts: analyze_results.py verdicts --json")
    _analyze(part, output_dir, gates, iterations, seed, allow or ())


def judge_gates(
    output_dir: Path,
    gates: Path | None = None,
    *,
    advisory: bool = False,
    as_json: bool = False,
    allow: Collection[str] = (),
) -> int:
    """Print what the gates find in an output folder, and return the exit code of the worst.

    The gates are those of a file, else those registered in the folder, else default gates; one that cannot be judged is
    an error on stderr. A DataError says that the file or the results cannot be read, or results do not belong together.
    """
    from unimoe.analysis.arms import ZERO_SHOT
    from unimoe.analysis.gates.definitions import load_gates
    from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge_all
    from unimoe.analysis.gates.output import exit_line, gate_lines, gates_as_json
    from unimoe.analysis.gates.registration import default_gates, registered_in
    from unimoe.results import result_path
    from unimoe.results.folder import load_all_results

    registration = load_gates(gates) if gates else registered_in(output_dir)
    only: set[tuple[str, str]] | None = None
    if registration is not None:  # other arms and datasets need not be read
        judged = list(registration.gates.values())
        only = {(arm, key) for gate in judged for arm in gate.needed for key in gate.keys}
        untrained = {(gate.task, dataset) for gate in judged for dataset in gate.datasets}
        only |= {
            (ZERO_SHOT, "/".join(at)) for at in untrained if result_path(output_dir, ZERO_SHOT, None, *at).is_file()
        }
    results = load_all_results(output_dir, allow, only=only)
    outcomes = judge_all(results, registration or default_gates(results), advisory=advisory)
    if as_json:
        found = gates_as_json(registration, outcomes, outcomes)
        stdout.out(json.dumps(found, ensure_ascii=False, allow_nan=False))
    elif items := [item for item in outcomes if isinstance(item, Judgment)]:
        stdout.out(f"{gate_lines(registration, items)}\n\n{exit_line(outcomes)}")
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            print_error(outcome.error)
    if not outcomes:
        why = "no gates are registered, and no joint arm has a specialist beside it"
        stderr.print(f"{output_dir}: {why}; give --gates FILE", soft_wrap=True)
    return exit_code(outcomes)


def _analyze(
    part: AnalysisPart, output_dir: Path, gates: Path | None, iterations: int, seed: int, allow: Collection[str]
) -> None:
    from unimoe.analysis import report
    from unimoe.analysis.analysis import Analysis
    from unimoe.analysis.gates.definitions import load_gates
    from unimoe.analysis.gates.output import gate_lines
    from unimoe.analysis.report.systems import systems_headlines
    from unimoe.analysis.tables.groups import groups_table
    from unimoe.analysis.tables.mteb import mteb_table
    from unimoe.analysis.tables.scores import generate_comparison_table
    from unimoe.results.folder import load_all_results

    def say(line: str) -> None:
        stdout.print(line, soft_wrap=True)

    results = load_all_results(output_dir, allow)
    analysis = Analysis(results, load_gates(gates) if gates else None, iterations=iterations, seed=seed)
    if part == "tables":
        for table in report.write_tables(analysis):
            stdout.print(table.to_rich())
        stderr.print(f"tables: {output_dir / report.SUBFOLDER / 'tables'}", soft_wrap=True)
        return
    if part == "figures":
        for path in report.write_figures(analysis):
            say(str(path))
        return
    path = report.write_report(analysis)
    if part == "all":
        scores = generate_comparison_table(results, analysis.all_comparisons)
        for table in (scores, mteb_table(results), groups_table(results, analysis.by_group)):
            if table.groups:
                stdout.print(table.to_rich())
    if analysis.outcomes:
        say(f"\n{gate_lines(analysis.registration, analysis.outcomes)}")
    else:
        for line in systems_headlines(results, analysis.comparisons):
            say(line)
    for absent in analysis.missing:
        say(f"No TIR of {absent.pair.task}{f' on {absent.dataset}' if absent.dataset else ''}: {absent.reason}")
    for caveat in results.caveats:
        say(f"Caveat: {caveat}")
    say(f"\nReport: {path} (or {path.with_suffix('.md').name} beside it)")
