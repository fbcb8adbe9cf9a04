"""``unimoe parity``: whether two systems score the same pairs alike."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.models import ModelOptions, reranked
from unimoe.cli.options import Device, MaxQueries, Override, Threads
from unimoe.console import stderr, stdout
from unimoe.errors import UsageError, first_few

if TYPE_CHECKING:
    from unimoe.analysis.parity import Parity

NO_PARITY = 10
"""The exit code where scores differ by the tolerance or more."""

_OUTPUTS = Path("outputs", "parity")


def parity(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A result file, a folder of results, or a model as --model names it.")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Scores may differ by less than this; the exit code is 10 beyond it.")
    ] = 1e-3,
    datasets: Annotated[
        str | None, typer.Option(help="Collections that models are evaluated on, in place of the tier.")
    ] = None,
    eval_tier: Annotated[str | None, typer.Option(help="Their tier, as of evaluate; by default bundled.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings of the models and their evaluation.")] = None,
    override: Override = None,
    max_queries: MaxQueries = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Where models' results go, a folder each; by default outputs/parity.")
    ] = None,
    device: Device = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of lines.")] = False,
) -> None:
    """Compare the scores that two systems give the same pairs.

    For each dataset it prints the largest and mean difference of scores, Kendall's tau of the rankings, the queries
    whose first ten documents change, and the difference of the main measure with its interval. Results are compared
    as they are; a model is evaluated by reranking first, and keeps its results. The exit code is 0 when the largest
    difference is below the tolerance, else 10.
    """
    from unimoe.analysis.parity import compare_scores
    from unimoe.results.reranked import result_paths

    if not math.isfinite(tolerance):
        raise UsageError(f"--tolerance {tolerance}: no finite number")
    sides = [(name, result_paths(Path(name))) for name in (first, second)]
    options = ModelOptions(output_dir or _OUTPUTS, eval_tier, datasets, config, override, max_queries, device, threads)
    if (given := options.given()) and all(paths for _, paths in sides):
        raise UsageError(f"{given[0]} is for models, and both sides are results; leave it out")
    found = [paths or reranked(name, options, "parity") for name, paths in sides]
    comparisons = compare_scores(*found)
    if alone := sorted(found[0].keys() ^ found[1].keys()):
        stderr.print(f"not compared, since one side alone has it: {', '.join(alone)}", soft_wrap=True)
    if as_json:
        stdout.out(json.dumps(parity_json(comparisons, tolerance), ensure_ascii=False, allow_nan=False))
    else:
        for comparison in comparisons:
            stdout.out("\n".join(parity_lines(comparison)))
        stdout.out(verdict_line(comparisons, tolerance))
    if max(comparison.largest for comparison in comparisons) >= tolerance:
        raise typer.Exit(NO_PARITY)


def parity_lines(found: Parity) -> list[str]:
    """Return a comparison as lines of text."""
    from unimoe.analysis.parity import TOP

    lines = [f"{found.key}: {found.systems[0]} and {found.systems[1]}"]
    query, document = found.largest_at
    lines.append(f"  scores         {found.pairs:,} pairs of {found.queries:,} queries")
    lines.append(f"  difference     largest {found.largest:.3g} (query {query}, document {document})")
    lines.append(f"                 mean {found.mean:.3g}")
    if found.kendall_mean is not None and found.kendall_lowest is not None:
        low, where = found.kendall_lowest
        lines.append(f"  Kendall's tau  mean {found.kendall_mean:.4f}, lowest {low:.4f} (query {where})")
    changed = f" ({first_few(found.top_changed)})" if found.top_changed else ""
    lines.append(f"  top {TOP}         other in {len(found.top_changed):,} of {found.queries:,} queries{changed}")
    ends = found.measure.interval
    test = f"[{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends and not found.unfit else f"(no test: {found.unfit})"
    one, other = found.means
    lines.append(f"  {found.metric:<14} {one:.4f} and {other:.4f}: {found.measure.value:+.4f} {test}")
    return lines


def parity_json(found: Sequence[Parity], tolerance: float) -> dict[str, Any]:
    """Return comparisons as plain data."""
    datasets = [
        {
            "key": one.key,
            "systems": list(one.systems),
            "queries": one.queries,
            "pairs": one.pairs,
            "largest_difference": one.largest,
            "largest_at": {"query": one.largest_at[0], "document": one.largest_at[1]},
            "mean_difference": one.mean,
            "kendall_mean": one.kendall_mean,
            "kendall_lowest": one.kendall_lowest and one.kendall_lowest[0],
            "kendall_lowest_query": one.kendall_lowest and one.kendall_lowest[1],
            "top_changed": one.top_changed,
            "metric": one.metric,
            "means": list(one.means),
            "measure_difference": one.measure.as_json(),
            "unfit": one.unfit or None,
        }
        for one in found
    ]
    largest = max((one.largest for one in found), default=0.0)
    return {"tolerance": tolerance, "largest": largest, "within": largest < tolerance, "datasets": datasets}


def verdict_line(found: Sequence[Parity], tolerance: float) -> str:
    """Return a sentence about the largest difference and the tolerance."""
    worst = max(found, key=lambda one: one.largest)
    if worst.largest < tolerance:
        return f"parity: no score differs by {tolerance:g} or more"
    alike = all(one.kendall_lowest is None or one.kendall_lowest[0] == 1.0 for one in found)
    why = "; the order is the same, so the scores may be on two scales, as a margin and a probability are"
    return f"no parity: scores differ by up to {worst.largest:.3g} ({worst.key}), tolerance {tolerance:g}{why * alike}"
