"""The command line of the analysis, behind ``scripts/analyze_results.py``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from unimoe.console import stderr, stdout

app = typer.Typer(add_completion=False, rich_markup_mode=None)


OutputDir = Annotated[Path, typer.Option(help="The experiment's folder; the analysis goes to its analysis/.")]


class Part(StrEnum):
    """What to make of the results."""

    ALL = "all"
    TABLES = "tables"
    FIGURES = "figures"
    REPORT = "report"


@app.command()
def analyze(
    part: Annotated[Part, typer.Argument(help="Tables and figures alone, the report, or all of it.")] = Part.ALL,
    output_dir: OutputDir = Path("outputs"),
    iterations: Annotated[int, typer.Option(min=1, help="Bootstrap resamples and permutations.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
) -> None:
    """Compare the arms of an experiment and say whether the joint model loses to the specialists.

    Works on what is there: missing arms, seeds and datasets are named and the rest is analysed.
    """
    from unimoe.analysis import report
    from unimoe.analysis.compare import (
        compute_interference_metrics,
        compute_significance,
        generate_comparison_table,
        load_all_results,
    )
    from unimoe.analysis.verdict import verdict_block

    results = load_all_results(output_dir)
    folder = output_dir / report.SUBFOLDER
    if part is Part.TABLES:
        metrics = compute_interference_metrics(results)
        for table in report.write_tables(results, metrics, compute_significance(results, 0.05, iterations, seed)):
            stdout.print(table.to_rich())
        stderr.print(f"tables: {folder / 'tables'}", soft_wrap=True)
    elif part is Part.FIGURES:
        for path in report.write_figures(results):
            stdout.print(str(path), soft_wrap=True)
    else:
        path = report.write_report(results, iterations, seed)
        if part is Part.ALL:
            stdout.print(generate_comparison_table(results).to_rich())
        stdout.print(verdict_block(results), soft_wrap=True)
        stdout.print(f"\nReport: {path}", soft_wrap=True)
