"""The analysis on disk: ``{output_dir}/analysis/report.md`` with its tables and figures beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from unimoe.analysis.compare import generate_plots
from unimoe.analysis.interference import InterferenceMetrics, compute_interference_metrics
from unimoe.analysis.loading import Results
from unimoe.analysis.significance import ITERATIONS, Comparison, compute_significance
from unimoe.analysis.summaries import (
    arm_order,
    generate_comparison_table,
    interference_table,
    significance_table,
    training_table,
)
from unimoe.analysis.tables import Table, escape_markdown
from unimoe.analysis.verdict import verdict_block, verdicts
from unimoe.io import atomic_dir, hash_json, write_text
from unimoe.results import EvalResult

__all__ = ["SUBFOLDER", "verdict_block", "write_figures", "write_report", "write_tables"]

SUBFOLDER = "analysis"

_TITLES = {
    "interference": "Task interference",
    "comparison": "Scores",
    "significance": "Paired comparisons",
    "training": "Training budgets",
}
_READING = (
    "How to read this. TIR is the share of the specialist's score that the joint model loses: (specialist - joint) / "
    "specialist. PASS means that interference is confirmed, which speaks for separate experts and against the joint "
    "model; a negative TIR is synergy. The rule looks at the mean over seeds alone: 2 % or more is PASS, below 1 % "
    "FAIL, between them MARGINAL. The label with confidence also asks whether other seeds and other queries would "
    "agree, and is INCONCLUSIVE unless one region holds .90. Trust that one."
)


def write_report(results: Results, iterations: int = ITERATIONS, seed: int = 0) -> Path:
    """Write the whole analysis; what an earlier one left in ``tables`` and ``figures`` goes.

    Args:
        results: what ``load_all_results`` returned.
        iterations: bootstrap resamples and permutations.
        seed: of the random numbers.

    Returns:
        The report.
    """
    metrics = compute_interference_metrics(results)
    comparisons = compute_significance(results, iterations=iterations, seed=seed)
    tables = write_tables(results, metrics, comparisons)
    figures = write_figures(results)
    path = results.output_dir / SUBFOLDER / "report.md"
    settings = f"{iterations:,} bootstrap resamples and permutations, random seed {seed}"
    write_text(path, "\n\n".join(_sections(results, metrics, tables, figures, settings)) + "\n")
    return path


def _all_tables(results: Results, metrics: InterferenceMetrics, comparisons: Sequence[Comparison]) -> list[Table]:
    """The tables with something in them, verdict first."""
    tables = [
        interference_table(results, metrics),
        generate_comparison_table(results),
        significance_table(results, comparisons),
        training_table(results),
    ]
    return [table for table in tables if table.groups]


def write_tables(results: Results, metrics: InterferenceMetrics, comparisons: Sequence[Comparison]) -> list[Table]:
    """Write every table as Markdown, LaTeX and CSV to ``analysis/tables``, and return them."""
    tables = _all_tables(results, metrics, comparisons)
    with atomic_dir(results.output_dir / SUBFOLDER / "tables") as folder:
        for table in tables:
            table.write(folder)
    return tables


def write_figures(results: Results) -> tuple[Path, ...]:
    """Draw every figure to ``analysis/figures``, and return the PNG files."""
    final = results.output_dir / SUBFOLDER / "figures"
    with atomic_dir(final) as folder:
        drawn = generate_plots(results, folder)
    return tuple(final / path.name for path in drawn)


def _sections(
    results: Results, metrics: InterferenceMetrics, tables: Sequence[Table], figures: Sequence[Path], settings: str
) -> Iterator[str]:
    yield f"# {escape_markdown(results.results[0].identity.experiment)}: what the results say"
    if results.caveats:
        yield "\n".join(f"> **Caveat:** {escape_markdown(caveat)}" for caveat in results.caveats)
    yield "## Verdict"
    for verdict in verdicts(metrics):
        yield f"**{escape_markdown(verdict.heading)}**"
        yield "\n".join(f"- {name}: {escape_markdown(text)}" for name, text in verdict.lines)
    yield _READING
    for table in tables:
        yield f"## {_TITLES[table.name]}"
        yield table.to_markdown().rstrip()
    yield "## Figures"
    yield "\n\n".join(f"![{path.stem}](figures/{path.name})" for path in figures)
    yield "## What is missing"
    yield "\n".join(f"- {escape_markdown(line)}" for line in _missing_parts(results, metrics)) or "Nothing."
    yield "## Provenance"
    yield "\n".join(f"- {escape_markdown(line)}" for line in [*_provenance(results), f"Analysis: {settings}."])


def _missing_parts(results: Results, metrics: InterferenceMetrics) -> Iterator[str]:
    """What the analysis would have used and did not find, a line each."""
    for absent in metrics.missing:
        place = absent.dataset or "any dataset"
        yield f"{absent.pair.task} on {place}: TIR not computable: {absent.reason}"
    for item in metrics.measured:
        if len(item.seeds) < 2:
            yield f"{item.pair.task} on {item.dataset}: one seed in common; an interval needs two, and three are usual"
        for left in item.left_out:
            yield f"{item.pair.task} on {item.dataset}: {left} has no counterpart"
    trained = sorted({(r.config_name, r.seed) for r in results.results if r.seed is not None})
    without = [f"{name} seed {seed}" for name, seed in trained if not results.logs.get((name, seed))]
    if without:
        yield f"no training log of {', '.join(without)}"


def _provenance(results: Results) -> Iterator[str]:
    """Facts that all results share in one line each; facts that differ with the results they belong to."""
    facts: list[tuple[str, Callable[[EvalResult], str | None]]] = [
        ("base model", lambda r: r.identity.base_model),
        ("prompt", lambda r: r.identity.prompt),
        ("config", lambda r: hash_json(r.config)),
        ("code", _code),
        ("platform", lambda r: f"{r.provenance.platform}, Python {r.provenance.python}"),
        ("packages", lambda r: ", ".join(f"{name} {v}" for name, v in sorted(r.provenance.packages.items())) or None),
        ("device", lambda r: " ".join(filter(None, (r.provenance.device, r.provenance.dtype)))),
        ("given by hand", lambda r: ", ".join(r.provenance.given) or None),
    ]
    for name, fact in facts:
        holders: dict[str, list[str]] = {}
        for result in results.results:
            value = fact(result)
            if value is not None:
                holders.setdefault(value, []).append(result.config_name)
        for value, arms in holders.items():
            yield f"{name}: {value}" + (f" ({_names(arms)})" if len(holders) > 1 else "")
    yield from _hashes(results)


def _hashes(results: Results) -> Iterator[str]:
    for key in results.dataset_keys:
        shared = {
            f"{name} {r.provenance.hashes[name]}"
            for r in results.measured(key)
            for name in ("collection", "candidates")
            if name in r.provenance.hashes
        }
        if shared:
            yield f"{key}: {', '.join(sorted(shared))}"
    for r in sorted(results.results, key=lambda r: (arm_order(r.config_name), r.seed or 0)):
        if "checkpoint" in r.provenance.hashes:
            yield f"{r.config_name} seed {r.seed}, {r.key}: checkpoint {r.provenance.hashes['checkpoint']}"


def _code(result: EvalResult) -> str | None:
    commit, dirty = result.provenance.git_commit, result.provenance.git_dirty
    return None if commit is None else f"{commit}{' with uncommitted changes' if dirty else ''}"


def _names(arms: Iterable[str]) -> str:
    return ", ".join(sorted(set(arms), key=arm_order))
