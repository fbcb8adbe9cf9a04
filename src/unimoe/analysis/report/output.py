"""What an analysis leaves behind: tables, figures, and the report in two forms, each written whole or not at all."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from unimoe.analysis.across import across_table
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.background import in_background
from unimoe.analysis.gates.tables import gates_table, power_table, stability_table
from unimoe.analysis.loading import Results
from unimoe.analysis.report import html, markdown
from unimoe.analysis.report.contents import DrawnFigure, gather
from unimoe.analysis.summaries import (
    generate_comparison_table,
    interference_table,
    mteb_table,
    mteb_tasks_table,
    overview_table,
    significance_by_seed_table,
    significance_table,
    tir_table,
    tir_without_queries_table,
    training_table,
)
from unimoe.analysis.tables import Table
from unimoe.io import atomic_dir, write_text

SUBFOLDER = "analysis"


def write_report(analysis: Analysis) -> Path:
    """Write the whole analysis; what an earlier one left in ``tables`` and ``figures`` goes.

    Returns:
        ``report.html``; ``report.md`` lies beside it.

    Raises:
        DataError: the output folder's gate file is malformed.
    """
    _ = analysis.registration, analysis.across  # a malformed gate file ends here, and both processes need the rest
    with in_background(partial(_drawn, analysis)) as collect_figures:  # they take half of the time
        contents = gather(analysis, write_tables(analysis))
        figures = collect_figures()
    folder = analysis.results.output_dir / SUBFOLDER
    write_text(folder / "report.md", markdown.render(contents, figures))
    path = folder / "report.html"
    write_text(path, html.render(contents, figures))
    return path


def write_tables(analysis: Analysis) -> list[Table]:
    """Write every table with something in it as Markdown, LaTeX and CSV to ``analysis/tables``, and return them."""
    kept = [table for table in _all_tables(analysis) if table.groups]
    with atomic_dir(_subfolder(analysis.results, "tables")) as folder:
        for table in kept:
            table.write(folder)
    return kept


def write_figures(analysis: Analysis) -> tuple[Path, ...]:
    """Draw every figure as PDF and PNG to ``analysis/figures``, and return the PNG files."""
    from unimoe.analysis.figures import save_all  # matplotlib is only loaded by those who draw

    final = _subfolder(analysis.results, "figures")
    with atomic_dir(final) as folder:
        drawn = save_all(analysis, folder)
    return tuple(final / path.name for path in drawn)


def _all_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Verdict first, details last; where seeds or datasets are few, some have no rows."""
    results, metrics, comparisons = analysis.results, analysis.metrics, analysis.comparisons
    return (
        gates_table(analysis.outcomes),
        tir_table(results, metrics),
        across_table(analysis.across),
        stability_table(analysis.outcomes),
        power_table(analysis.outcomes),
        overview_table(results, comparisons),
        mteb_table(results),
        tir_without_queries_table(results, metrics),
        significance_table(results, comparisons),
        training_table(results),
        generate_comparison_table(results, comparisons),
        mteb_tasks_table(results),
        interference_table(results, metrics),
        significance_by_seed_table(results, comparisons),
    )


def _subfolder(results: Results, name: str) -> Path:
    return results.output_dir / SUBFOLDER / name


def _drawn(analysis: Analysis) -> tuple[DrawnFigure, ...]:
    """As ``write_figures``, each figure also for the page."""
    from unimoe.analysis.figures import all_figures, save, to_svg  # matplotlib is only loaded by those who draw

    with atomic_dir(_subfolder(analysis.results, "figures")) as folder:
        return tuple(
            DrawnFigure(
                file=save(drawing.figure, folder / drawing.name).name,
                caption=drawing.caption,
                svg=to_svg(drawing.figure, drawing.name),
                inches=drawing.figure.get_figwidth(),
            )
            for drawing in all_figures(analysis)
        )
