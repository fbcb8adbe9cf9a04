"""The analysis on disk: ``{output_dir}/analysis/report.html`` and ``report.md``, with tables and figures.

``pages`` gathers what there is to say and sets it twice. Each file is written whole or not at all.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

from unimoe.analysis.analysis import Analysis, SystemComparison
from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.report.pages import gather, page
from unimoe.analysis.saved_comparison import CORRECTED, SUBFOLDER, save_comparison
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import comparisons_table, judged_table, standings_table
from unimoe.analysis.tables.gates import gates_table
from unimoe.analysis.tables.groups import groups_table
from unimoe.analysis.tables.mteb import mteb_table, mteb_tasks_table
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table, training_table
from unimoe.core.errors import UsageError
from unimoe.core.io import atomic_dir, write_text
from unimoe.core.limits import name_problem

__all__ = ["SUBFOLDER", "gather", "keep_comparison", "write_figures", "write_report", "write_tables"]


def write_report(analysis: Analysis) -> Path:
    """Write the whole analysis in place of an earlier one, and return ``report.html``; with ``report.md`` next to it.

    Raises:
        DataError: the output folder's gate file is malformed.
    """
    from unimoe.analysis.figures import all_figures, save, to_svg  # matplotlib is only loaded by those who draw

    contents = gather(analysis, write_tables(analysis))
    target = analysis.results.output_dir / SUBFOLDER
    with atomic_dir(target / "figures") as folder:
        figures = [
            {
                "name": drawing.name,
                "file": save(drawing.figure, folder / drawing.name).name,
                "caption": drawing.caption,
                "svg": to_svg(drawing.figure, drawing.name),
                "inches": drawing.figure.get_figwidth(),  # in print, so that text has one size on the page as well
                "leads": drawing.leads,
            }
            for drawing in all_figures(analysis)
        ]
    for name in ("report.md", "report.html"):
        write_text(target / name, page(f"{name}.j2", contents, figures))
    return target / "report.html"


def keep_comparison(
    compared: SystemComparison, folder: Path, gates: Registration | None, *, overwrite: bool, source: Path | None = None
) -> Path:
    """Keep a comparison with its report in a folder, and return the folder; the rest is as in ``save_comparison``."""
    for system in compared.systems:
        if problem := name_problem(system, is_folder=True):
            raise UsageError(f"{system!r} {problem}, and each system is kept in one; choose another name for it")
    kept = copy(compared)  # what was computed stays, save what rests on the folder
    kept.results = copy(compared.results)
    kept.results.output_dir = folder
    for answer in ("registration", "outcomes", "cases", "by_group"):
        vars(kept).pop(answer, None)
    tests = [(question.key, question.system, question.baseline) for question in compared.questions]
    tested = {name: getattr(compared, name) for name in CORRECTED}
    save_comparison(kept.results, gates, tests, overwrite=overwrite, source=source, **tested)
    write_report(kept)
    return folder


def write_tables(analysis: Analysis) -> list[Table]:
    """Write every table with something in it as Markdown, LaTeX and CSV to ``analysis/tables``, and return them.

    Differences come before scores, details last; where seeds or datasets are few, some tables have no rows.
    """
    results, comparisons = analysis.results, analysis.comparisons
    tables = (
        gates_table(analysis.outcomes),
        comparisons_table(results, comparisons),
        standings_table(results, comparisons),
        judged_table(results, comparisons),
        groups_table(results, analysis.by_group),
        overview_table(results, comparisons),
        mteb_table(results),
        training_table(results),
        generate_comparison_table(results, analysis.all_comparisons),
        mteb_tasks_table(results),
    )
    kept = [table for table in tables if table.groups]
    with atomic_dir(analysis.results.output_dir / SUBFOLDER / "tables") as folder:
        for table in kept:
            table.write(folder)
    return kept


def write_figures(analysis: Analysis) -> tuple[Path, ...]:
    """Draw every figure as PDF and PNG to ``analysis/figures``, and return the PNG files."""
    from unimoe.analysis.figures import save_all  # matplotlib is only loaded by those who draw

    final = analysis.results.output_dir / SUBFOLDER / "figures"
    with atomic_dir(final) as folder:
        return tuple(final / path.name for path in save_all(analysis, folder))
