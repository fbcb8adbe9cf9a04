"""``unimoe evaluate``: a checkpoint, or any model by name, on a tier of collections."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unimoe.cli.options import (
    EngineSettings,
    MaxQueries,
    Override,
    Shuffles,
    chosen_device,
    given_options,
    opened_engine,
    quiet_libraries,
    refuse_shuffles,
    refuse_torchrun,
    with_engine,
)
from unimoe.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from unimoe.results import Task


@with_engine
def evaluate(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint folder, or a pattern such as 'outputs/mine/*/seed_*/checkpoint' for several; arm, base "
            "model and seed are the checkpoint's."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Any model: a hub id or folder of a causal language model, cross-encoder:NAME, monot5:NAME, "
            "rankllama:NAME, listwise:NAME, reasoning:NAME, encoder:NAME, bundled:NAME, python:MODULE:FUNCTION, a "
            "checkpoint folder, or a server's address, https://HOST/v1, with --set served.api=API --set "
            "served.model=NAME."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in results; with --model, by default the model's.")] = None,
    zero_shot: Annotated[bool, typer.Option("--zero-shot", help="The config's base model, untrained.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Overrides the checkpoint's or model's settings; required with --zero-shot. Alone: evaluates its "
            "evaluation.systems, and compares them."
        ),
    ] = None,
    override: Override = None,
    eval_tier: Annotated[
        str,
        typer.Option(
            help="bundled (offline), fast (SciFact, NFCorpus, FiQA2018), nano (NanoBEIR) or full (BEIR, MTEB)."
        ),
    ] = "bundled",
    datasets: Annotated[
        str | None,
        typer.Option("--dataset", help="Collections in place of the tier: scifact,cqadupstack/android,path:DIR@dev."),
    ] = None,
    mteb: Annotated[
        str | None, typer.Option(help="Tasks or benchmarks of MTEB in place of the tier: STS12,SciFact; MTEB(eng, v2).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only reranking, or only embedding.")] = None,
    max_queries: MaxQueries = None,
    shuffles: Shuffles = 0,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            help="The experiment's folder; by default the one that holds the checkpoint, and outputs/models/NAME for a "
            "--model."
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print pairs, tokens, disk, time and cost; run only a short probe.")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Price of this machine, for the cost that --plan prints.")
    ] = None,
    *,
    where: EngineSettings,
) -> None:
    """Evaluate a checkpoint or another model on a tier: reranking where it reranks, embedding where it embeds.

    Collections are read from the folder UNIMOE_DATA, else downloaded. If one of them, or a task of MTEB, cannot be
    evaluated, the command names it with the reason and evaluates the others, and its exit code is 4. It keeps results
    that are up to date, so you can restart a killed evaluation. With --engine ray the GPUs of this
    machine, or the machines of a cluster, share all work of all checkpoints.
    """
    from unimoe.config.files import load_experiment
    from unimoe.data.mteb_names import split_names
    from unimoe.evaluation.chosen import chosen_data, chosen_systems, table_systems
    from unimoe.evaluation.engines import Engine
    from unimoe.evaluation.evaluate import run_evaluation
    from unimoe.evaluation.plan import plan_evaluation
    from unimoe.models.device import use_threads

    named = sum((checkpoint is not None, zero_shot, model is not None))
    if named > 1 or (not named and config is None):
        raise UsageError("give one of --checkpoint FOLDER, --zero-shot and --model NAME")
    if name is not None and model is None:
        raise UsageError("--name belongs to --model; a checkpoint has the name of its arm")
    if task not in (None, "reranking", "embedding"):
        hint = did_you_mean(task, ("reranking", "embedding"))
        raise UsageError(f"--task {task}: unknown{hint}; use reranking or embedding")
    for option, names in (("--dataset", datasets), ("--mteb", mteb)):
        if names is not None and not split_names(names):
            raise UsageError(f"{option} names nothing; name what to evaluate, or leave {option} out")
    if price_per_hour is not None and not plan:
        raise UsageError("--price-per-hour belongs to --plan; give both, or neither")
    quiet_libraries()
    if plan:
        refuse_torchrun("a plan")
        where.refuse_unused()
    with nullcontext(Engine()) if plan else opened_engine(where) as opened:
        chosen = chosen_device(where.here)
        if config and not named:
            systems = table_systems(config, override or (), output_dir, chosen, opened, shuffles)
        else:
            systems = chosen_systems(
                _folders(checkpoint),
                model,
                name=name,
                config=load_experiment(config, override or []) if config else None,
                overrides=override or (),
                output_dir=output_dir,
                device=chosen,
                engine=opened,
                shuffles=shuffles,
            )
        refuse_shuffles(shuffles, systems, mteb)
        data = chosen_data(
            systems,
            tier=eval_tier,
            datasets=split_names(datasets or ""),
            mteb=split_names(mteb or ""),
            task=cast("Task | None", task),
            max_queries=max_queries,
        )
        if not opened.remote:
            use_threads(where.threads)
        if plan:
            plan_evaluation(systems, data, chosen, price_per_hour)
            return
        given = given_options(
            config, override, model=model, name=name, eval_tier=eval_tier, datasets=datasets, mteb=mteb, task=task,
            max_queries=max_queries, shuffles=shuffles or None,
        )  # fmt: skip
        run_evaluation(systems, data, chosen, opened, given)
    if not named:
        _compare(systems[0].results_dir)


def _compare(folder: Path) -> None:
    """Print the table of what was evaluated, and who beats whom."""
    from unimoe.cli.compare import Options
    from unimoe.cli.compare_forms import run

    baseline = "bm25" if (folder / "bm25").is_dir() else None
    shown = Options(results=folder, baseline=baseline, layout="datasets", allow=["candidates"])
    run(replace(shown, pairs="baseline") if baseline else shown)


def _folders(pattern: str | None) -> tuple[Path, ...]:
    """Return the folders that a pattern means, in order."""
    if pattern is None:
        return ()
    if not has_magic(pattern) or Path(pattern).exists():
        return (Path(pattern),)
    folders = tuple(Path(found) for found in sorted(glob(pattern)))  # noqa: PTH207 - the pattern may be absolute
    if not folders:
        raise UsageError(f"--checkpoint {pattern}: no folder fits this pattern")
    return folders
