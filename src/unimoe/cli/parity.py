"""``unimoe parity``: whether two systems score the same pairs alike."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.models import ModelOptions, reranked
from unimoe.cli.options import Device, MaxQueries, Override, Threads
from unimoe.console import stderr, stdout
from unimoe.errors import UsageError

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
    from unimoe.analysis.parity import compare_scores, parity_json, parity_lines, result_paths, verdict_line

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
