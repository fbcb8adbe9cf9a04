"""``unimoe retrieve``: dense retrieval, BM25 and their fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import (
    EngineSettings,
    MaxQueries,
    OutputDir,
    Override,
    chosen_device,
    given_options,
    opened_engine,
    placed,
    quiet_libraries,
    with_engine,
)
from unimoe.core.errors import UsageError

DEFAULT_RETRIEVAL = Path("retrieval/default")


@with_engine
def retrieve(
    datasets: Annotated[str, typer.Option("--dataset", help="Collections: scifact,cqadupstack/android,path:DIR@dev.")],
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A hub id or a folder, as encoder:NAME too; bundled:NAME, sparse:NAME, late:NAME, or "
            "python:MODULE:FUNCTION; by default the config's encoder.base."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint folder: its model embeds the texts, not an encoder.")
    ] = None,
    config: Annotated[
        Path, typer.Option(help="A YAML file about dense retrieval, or the name of a shipped one.")
    ] = DEFAULT_RETRIEVAL,
    override: Override = None,
    output_dir: OutputDir = None,
    name: Annotated[
        str | None, typer.Option(help="What to call the arm; by default the encoder's name, or the checkpoint's arm.")
    ] = None,
    before: Annotated[
        str, typer.Option(help="The arm to compare with: one of this run, or one with results in the folder.")
    ] = "bm25",
    max_queries: MaxQueries = None,
    dims: Annotated[
        str | None, typer.Option(help="Search by vectors cut to these widths too: 64,128,256 (Matryoshka).")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Search by vectors at these precisions too: float32,int8,binary.")
    ] = None,
    *,
    where: EngineSettings,
) -> None:
    """Search collections by embeddings, by BM25, and by the fusion of both; compare the scores with --before.

    Collections are read from the folder UNIMOE_DATA, else downloaded. If one cannot be searched, the command names it
    with the reason and searches the others, and its exit code is 4. It keeps results that are up to date, and vectors
    in the user's cache (unimoe cache), so you can restart a killed run, and no corpus is embedded twice. Each of --dims
    at each --precision is a system of its own, from the same vectors; a table compares them with the whole ones.
    With --engine ray the GPUs of this machine, or the machines of a cluster, share the embedding.
    """
    from unimoe.analysis.comparisons import unknown_arm
    from unimoe.analysis.tables.comparisons import print_compared
    from unimoe.analysis.tables.scores import print_sizes
    from unimoe.config import DenseExperiment
    from unimoe.config.files import load_config
    from unimoe.data.mteb_names import split_names
    from unimoe.evaluation.chosen import retrieval_systems
    from unimoe.evaluation.datasets import chosen_datasets
    from unimoe.evaluation.evaluate import run_retrieval
    from unimoe.evaluation.retriever import fused_name, retriever_name
    from unimoe.models.device import use_threads
    from unimoe.results import result_files
    from unimoe.retrieval.sizes import FULL

    if encoder is not None and checkpoint is not None:
        raise UsageError("give --encoder or --checkpoint, not both")
    asked = [f"retrieval.{key}=[{names}]" for key, names in (("dims", dims), ("precisions", precision)) if names]
    experiment = load_config(DenseExperiment, config, [*(override or []), *asked])
    encoder = encoder and encoder.removeprefix("encoder:")
    if encoder is not None and encoder != experiment.encoder.base:
        changed = experiment.encoder.model_copy(update={"base": encoder, "revision": None})
        experiment = experiment.model_copy(update={"encoder": changed})
    experiment = placed(experiment, output_dir)
    folder = Path(experiment.output_dir)
    arm = retriever_name(experiment, checkpoint, name)
    quiet_libraries()
    if not split_names(datasets):
        raise UsageError("--dataset is empty; name collections, for example --dataset scifact,nfcorpus")
    collections = chosen_datasets(experiment, split_names(datasets), max_queries)
    with opened_engine(where) as opened:
        if not opened.remote:
            use_threads(where.threads)
        systems = retrieval_systems(experiment, arm, checkpoint, chosen_device(where.here), opened)
        there = (path.parents[3].name for path in result_files(folder))
        known = sorted({fused_name(arm), *(system.name for system in systems), *there})
        if before not in known:
            raise UsageError(unknown_arm(before, known))
        given = given_options(
            config, override, datasets=datasets, encoder=encoder, checkpoint=checkpoint, name=name,
            max_queries=max_queries, dims=dims, precision=precision,
        )  # fmt: skip
        keys, failures = run_retrieval(systems, collections, opened, given)
        print_compared(folder, [(system.name, before) for system in systems[1:] if system.size == FULL], keys)
        print_sizes(folder, arm, [system.name for system in systems if system.size != FULL], keys)
        failures.refuse(done=bool(keys))
