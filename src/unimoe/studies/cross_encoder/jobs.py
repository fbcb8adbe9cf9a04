"""What the command ``train-cross-encoder`` does: lists, training, reranking results, the optional upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from unimoe.console import Step, Steps, stderr, stdout
from unimoe.errors import MissingPartError
from unimoe.evaluation.tiers import Dataset, LoadedDataset, collections_of, refuse_equal_names
from unimoe.models.quiet import first_line
from unimoe.results import EvalResult
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.evaluation import (
    Reporting,
    TrainedCrossEncoder,
    evaluate_cross_encoder,
    write_first_stage,
)
from unimoe.studies.cross_encoder.model import load_cross_encoder
from unimoe.studies.cross_encoder.reranking_set import RerankingSet
from unimoe.studies.cross_encoder.training.checkpoint import CrossEncoderManifest
from unimoe.studies.cross_encoder.training.data import own_parts
from unimoe.studies.cross_encoder.training.lists import Lists, fit_for, warnings_for
from unimoe.studies.cross_encoder.training.trainer import CrossEncoderTraining


@dataclass(frozen=True)
class CrossEncoderData:
    """What a cross-encoder is trained on, chosen by, and reported on.

    Attributes:
        lists: before they are made fit for a loss.
        dev: what chooses the checkpoint.
        test: what is reported.
    """

    lists: Lists
    dev: tuple[RerankingSet, ...]
    test: tuple[RerankingSet, ...]


def load_cross_encoder_data(config: CrossEncoderConfig) -> CrossEncoderData:
    """Load lists, dev and test sets with their BM25 candidates.

    Raises:
        UsageError: no such collection or split.
        DataError: one cannot be had or is malformed.
    """
    evaluation = config.evaluation
    lists, dev, test = own_parts(config.lists, evaluation)
    return CrossEncoderData(
        lists,
        _named(config, evaluation.dev, evaluation.dev_queries) or (dev,),
        _named(config, evaluation.test, evaluation.test_queries) or ((test,) if test is not None else ()),
    )


def training_of(config: CrossEncoderConfig, data: CrossEncoderData, device: torch.device) -> CrossEncoderTraining:
    """The training of a configuration on the lists that its loss can learn from."""
    return CrossEncoderTraining(config, fit_for(config.loss, data.lists), data.dev, device)


def train_and_evaluate(config: CrossEncoderConfig, device: torch.device, given: Sequence[str] = ()) -> None:
    """Train, evaluate, print the test scores beside BM25's; what is done already is skipped.

    Raises:
        DataError: data or saved states are unfit.
        MissingPartError: the upload failed; the model's folder stands.
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
        manifest = fit(training, step)
        step.outcome = "trained" if manifest.dev is None else f"nDCG@10 on dev {100 * manifest.dev:.2f}"
    for dataset in data.test:
        with steps.step(f"reranking {dataset.dataset}", dataset.pairs) as step:
            before, after = report(training, manifest, dataset, given, step)
        _print(dataset.dataset, before, after)
    stdout.print(f"model  {training.checkpoint_dir}", soft_wrap=True)
    if config.push_to_hub is not None:
        _push(config.push_to_hub, training.checkpoint_dir, device)


def fit(training: CrossEncoderTraining, step: Step) -> CrossEncoderManifest:
    """Train with a bar that also moves where a training is found done or half done."""
    taken = 0

    def on_step(number: int, _: int) -> None:
        nonlocal taken
        step.advance(number - taken)
        taken = number

    manifest = training.fit(on_step)
    step.advance(training.steps - taken)
    return manifest


def report(
    training: CrossEncoderTraining,
    manifest: CrossEncoderManifest,
    dataset: RerankingSet,
    given: Sequence[str],
    step: Step,
    *,
    paired: bool = False,
) -> tuple[EvalResult, EvalResult]:
    """Write the results of the first stage and of a trained cross-encoder on one set.

    Args:
        training: finished.
        manifest: of its checkpoint.
        dataset: what is reranked.
        given: options given by hand, for provenance.
        step: whose bar moves.
        paired: declare that trainings of one seed share the order of the data and the first weights.
    """
    config = training.config
    model = TrainedCrossEncoder(
        folder=training.checkpoint_dir,
        arm=manifest.arm,
        seed=manifest.seed,
        which=manifest.which,
        base_model=manifest.base_model,
        weights_hash=manifest.weights_hash,
        max_length=config.model.max_length,
        training=manifest.training,
        config=manifest.config | ({"paired_seeds": True} if paired else {}),
    )
    reporting = Reporting(
        output_dir=Path(config.output_dir),
        experiment=config.name,
        depth=config.evaluation.depth,
        batch_size=config.evaluation.batch_size,
        max_queries=config.evaluation.test_queries,
        caveats=config.caveats,
        given=given,
    )
    before = write_first_stage(dataset, reporting, manifest.config)
    return before, evaluate_cross_encoder(model, dataset, reporting, training.device, step.advance)


def _named(config: CrossEncoderConfig, names: Sequence[str], queries: int | None) -> tuple[RerankingSet, ...]:
    sets = []
    chosen = [pair for given in names for pair in collections_of(given)]
    refuse_equal_names(name for name, _ in chosen)
    for name, split in chosen:
        loaded = LoadedDataset(
            Dataset(name, split, config.evaluation.depth, queries, pool=None, bm25=config.lists.bm25)
        )
        sets.append(RerankingSet(name, loaded.collection, loaded.candidates, loaded.first_stage))
    return tuple(sets)


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
            f"the model could not be uploaded to {repository} ({first_line(error)}); it stands whole in {folder}: log "
            "in with `hf auth login` and run the same command again"
        ) from None
    stdout.print(f"hub    {repository}", soft_wrap=True)
