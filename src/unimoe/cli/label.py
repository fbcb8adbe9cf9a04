"""``unimoe label``: relevance judgments by a model, of what runs have found or to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import EngineSettings, Override, opened_engine, quiet_libraries, refuse_torchrun, with_engine
from unimoe.core.errors import UsageError

OF_POOLS, OF_TRAINING = Path("labels"), Path("biencoder/labels")


@with_engine
def label(
    collection: Annotated[
        str, typer.Option("--dataset", help="The collection: nfcorpus, path:DIR, ...; with --runs path:DIR@dev too.")
    ],
    runs: Annotated[
        list[str] | None,
        typer.Option(help="Run files of systems, or patterns; may be .gz. Their first documents are graded."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="With --runs: the qrels file to write, and FILE.labels.json beside it.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Without --runs: folder of the new collection, then named path:DIR; must not exist yet."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--reranker",
            help="A reranker as evaluate --model names it, or the address of a chat model with --set served.api=chat "
            "--set served.model=NAME; SmolLM2 by default.",
        ),
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Documents of each query, of each run; by default the config's, 10.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file, or the name of a shipped one; labels, without --runs biencoder/labels."),
    ] = None,
    override: Override = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --runs: print pairs, tokens, time and cost; grade nothing.")
    ] = False,
    *,
    where: EngineSettings,
) -> None:
    """Let a model judge relevance: the documents that runs found, as qrels, or pairs to train on, as a collection.

    unimoe label --runs bm25.trec splade.trec --dataset scifact --model NAME --output llm.qrels

    unimoe label --dataset nfcorpus --model NAME --output-dir data/labelled

    With --runs it pools the first documents of all runs, whether people judged them or not. Without, it samples queries
    and searches deep by BM25. Run it again to resume a killed run, or to add the documents of another run. Exits 4
    where some pairs have no grade.
    """
    from unimoe.cli.run_files import Pattern
    from unimoe.config.files import load_config
    from unimoe.config.labels import LabelConfig, TrainingLabelConfig

    wanted, other = ("output", output_dir) if runs else ("output-dir", output)
    if other is not None or (output if runs else output_dir) is None:
        form = "with --runs, a qrels file" if runs else "without --runs, a collection"
        raise UsageError(f"give --{wanted} alone: {form} is what is written")
    if plan and not runs:
        raise UsageError("--plan belongs to --runs; give both, or neither")
    refuse_torchrun("labelling")
    quiet_libraries()
    given = {"collection": collection, "reranker": model, "depth": depth}
    named = [*(override or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    from unimoe.evaluation.pooled_labels import label_pool
    from unimoe.evaluation.training_labels import label_sample
    from unimoe.models.device import choose_device

    where.use_threads()
    with opened_engine(where) as opened:
        device = choose_device(where.here)
        if runs and output:
            settings = load_config(LabelConfig, config or OF_POOLS, named)
            files = [path for text in runs for path in Pattern("--runs", None, text).files(settings.collection)]
            label_pool(settings, list(dict.fromkeys(files)), output, device, opened, plan=plan)
        elif output_dir:
            label_sample(load_config(TrainingLabelConfig, config or OF_TRAINING, named), output_dir, device, opened)
