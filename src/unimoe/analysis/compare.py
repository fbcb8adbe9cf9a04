"""The public functions of the analysis: load an output folder, then ask.

    results = load_all_results("outputs")
    compute_interference_metrics(results).measured[0].rule
    generate_comparison_table(results).to_latex()

Light to import: no torch, no pandas, no pyplot, no scipy.stats.
"""

from __future__ import annotations

from pathlib import Path

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.interference import compute_interference_metrics
from unimoe.analysis.loading import Results, load_all_results
from unimoe.analysis.significance import compute_significance
from unimoe.analysis.summaries import generate_comparison_table

__all__ = [
    "Results",
    "compute_interference_metrics",
    "compute_significance",
    "generate_comparison_table",
    "generate_plots",
    "load_all_results",
]


def generate_plots(results: Results, output_path: Path | str) -> tuple[Path, ...]:
    """Draw every figure the results allow: scores, TIR, per-query differences, power, and what training logged.

    Args:
        results: what ``load_all_results`` returned.
        output_path: a folder, created when absent; figures of the same name are replaced.

    Returns:
        The PNG files; a PDF of the same name lies beside each.
    """
    from unimoe.analysis.figures import save_all  # matplotlib is only loaded by those who draw

    return save_all(Analysis(results), Path(output_path))
