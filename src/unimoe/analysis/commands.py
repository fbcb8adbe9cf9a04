"""The command line of the analysis, behind ``scripts/analyze_results.py``."""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from unimoe.console import print_error, stderr, stdout
from unimoe.errors import UsageError

KILL_GATE = Path("gates/kill_gate")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


OutputDir = Annotated[Path, typer.Option(help="The experiment's folder; the analysis goes to its analysis/.")]


class Part(StrEnum):
    """What to make of the results."""

    ALL = "all"
    TABLES = "tables"
    FIGURES = "figures"
    REPORT = "report"
    VERDICTS = "verdicts"


@app.command()
def analyze(
    part: Annotated[Part, typer.Argument(help="Tables, figures, the report, the gates' verdicts, or all.")] = Part.ALL,
    output_dir: OutputDir = Path("outputs"),
    iterations: Annotated[int, typer.Option(min=1, help="Bootstrap resamples and permutations.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    gates: Annotated[
        Path | None,
        typer.Option(
            help="verdicts: a gate file, or the name of a shipped one. By default the one registered in the "
            "experiment's folder, else gates/kill_gate."
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
            "candidates, metrics, max_queries, depth, collections. May be repeated; becomes a caveat everywhere."
        ),
    ] = None,
) -> None:
    """Compare the arms of an experiment and say whether the joint model loses to the specialists.

    Works on what is there: missing arms, seeds and datasets are named and the rest is analysed. ``verdicts`` judges
    gates and ends with 0 (all PASS: go on), 10 (FAIL), 11 (MARGINAL), 12 (INCONCLUSIVE, or advisory) or 3 (wrong data);
    everything else ends with 0 whatever the verdict.
    """
    if part is Part.VERDICTS:
        raise typer.Exit(judge_gates(output_dir, gates, advisory=advisory, as_json=as_json, allow=allow or ()))
    if gates or advisory or as_json:
        raise UsageError("--gates, --advisory and --json belong to verdicts: analyze_results.py verdicts --gates FILE")
    _analyze(part, output_dir, iterations, seed, allow or ())


def judge_gates(
    output_dir: Path,
    gates: Path | None = None,
    *,
    advisory: bool = False,
    as_json: bool = False,
    allow: Collection[str] = (),
) -> int:
    """Print what the gates say of an output folder; gates that cannot be judged are errors on stderr.

    Args:
        output_dir: the experiment's folder.
        gates: a gate file; None for the one registered in the folder, else the shipped kill gate.
        advisory: judge gates on those of their datasets and seeds that have results.
        as_json: print one JSON object in place of lines.
        allow: what may differ between arms, as in ``load_all_results``.

    Returns:
        The exit code: the worst gate counts, in the order 3, 10, 12, 11, 0.

    Raises:
        DataError: the gate file or the results cannot be read, or results do not belong side by side.
    """
    from unimoe.analysis.gates.definitions import load_gates
    from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge_all
    from unimoe.analysis.gates.output import gate_lines, gates_as_json
    from unimoe.analysis.gates.registration import registered_in
    from unimoe.analysis.loading import load_all_results

    here = registered_in(output_dir)
    registration = load_gates(gates) if gates else here or load_gates(KILL_GATE)
    if here and here.content_hash != registration.content_hash:
        stderr.print(f"note: {here.path} registers other gates, hash {here.content_hash}", soft_wrap=True)
    wanted = {(arm, f"{g.task}/{d}") for g in registration.gates.values() for d in g.datasets for arm in g.arms}
    outcomes = judge_all(load_all_results(output_dir, allow, only=wanted), registration, advisory=advisory)
    if as_json:
        stdout.out(json.dumps(gates_as_json(registration, outcomes), ensure_ascii=False, allow_nan=False))
    elif any(isinstance(outcome, Judgment) for outcome in outcomes):
        stdout.out(gate_lines(registration, outcomes))
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            print_error(outcome.error)
    return exit_code(outcomes)


def _analyze(part: Part, output_dir: Path, iterations: int, seed: int, allow: Collection[str]) -> None:
    from unimoe.analysis import report
    from unimoe.analysis.analysis import Analysis
    from unimoe.analysis.gates.output import gate_summary
    from unimoe.analysis.loading import load_all_results
    from unimoe.analysis.summaries import generate_comparison_table, mteb_table
    from unimoe.analysis.verdict import verdict_block

    results = load_all_results(output_dir, allow)
    analysis = Analysis(results, iterations=iterations, seed=seed)
    if part is Part.TABLES:
        for table in report.write_tables(analysis):
            stdout.print(table.to_rich(), crop=False)
        stderr.print(f"tables: {output_dir / report.SUBFOLDER / 'tables'}", soft_wrap=True)
    elif part is Part.FIGURES:
        for path in report.write_figures(analysis):
            stdout.print(str(path), soft_wrap=True)
    else:
        path = report.write_report(analysis)
        if part is Part.ALL:
            for table in (generate_comparison_table(results), mteb_table(results)):
                if table.groups:
                    stdout.print(table.to_rich(), crop=False)
        stdout.print(verdict_block(analysis), soft_wrap=True)
        if analysis.registration.path is not None:
            stdout.print(f"\n{gate_summary(analysis.registration, analysis.outcomes)}", soft_wrap=True)
        stdout.print(f"\nReport: {path} (or {path.with_suffix('.md').name} beside it)", soft_wrap=True)
