"""The public functions of the analysis: load an output folder, then ask.

    results = load_all_results("outputs")
    compute_interference_metrics(results)[0].found.estimate.interval
    generate_comparison_table(results).to_latex()

or compare runs from anywhere: ``compare({"bm25": "bm25.trec", "mono": ["mono-1.trec", ...]}, "qrels.txt").frame()``.

Light to import: no torch, no pandas, no pyplot, no scipy.stats.
"""

from __future__ import annotations

from pathlib import Path

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import Comparison, compare_arms
from unimoe.analysis.from_python import compare
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.systems import SystemComparison
from unimoe.analysis.tables.scores import generate_comparison_table
from unimoe.results.folder import Results, load_all_results

__all__ = [
    "Results",
    "SystemComparison",
    "compare",
    "compute_interference_metrics",
    "compute_significance",
    "generate_comparison_table",
    "generate_plots",
    "load_all_results",
]


def compute_interference_metrics(results: Results) -> tuple[Judgment, ...]:
    """Judge every joint arm against its specialist: reranking against rank_only, embedding against emb_only.

    Returns:
        A judgment for each gate: those registered in the folder, and default gates for every other pair of arms.
        ``judgment.rows`` holds the finding on each dataset, ``judgment.found`` that over all of them.

    Raises:
        DataError: the folder's gate file is malformed.
    """
    return Analysis(results).interference


def compute_significance(results: Results, iterations: int = 10_000, seed: int = 0) -> tuple[Comparison, ...]:
    """Compare arms in pairs: trained arms with their baselines, joint arms with specialists, systems with each other.

    Args:
        results: what ``load_all_results`` returned.
        iterations: resamples and permutations of the checks beside each test.
        seed: of their random numbers.

    Raises:
        UsageError: no iterations.
    """
    return compare_arms(results, iterations=iterations, seed=seed)


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
