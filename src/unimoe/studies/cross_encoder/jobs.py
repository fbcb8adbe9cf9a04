"""Trains a cross-encoder, writes its reranking results, prints them, and uploads the model where asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import MissingPartError
from unimoe.models.quiet import first_line
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.results import EvalResult
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.evaluation import report_first_stage, report_trained
from unimoe.studies.cross_encoder.training.data import CrossEncoderData, load_cross_encoder_data
from unimoe.studies.cross_encoder.training.lists import fit_for, warnings_for
from unimoe.studies.cross_encoder.training.trainer import CrossEncoderTraining


def training_of(config: CrossEncoderConfig, data: CrossEncoderData, device: torch.device) -> CrossEncoderTraining:
    """Return the training of a configuration on the lists that its loss can learn from."""
    return CrossEncoderTraining(config, fit_for(config.loss, data.lists), data.dev, device)


def train_and_evaluate(config: CrossEncoderConfig, device: torch.device, given: Sequence[str] = ()) -> None:
    """Train, evaluate, and print the test scores beside BM25's; finished parts are skipped.

    Raises:
        DataError: data or saved states are unfit.
        MissingPartError: the upload failed; the model's folder is complete.
    """
    with Steps(1).step(f"{config.lists.source}: lists made", None) as step:
        data = load_cross_encoder_data(config)
        lists = fit_for(config.loss, data.lists)
        step.outcome = f"{len(lists.lists):,} lists, {sum(one.pairs for one in lists.lists):,} documents"
    for note in [*lists.notes, *warnings_for(config.loss, lists)]:
        stderr.print(f"note: {note}", soft_wrap=True)
    training = training_of(config, data, device)
    steps = Steps(1 + len(data.test))
    with steps.step(f"{config.arm}, seed {config.seed}: {config.loss.name}", training.steps) as step:
        training.run_with_bar(step)
        manifest = training.fit()
        step.outcome = "trained" if manifest.dev is None else f"nDCG@10 on dev {100 * manifest.dev:.2f}"
    for dataset in data.test:
        with steps.step(f"reranking {dataset.dataset}", dataset.pairs) as step:
            before = report_first_stage(config, dataset, given, manifest.config)
            after = report_trained(training, manifest, dataset, given, step.advance)
        _print(dataset.dataset, before, after)
    stdout.print(f"model  {training.checkpoint_dir}", soft_wrap=True)
    if config.push_to_hub is not None:
        _push(config.push_to_hub, training.checkpoint_dir, device)


def _print(name: str, before: EvalResult, after: EvalResult) -> None:
    for metric in ("map", "mrr@10", "ndcg@10"):
        value = after.aggregate[metric]
        stdout.print(
            f"{name}  {metric:<8}{value:.4f} ({value - before.aggregate[metric]:+.4f} over BM25)", soft_wrap=True
        )


def _push(repository: str, folder: Path, device: torch.device) -> None:
    try:
        load_cross_encoder(folder, device).push_to_hub(repository)
    except Exception as error:  # the hub's client ends in errors of many kinds: no token, no network, no such place
        raise MissingPartError(
            f"the model could not be uploaded to {repository} ({first_line(error)}); it is complete in {folder}: log "
            "in with `hf auth login` and run the same command again"
        ) from None
    stdout.print(f"hub    {repository}", soft_wrap=True)
