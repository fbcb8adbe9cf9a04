"""``unimoe parity``: whether two systems score the same pairs alike."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.models import ModelOptions, reranked
from unimoe.cli.options import Device, MaxQueries, Override, Threads
from unimoe.core.console import stderr, stdout
from unimoe.core.errors import UsageError, first_few

if TYPE_CHECKING:
    from unimoe.analysis.parity import Parity


def parity(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A result file, a folder of results, or a model as --model names it.")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Scores may differ by less than this share of their range, else the exit code is 10."),
    ] = 1e-3,
    ranking_tolerance: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="The first ten documents may change in this share of queries, else the exit code is 10."
        ),
    ] = 0.01,
    datasets: Annotated[
        str | None, typer.Option("--dataset", help="Collections that models are evaluated on, in place of the tier.")
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
    difference, as a share of the range of the scores, is below the tolerance, and no more rankings change than may,
    else 10.
    """
    from unimoe.analysis.parity import parity as compare_scores
    from unimoe.results import result_paths

    if not math.isfinite(tolerance):
        raise UsageError(f"--tolerance {tolerance}: no finite number")
    sides = [(name, result_paths(Path(name))) for name in (first, second)]
    place = output_dir or Path("outputs", "parity")
    options = ModelOptions(place, eval_tier, datasets, config, override, max_queries, device, threads)
    if (given := options.given()) and all(paths for _, paths in sides):
        raise UsageError(f"{given[0]} is for models, and both sides are results; leave it out")
    scored = iter(reranked([name for name, paths in sides if not paths], options, "parity"))
    found = [paths or next(scored) for _, paths in sides]
    comparisons = compare_scores(*found)
    if alone := sorted(found[0].keys() ^ found[1].keys()):
        stderr.print(f"not compared, since one side alone has it: {', '.join(alone)}", soft_wrap=True)
    if as_json:
        found_json = parity_json(comparisons, tolerance, ranking_tolerance)
        stdout.out(json.dumps(found_json, ensure_ascii=False, allow_nan=False))
    else:
        for comparison in comparisons:
            stdout.out("\n".join(parity_lines(comparison)))
        stdout.out(verdict_line(comparisons, tolerance, ranking_tolerance))
    if not all(one.within(tolerance, ranking_tolerance) for one in comparisons):
        raise typer.Exit(10)


def parity_lines(found: Parity) -> list[str]:
    """Return a comparison as lines of text."""
    from unimoe.analysis.parity import TOP

    query, document = found.largest_at
    lines = [
        f"{found.key}: {found.systems[0]} and {found.systems[1]}",
        f"  scores         {found.pairs:,} pairs of {found.queries:,} queries",
        f"  difference     largest {found.largest:.3g} (query {query}, document {document})",
        f"                 mean {found.mean:.3g}; the scores' range is {found.span:.3g}",
    ]
    if found.kendall_mean is not None and found.kendall_lowest is not None:
        low, where = found.kendall_lowest
        lines.append(f"  Kendall's tau  mean {found.kendall_mean:.4f}, lowest {low:.4f} (query {where})")
    changed = f" ({first_few(found.top_changed)})" if found.top_changed else ""
    lines.append(f"  top {TOP}         other in {len(found.top_changed):,} of {found.queries:,} queries{changed}")
    ends = found.measure.interval
    test = f"[{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends and not found.unfit else f"(no test: {found.unfit})"
    one, other = found.means
    lines.append(f"  {found.metric:<14} {one:.4f} and {other:.4f}: {found.measure.value:+.4f} {test}")
    return [*lines, *(f"  caveat         {line}" for line in found.caveats)]


def parity_json(found: Sequence[Parity], tolerance: float, ranking_tolerance: float) -> dict[str, Any]:
    """Return comparisons as plain data."""
    from pydantic_core import to_jsonable_python

    datasets = []
    for one in found:
        plain = asdict(one) | {"relative_difference": one.relative, "measure_difference": one.measure.as_json()}
        plain["largest_at"] = dict(zip(("query", "document"), one.largest_at, strict=True))
        plain["kendall_lowest"], plain["kendall_lowest_query"] = one.kendall_lowest or (None, None)
        names = {"largest": "largest_difference", "span": "range", "mean": "mean_difference"}
        del plain["measure"]
        datasets.append({names.get(name, name): value for name, value in plain.items()} | {"unfit": one.unfit or None})
    whole = {
        "tolerance": tolerance,
        "ranking_tolerance": ranking_tolerance,
        "largest": max((one.largest for one in found), default=0.0),
        "within": all(one.within(tolerance, ranking_tolerance) for one in found),
        "datasets": datasets,
    }
    return dict(to_jsonable_python(whole, inf_nan_mode="null"))


def verdict_line(found: Sequence[Parity], tolerance: float, ranking_tolerance: float) -> str:
    """Return a sentence about scores and one about rankings, each with its tolerance."""
    far, changed = max(found, key=lambda one: one.relative), max(found, key=lambda one: one.share_changed)
    rankings = f"the first ten documents change in {len(changed.top_changed):,} of {changed.queries:,} queries"
    if all(one.within(tolerance, ranking_tolerance) for one in found):
        return f"parity: no score differs by {tolerance:g} of the scores' range or more, and {rankings}"
    reasons = []
    if far.relative >= tolerance:
        share = f"{far.largest:.3g}, {far.relative:.2g} of their range ({far.key})"
        reasons.append(f"scores differ by up to {share}, tolerance {tolerance:g}")
        if all(one.kendall_lowest is None or one.kendall_lowest[0] == 1.0 for one in found):
            scales = "so the scores may be on two scales, as a margin and a probability are"
            reasons.append(f"the order is the same, {scales}")
    if changed.share_changed > ranking_tolerance:
        reasons.append(f"{rankings} ({changed.key}), tolerance {ranking_tolerance:g} of them")
    return f"no parity: {'; '.join(reasons)}"
