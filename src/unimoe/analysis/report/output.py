"""What an analysis leaves behind: tables, figures, and the report in two forms, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from unimoe.analysis.across import Across, across_table, compute_across
from unimoe.analysis.background import in_background
from unimoe.analysis.compare import generate_plots
from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.registration import registered_in, unregistered
from unimoe.analysis.gates.tables import gates_table, power_table, stability_table
from unimoe.analysis.interference import InterferenceMetrics, compute_interference_metrics
from unimoe.analysis.loading import Results
from unimoe.analysis.report import html, markdown
from unimoe.analysis.report.contents import DrawnFigure, gather
from unimoe.analysis.significance import ITERATIONS, Comparison, compute_significance
from unimoe.analysis.summaries import (
    generate_comparison_table,
    interference_table,
    overview_table,
    significance_by_seed_table,
    significance_table,
    tir_table,
    training_table,
)
from unimoe.analysis.tables import Table
from unimoe.io import atomic_dir, write_text

SUBFOLDER = "analysis"


def write_report(
    results: Results,
    iterations: int = ITERATIONS,
    seed: int = 0,
    registration: Registration | None = None,
    alpha: float = 0.05,
) -> Path:
    """Write the whole analysis; what an earlier one left in ``tables`` and ``figures`` goes.

    Args:
        results: what ``load_all_results`` returned.
        iterations: bootstrap resamples and permutations.
        seed: of the random numbers.
        registration: the gates to judge by; where left out, those registered in the output folder, else the rule's.
        alpha: intervals of the paired tests have level ``1 - alpha``.

    Returns:
        ``report.html``; ``report.md`` lies beside it.

    Raises:
        DataError: the output folder's gate file is malformed.
    """
    registration = registration or _registration(results)
    metrics, across = compute_interference_metrics(results), compute_across(results)
    settings = f"{iterations:,} bootstrap resamples and permutations, random seed {seed}"
    with in_background(partial(_drawn, results, metrics, across)) as collect_figures:  # they take half of the time
        outcomes = judge_all(results, registration)
        comparisons = compute_significance(results, alpha, iterations, seed)
        tables = _written(results, _all_tables(results, metrics, across, comparisons, outcomes))
        contents = gather(results, registration, outcomes, metrics, tables, settings)
        figures = collect_figures()
    folder = results.output_dir / SUBFOLDER
    write_text(folder / "report.md", markdown.render(contents, figures))
    path = folder / "report.html"
    write_text(path, html.render(contents, figures))
    return path


def write_tables(results: Results, metrics: InterferenceMetrics, comparisons: Sequence[Comparison]) -> list[Table]:
    """Write every table with something in it as Markdown, LaTeX and CSV to ``analysis/tables``, and return them."""
    outcomes = judge_all(results, _registration(results))
    return _written(results, _all_tables(results, metrics, compute_across(results), comparisons, outcomes))


def write_figures(results: Results) -> tuple[Path, ...]:
    """Draw every figure as PDF and PNG to ``analysis/figures``, and return the PNG files."""
    final = results.output_dir / SUBFOLDER / "figures"
    with atomic_dir(final) as folder:
        drawn = generate_plots(results, folder)
    return tuple(final / path.name for path in drawn)


def _registration(results: Results) -> Registration:
    return registered_in(results.output_dir) or unregistered(results)


def _all_tables(
    results: Results,
    metrics: InterferenceMetrics,
    across: Sequence[Across],
    comparisons: Sequence[Comparison],
    outcomes: Sequence[Judgment | Refusal],
) -> tuple[Table, ...]:
    """Verdict first, details last; where seeds or datasets are few, some have no rows."""
    return (
        gates_table(outcomes),
        tir_table(results, metrics),
        across_table(across),
        stability_table(outcomes),
        power_table(outcomes),
        overview_table(results, comparisons),
        significance_table(results, comparisons),
        training_table(results),
        generate_comparison_table(results, comparisons),
        interference_table(results, metrics),
        significance_by_seed_table(results, comparisons),
    )


def _written(results: Results, tables: Sequence[Table]) -> list[Table]:
    kept = [table for table in tables if table.groups]
    with atomic_dir(results.output_dir / SUBFOLDER / "tables") as folder:
        for table in kept:
            table.write(folder)
    return kept


def _drawn(results: Results, metrics: InterferenceMetrics, across: Sequence[Across]) -> tuple[DrawnFigure, ...]:
    """As ``write_figures``, each figure also for the page."""
    from unimoe.analysis.figures import all_figures, save, to_svg  # matplotlib is only loaded by those who draw

    with atomic_dir(results.output_dir / SUBFOLDER / "figures") as folder:
        return tuple(
            DrawnFigure(
                file=save(drawing.figure, folder / drawing.name).name,
                caption=drawing.caption,
                svg=to_svg(drawing.figure, drawing.name),
                inches=drawing.figure.get_figwidth(),
            )
            for drawing in all_figures(results, metrics, across)
        )
