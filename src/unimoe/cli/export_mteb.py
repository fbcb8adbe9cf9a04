"""``unimoe export-mteb``: results in the layout of MTEB's results repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from unimoe.core.console import stderr, stdout
from unimoe.core.errors import UsageError, refuse_missing


def export_mteb(
    output_dir: Annotated[
        Path | None, typer.Option(help="The experiment's folder; by default the one around --checkpoint.")
    ] = None,
    arm: Annotated[str | None, typer.Option(help="The arm, such as joint_r8 or zero_shot.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Its seed, where the folder holds several.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint folder, in place of --arm and --seed.")] = None,
    task: Annotated[
        Literal["embedding", "reranking"], typer.Option(help="As an encoder, or as a cross-encoder.")
    ] = "embedding",
    mteb: Annotated[
        str | None, typer.Option(help="Tasks and benchmarks that are wanted; by default all that were evaluated.")
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="ORG/NAME; by default unimoe/ARM.")] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of the model; by default a content hash of all that its scores depend on.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Gets results/; by default mteb/ in the experiment's folder.")] = None,
) -> None:
    """Write an arm's results on MTEB's tasks as MTEB's results repository wants them, for its leaderboard.

    It makes results/MODEL/REVISION/TASK.json and model_meta.json from what evaluate --mteb wrote, without scoring
    anything. If a task that is wanted has no result, the command names it, and its exit code is 4.
    """
    from unimoe.data.mteb_names import split_names
    from unimoe.evaluation.leaderboard import export_results, seed_of
    from unimoe.models.checkpoint import read_checkpoint

    if (checkpoint is None) == (arm is None) or (checkpoint is not None and seed is not None):
        raise UsageError("name what to export: --arm, with --seed where it has several, or --checkpoint")
    if checkpoint is not None:
        manifest = read_checkpoint(checkpoint)
        arm, seed = manifest.arm, manifest.seed
        output_dir = output_dir or checkpoint.resolve().parents[:3][-1]
    if output_dir is None or arm is None:
        raise UsageError("--arm needs --output-dir, the experiment's folder")
    export = export_results(
        output_dir,
        arm,
        seed_of(output_dir, arm, seed),
        task,
        split_names(mteb or ""),
        model=model_name or f"unimoe/{arm}",
        revision=revision,
        target=to or output_dir / "mteb",
    )
    for name, reason in export.missing.items():
        stderr.print(f"missing: {name}: {reason}", style="yellow", soft_wrap=True)
    for note in export.notes:
        stderr.print(note, style="dim", soft_wrap=True)
    stdout.print(f"{len(export.tasks)} tasks  {export.folder}", soft_wrap=True)
    refuse_missing({"MTEB task": list(export.missing)})
