"""``unimoe parity``: whether two systems score the same pairs alike."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import (
    Device,
    MaxQueries,
    Override,
    Threads,
    chosen_device,
    given_options,
    quiet_libraries,
    refuse_torchrun,
)
from unimoe.console import stderr, stdout
from unimoe.errors import DataError, UsageError

NO_PARITY = 10
"""The exit code where scores differ by the tolerance or more."""

_OUTPUTS = Path("outputs", "parity")
_MODEL_FILES = ("config.json", "modules.json", "adapter_config.json")


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
    options = {"datasets": datasets, "eval_tier": eval_tier, "config": config, "set": override}
    given = [name for name, value in {**options, "max_queries": max_queries}.items() if value is not None]
    if given and all(paths for _, paths in sides):
        raise UsageError(f"--{given[0].replace('_', '-')} is for models, and both sides are results; leave it out")
    found = []
    for name, paths in sides:
        found.append(
            paths
            or _evaluated(
                name,
                output_dir or _OUTPUTS,
                tier=eval_tier or "bundled",
                datasets=datasets,
                config=config,
                override=override,
                max_queries=max_queries,
                device=device,
                threads=threads,
            )
        )
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


def _evaluated(
    name: str,
    outputs: Path,
    *,
    tier: str,
    datasets: str | None,
    config: Path | None,
    override: list[str] | None,
    max_queries: int | None,
    device: str | None,
    threads: int | None,
) -> dict[str, Path]:
    """Evaluate a model by reranking, without printing its scores; return its results."""
    from unimoe.config.files import load_experiment
    from unimoe.evaluation.engines import LocalEngine
    from unimoe.evaluation.evaluate import EvaluationRequest, run_evaluation
    from unimoe.evaluation.mteb.names import split_names
    from unimoe.results import safe_name

    refuse_torchrun("parity")
    if Path(name).is_dir() and not any(Path(name, file).is_file() for file in _MODEL_FILES):
        raise DataError(f"{name}: holds neither reranking results nor a model; run `unimoe evaluate` first")
    quiet_libraries()
    request = EvaluationRequest(
        checkpoints=(),
        model=name,
        name=None,
        config=load_experiment(config, override or []) if config else None,
        overrides=tuple(override or ()),
        tier=tier,
        datasets=tuple(split_names(datasets or "")),
        mteb=(),
        task="reranking",
        max_queries=max_queries,
        output_dir=outputs / safe_name(name),
        threads=threads,
        given=given_options(config, override, model=name, datasets=datasets, max_queries=max_queries),
    )
    stdout.quiet, before = True, stdout.quiet
    try:
        return run_evaluation(request, chosen_device(device), LocalEngine())
    finally:
        stdout.quiet = before
