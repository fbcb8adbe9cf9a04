"""The commands ``train-head``, ``compare-heads`` and ``compare_korean``; they import their work when they run."""

from __future__ import annotations

import inspect
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from unimoe.cli.options import (
    Config,
    Device,
    EngineSettings,
    Override,
    comma_separated,
    given_options,
    quiet_libraries,
    refuse_torchrun,
    with_engine,
)
from unimoe.studies.common.command import Plan, run_study

DEFAULT_HEAD, DEFAULT_COMPARISON = Path("studies/heads"), Path("studies/heads_compare")

ComparisonDir = Annotated[
    Path | None, typer.Option(help="By default outputs/heads-TASK. One comparison has one folder.")
]
CollectionName = Annotated[
    str | None,
    typer.Option(help="A collection: scifact, NanoMSMARCO, path:DIR. By default SciFact's folder, else apidocs."),
]
NumSteps = Annotated[int | None, typer.Option("--num-steps", "--num_steps", min=1, help="Steps, or generations.")]
TrainingsPerMethod = Annotated[int | None, typer.Option(min=1, help="Reported trainings of each method.")]
Settings = Annotated[int | None, typer.Option(min=1, max=9, help="Settings of each method tried on dev.")]
Margin = Annotated[float | None, typer.Option(help="Evolution must beat InfoNCE by this much: .01 is a point.")]
Methods = Annotated[str | None, typer.Option(help="Methods, separated by commas; by default all.")]


def train_head(
    config: Config = DEFAULT_HEAD,
    task: CollectionName = None,
    method: Annotated[
        str | None,
        typer.Option(help="eggroll, score_es, genetic, hybrid, or a loss: infonce, lambdaloss, pg_rank, ..."),
    ] = None,
    num_steps: NumSteps = None,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of noise and batches.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder of checkpoint and log.")] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Also print nDCG on the test queries, once settings are chosen on dev.")
    ] = False,
    override: Override = None,
) -> None:
    """Train one projection head over a frozen encoder, choose its step on dev; print nDCG on dev and train."""
    from unimoe.studies.heads import jobs

    refuse_torchrun("training heads")
    quiet_libraries()
    options = {
        "task": task,
        "method": method,
        "num_steps": num_steps,
        "device": device,
        "seed": seed,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    jobs.train_one(jobs.head_config(config, options, override or ()), test=test)


class HeadComparison(StrEnum):
    """What is compared: methods, settings of one, or two objectives."""

    METHODS = "methods"
    GRID = "grid"
    PARETO = "pareto"


@with_engine
def compare_heads(
    part: Annotated[
        HeadComparison, typer.Argument(help="Methods; a grid of evolution's settings; or relevance against diversity.")
    ] = HeadComparison.METHODS,
    config: Config = DEFAULT_COMPARISON,
    task: CollectionName = None,
    num_steps: NumSteps = None,
    methods: Methods = None,
    seeds: TrainingsPerMethod = None,
    settings: Settings = None,
    margin: Margin = None,
    output_dir: ComparisonDir = None,
    override: Override = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Compare methods that train a head: settings chosen on dev, seeds, one test, and a gate registered beforehand.

    Finished work is skipped, so a killed comparison continues when started again. ``analyze`` reads the folder too.
    """
    from unimoe.studies.common.study import load_study
    from unimoe.studies.heads import jobs

    own: dict[str, Any] = {"settings": settings, "output_dir": None if output_dir is None else str(output_dir)}
    if part is HeadComparison.METHODS:
        own["seeds"] = seeds
    else:
        own |= {"seeds": 0, "gates": {}, "settings": None if part is HeadComparison.GRID else settings}  # on dev alone
    file = jobs.GRID if part is HeadComparison.GRID else config
    names = comma_separated(methods)
    read = jobs.placed(load_study(file, override or (), own), {"task": task, "num_steps": num_steps}, margin)
    read = read.of_arms(jobs.front_methods(names) if part is HeadComparison.PARETO else names)
    show = {HeadComparison.GRID: jobs.show_grid, HeadComparison.PARETO: jobs.show_front}.get(part)
    given = given_options(
        config,
        override,
        task=read.base["task"],
        num_steps=num_steps,
        seeds=seeds,
        settings=settings,
        methods=methods,
        margin=margin,
    )
    run_study(read, where, given, plan=plan, show=show)


KO_STRATEGYQA: dict[str, Any] = {
    "encoder": {"base": "intfloat/multilingual-e5-base", "query_prefix": "query: ", "document_prefix": "passage: "},
    "splits": {"train": None, "test": "dev"},  # its only split, which is divided into three parts
    "pools": {"source": "dense"},  # BM25's analyzer is English
}
_WRONG_LANGUAGE = (
    "the encoder is all-MiniLM-L6-v2, made for English, and the texts are Korean: this shows that the program runs, "
    "not what a Korean encoder's head would gain"
)
BELEBELE: dict[str, Any] = {"pools": {"source": "dense"}, "caveats": [_WRONG_LANGUAGE]}


def compare_korean(
    offline: Annotated[
        bool, typer.Option("--offline", help="Belebele's Korean part from UNIMOE_DATA, with the bundled encoder.")
    ] = False,
    override: Override = None,
    **options: Any,
) -> None:
    """Compare methods that train a head on Korean: Ko-StrategyQA and multilingual-e5-base, which are downloaded."""
    task, keys = ("belebele-ko", BELEBELE) if offline else ("mteb:Ko-StrategyQA", KO_STRATEGYQA)
    changes = [f"{key}={json.dumps(value)}" for key, value in keys.items()]  # JSON is YAML
    compare_heads(**options, task=task, override=[*changes, *(override or ())])


# The other options are those of ``compare_heads``; typer reads them here.
_options = {
    **inspect.signature(compare_heads).parameters,
    **inspect.signature(compare_korean, eval_str=True).parameters,
}
compare_korean.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [option for name, option in _options.items() if name not in ("task", "options")]
)


COMMANDS = {"train-head": train_head, "compare-heads": compare_heads}
