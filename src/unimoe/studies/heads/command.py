"""The commands ``train-head``, ``compare-heads`` and ``compare_korean``; they import their work when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unimoe.cli.options import Device, Override, comma_separated, quiet_libraries, refuse_torchrun
from unimoe.studies.heads.compare import Part

Task = Annotated[
    str | None,
    typer.Option(help="A collection: scifact, NanoMSMARCO, path:DIR. By default SciFact's folder, else apidocs."),
]
NumSteps = Annotated[int, typer.Option("--num-steps", "--num_steps", min=1, help="Steps, or generations.")]
Seeds = Annotated[int, typer.Option(min=1, help="Reported trainings of each method.")]
Settings = Annotated[int, typer.Option(min=1, max=9, help="Settings of each method tried on dev.")]
Margin = Annotated[float, typer.Option(help="Evolution must beat InfoNCE by this much: .01 is a point.")]
Methods = Annotated[str | None, typer.Option(help="Methods, separated by commas; by default all.")]


def train_head(
    task: Task = None,
    method: Annotated[
        str, typer.Option(help="eggroll, score_es, genetic, hybrid, or a loss: infonce, lambdaloss, plistmle, ...")
    ] = "eggroll",
    num_steps: NumSteps = 300,
    device: Device = None,
    seed: Annotated[int, typer.Option(min=0, help="Of noise and batches.")] = 0,
    output_dir: Annotated[Path, typer.Option(help="Folder of checkpoint and log.")] = Path("outputs/heads"),
    override: Override = None,
) -> None:
    """Train one projection head over a frozen encoder, choose its step on dev; print nDCG on train, dev and test."""
    from unimoe.studies.heads import jobs

    refuse_torchrun("training heads")
    quiet_libraries()
    changes = {
        "task": task or jobs.default_task(),
        "method": method,
        "num_steps": num_steps,
        "device": device,
        "seed": seed,
        "output_dir": str(output_dir),
    }
    jobs.train_one(jobs.head_config(changes, override or ()))


def compare_heads(
    part: Annotated[
        Part, typer.Argument(help="Methods; a grid of evolution's settings; noise on trained weights; or diversity.")
    ] = Part.METHODS,
    task: Task = None,
    num_steps: NumSteps = 150,
    methods: Methods = None,
    seeds: Seeds = 5,
    settings: Settings = 9,
    margin: Margin = 0.01,
    device: Device = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="By default outputs/heads-TASK. One comparison has one folder.")
    ] = None,
    override: Override = None,
) -> None:
    """Compare methods that train a head: settings chosen on dev, seeds, one test, and a gate registered beforehand.

    Finished work is skipped, so a killed comparison continues when started again. ``analyze`` reads the folder too.
    """
    run_comparison(
        part, task, None, num_steps=num_steps, methods=methods, seeds=seeds, settings=settings, margin=margin,
        device=device, output_dir=output_dir, override=override,
    )  # fmt: skip


KO_STRATEGYQA: dict[str, Any] = {
    "encoder": {"base": "intfloat/multilingual-e5-base", "query_prefix": "query: ", "document_prefix": "passage: "},
    "splits": {"train": None, "test": "dev"},  # its only split, which is divided into three parts
    "pools": {"source": "dense"},  # BM25's analyzer is English
}
BELEBELE: dict[str, Any] = {"pools": {"source": "dense"}}
_WRONG_LANGUAGE = (
    "the encoder is all-MiniLM-L6-v2, made for English, and the texts are Korean: this shows that the program runs, "
    "not what a Korean encoder's head would gain"
)


def compare_korean(
    part: Annotated[Part, typer.Argument(help="As in compare_methods.py.")] = Part.METHODS,
    offline: Annotated[
        bool, typer.Option("--offline", help="Belebele's Korean part from UNIMOE_DATA, with the bundled encoder.")
    ] = False,
    num_steps: NumSteps = 150,
    methods: Methods = None,
    seeds: Seeds = 5,
    settings: Settings = 9,
    margin: Margin = 0.01,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default outputs/heads-TASK.")] = None,
    override: Override = None,
) -> None:
    """Compare methods that train a head on Korean: Ko-StrategyQA and multilingual-e5-base, which are downloaded."""
    run_comparison(
        part, "belebele-ko" if offline else "mteb:Ko-StrategyQA", BELEBELE if offline else KO_STRATEGYQA,
        num_steps=num_steps, methods=methods, seeds=seeds, settings=settings, margin=margin, device=device,
        output_dir=output_dir, override=override, caveats=[_WRONG_LANGUAGE] if offline else [],
    )  # fmt: skip


def run_comparison(
    part: Part,
    task: str | None,
    shared: dict[str, Any] | None,
    *,
    num_steps: int,
    methods: str | None,
    seeds: int,
    settings: int,
    margin: float,
    device: str | None,
    output_dir: Path | None,
    override: list[str] | None,
    caveats: list[str] | None = None,
) -> None:
    """Run ``compare-heads`` with further keys of the shared configuration, and caveats."""
    from unimoe.results import safe_name
    from unimoe.studies.heads import jobs

    refuse_torchrun("training heads")
    quiet_libraries()
    task = task or jobs.default_task()
    folder = output_dir or Path("outputs") / f"heads-{safe_name(task)}"
    changes = {"task": task, "num_steps": num_steps, "device": device, "output_dir": str(folder), **(shared or {})}
    options = {"--task": task, "--num-steps": num_steps, "--seeds": seeds, "--settings": settings, "--methods": methods}
    given = [f"{name} {value}" for name, value in options.items() if value is not None]
    comparison = jobs.comparison(
        jobs.head_config(changes, override or ()),
        methods=comma_separated(methods),
        seeds=seeds,
        settings=settings,
        margin=margin,
        caveats=caveats or [],
    )
    jobs.compare(comparison, part, [*given, *(f"--set {text}" for text in override or ())])


COMMANDS = {"train-head": train_head, "compare-heads": compare_heads}
