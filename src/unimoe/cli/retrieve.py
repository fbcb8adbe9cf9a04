"""``unimoe retrieve``: dense retrieval, BM25 and their fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import (
    Device,
    OutputDir,
    Override,
    chosen_device,
    given_options,
    quiet_libraries,
    refuse_torchrun,
)
from unimoe.config.files import load_config
from unimoe.errors import UsageError

DEFAULT_RETRIEVAL = Path("retrieval/default")


def retrieve(
    datasets: Annotated[str, typer.Option(help="Collections: scifact,cqadupstack/android,path:DIR@dev.")],
    encoder: Annotated[
        str | None, typer.Option(help="A hub id, a folder, or bundled:NAME; by default the config's encoder.base.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint folder, whose arm embeds in place of an encoder.")
    ] = None,
    config: Annotated[
        Path, typer.Option(help="A YAML file about dense retrieval, or the name of a shipped one.")
    ] = DEFAULT_RETRIEVAL,
    override: Override = None,
    output_dir: OutputDir = None,
    device: Device = None,
    name: Annotated[
        str | None, typer.Option(help="What to call the arm; by default the encoder's name, or the checkpoint's arm.")
    ] = None,
    before: Annotated[
        str, typer.Option(help="The arm to compare with: one just measured, or one with results in the folder.")
    ] = "bm25",
    max_queries: Annotated[
        int | None, typer.Option(min=1, help="Score at most this many queries of each dataset; results say so.")
    ] = None,
) -> None:
    """Search collections by embeddings, by BM25, and by the fusion of both; prints what changed against --before.

    Collections are looked for under the folder UNIMOE_DATA, then downloaded. One that can be had neither way is named,
    the others are still searched, and the exit code is 4. Vectors are kept in the folder vectors/ of the output folder,
    which may be deleted at any time; a killed run goes on where it was. Results that are up to date are kept.
    """
    from unimoe.analysis.before_after import print_before_after, refuse_unknown_arm
    from unimoe.config.dense import DenseExperiment
    from unimoe.evaluation.loading import refuse_missing
    from unimoe.evaluation.mteb.names import split_names
    from unimoe.evaluation.retrieve import RetrievalRequest, run_retrieval
    from unimoe.evaluation.systems import BM25, fused_name, retriever_name

    if encoder is not None and checkpoint is not None:
        raise UsageError("give --encoder or --checkpoint, not both")
    refuse_torchrun("a retrieval")
    experiment = load_config(DenseExperiment, config, override or [])
    if encoder is not None and encoder != experiment.encoder.base:
        changed = experiment.encoder.model_copy(update={"base": encoder, "revision": None})
        experiment = experiment.model_copy(update={"encoder": changed})
    if output_dir is not None:
        experiment = experiment.model_copy(update={"output_dir": str(output_dir)})
    folder = Path(experiment.output_dir)
    arm = retriever_name(experiment, checkpoint, name)
    refuse_unknown_arm(folder, before, [BM25, arm, fused_name(arm)])
    quiet_libraries()
    request = RetrievalRequest(
        config=experiment,
        checkpoint=checkpoint,
        name=arm,
        datasets=tuple(split_names(datasets)),
        max_queries=max_queries,
        given=given_options(
            config, override, datasets=datasets, encoder=encoder, checkpoint=checkpoint, name=name,
            max_queries=max_queries,
        ),
    )  # fmt: skip
    report = run_retrieval(request, chosen_device(device))
    print_before_after(folder, before, report.arms, report.keys)
    refuse_missing(report.missing)
