"""Evaluates the base and a trained bi-encoder on the test split, with BM25 and fusions; the report of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from unimoe.analysis.arms import FIRST_STAGE
from unimoe.analysis.tables.comparisons import print_compared
from unimoe.config import DenseConfig, DenseExperiment
from unimoe.config.base import EncoderConfig
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.io import hash_json
from unimoe.evaluation.datasets import Dataset
from unimoe.evaluation.evaluate import Evaluator
from unimoe.evaluation.retriever import encoder_retriever, fused_name, fused_system, retriever_name
from unimoe.evaluation.store import refuse_other_experiments
from unimoe.evaluation.system import System, first_stage_system
from unimoe.evaluation.tasks.search import TASK, dense_collection, describe
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.device import choose_dtype
from unimoe.models.embedder import Embedder
from unimoe.models.encoder import load_encoder
from unimoe.models.model import Model
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.model import CachedEncoder, encoder_config, read_biencoder
from unimoe.studies.biencoder.trainer import BiEncoderTrainer
from unimoe.studies.common.family import UNTRAINED_SEEDS
from unimoe.studies.common.splits import Splits
from unimoe.training.loop import StepFacts

EXPERIMENT = "biencoder"


def retrieval_experiment(config: BiEncoderConfig) -> DenseExperiment:
    """Return the experiment that evaluates a training: its lengths, threshold and folder."""
    encoder = encoder_config(config)
    if config.freeze_base:  # as the vectors in the cache
        encoder = encoder.model_copy(update={"dtype": "float32"})
    return DenseExperiment(
        name=EXPERIMENT,
        output_dir=config.output_dir,
        encoder=encoder,
        retrieval=DenseConfig(
            relevance_threshold=config.relevance_threshold,
            query_length=config.query_length,
            document_length=config.document_length,
        ),
        caveats=config.caveats,
    )


def base_retriever(config: BiEncoderConfig, splits: Splits, device: torch.device) -> System:
    """Return the encoder before training, under its own name; a frozen one takes its vectors from the cache."""
    experiment = retrieval_experiment(config)
    retriever = encoder_retriever(experiment, retriever_name(experiment, None, None), device)
    if not config.freeze_base:
        return retriever
    model = _model(retriever)
    return replace(
        retriever, model=replace(model, embed=cache(lambda: CachedEncoder(model.embedder(), config, splits)))
    )


def _model(retriever: System) -> Model:
    assert retriever.model is not None  # noqa: S101 - for the type checker
    return retriever.model


def trained_retriever(folder: Path, base: System, device: torch.device) -> System:
    """Return the bi-encoder of a checkpoint folder; ``base`` is what it was trained from.

    Its tokenizer, prefixes and lengths are the base's, and so is the prompt in its results.
    """
    manifest = read_biencoder(folder)
    config = manifest.settings
    dtype = choose_dtype(device, retrieval_experiment(config).encoder.dtype)
    own = {"arm", "seed", "which", "base_model", "dtype", "fingerprint", "config"}
    checkpoint = Checkpoint(
        **manifest.model_dump(include=own), training=manifest.training, adapter_hash=manifest.weights_hash
    )

    def load() -> Embedder:
        if config.freeze_base:
            cached = _model(base).embedder()
            assert isinstance(cached, CachedEncoder)  # noqa: S101 - as ``base_retriever`` makes it
            return cached.with_layer(folder)
        return load_encoder(EncoderConfig(base=str(folder)), device, dtype)

    return replace(
        base,
        name=manifest.arm,
        model=replace(
            _model(base),
            embed=cache(load),
            identity=manifest.base_model,
            dtype=str(dtype).removeprefix("torch."),
        ),
        checkpoint=checkpoint,
    )


def evaluate(config: BiEncoderConfig, splits: Splits, retrievers: Sequence[System], given: list[str]) -> str:
    """Search the test split with each of several retrievers, unless that is done; return ``task/dataset``."""
    experiment = retrieval_experiment(config)
    evaluator = Evaluator(given)
    dataset = Dataset(config.collection, splits.test.split, experiment.evaluation)
    searches, evaluations = dense_collection(dataset, splits.test, experiment.retrieval), []
    if config.corpus_sample is not None:
        searches.pool = len(splits.test.corpus)
    refuse_other_experiments(retrievers[0])
    for retriever in retrievers:
        arms = [first_stage_system(experiment), retriever, fused_system(retriever)]
        evaluations += [describe(replace(arm, experiment=experiment), searches) for arm in arms]
    # A seed draws the batches with their positives, and the first weights of a linear layer.
    keys = {"train_queries", "relevance_threshold", "batch_size", "encoder", "out_dim", "head_init"}
    draws = {"paired_seeds": hash_json([splits.train.content_hash, config.model_dump(include=keys)])}
    steps = Steps(len(evaluations))
    for one in evaluations:
        evaluation = one
        if one.about.seed is not None:
            about = one.about.model_copy(update={"config": {**one.about.config, **draws}})
            evaluation = replace(one, about=about)
        evaluator.take(evaluation, steps, metric="recall_of_retrieved@10")
    return f"{TASK}/{dataset.name}"


def train_and_report(config: BiEncoderConfig, device: torch.device, given: list[str]) -> None:
    """Train one bi-encoder, search the test split before and after, and print both scores, over all seeds there are.

    A gain is that over its own start: of the encoder alone, and of the fusion with BM25. Whether either beats BM25 is
    another question, with a family of tests of its own.
    """
    trainer = BiEncoderTrainer(config, device)
    _train(trainer)
    before = base_retriever(config, trainer.splits, device)
    after = trained_retriever(trainer.best_dir, before, device)
    key, folder = evaluate(config, trainer.splits, [before, after], given), Path(config.output_dir)
    arm, fused = config.arm, fused_name(config.arm)
    print_compared(folder, [(arm, before.name), (fused, fused_name(before.name))], [key], UNTRAINED_SEEDS)
    print_compared(folder, [(arm, FIRST_STAGE), (fused, FIRST_STAGE)], [key], UNTRAINED_SEEDS, "against")
    stdout.print(f"\nMore:   unimoe analyze --output-dir {folder}", soft_wrap=True)
    stdout.print(f"Best:   {trainer.best_dir}\nLast:   {trainer.last_dir}", soft_wrap=True)


def _train(trainer: BiEncoderTrainer) -> None:
    """Train unless that is done; progress and notes on the data go to stderr."""
    config, steps = trainer.config, Steps(1)
    name = f"{config.arm}, seed {config.seed}"
    if trainer.is_finished():
        steps.skip(name)
        return
    stderr.print(
        f"{config.collection}: {len(trainer.pairs):,} training queries ({trainer.pairs.dropped:,} without a positive "
        f"left out), {len(trainer.dev.queries):,} dev over {len(trainer.dev.corpus):,} documents",
        soft_wrap=True,
    )
    if config.freeze_base:
        stderr.print("the frozen base embeds the texts that the cache lacks, once for all trainings", style="dim")
    with steps.step(name, trainer.steps) as step:

        def on_step(number: int, facts: StepFacts) -> None:
            step.advance(1)
            if "val" in facts:
                stderr.print(
                    f"epoch {facts['epoch']}: loss {facts['loss']:.3f}, {config.dev.metric} on dev {facts['val']:.4f}"
                )

        found = trainer.fit(on_step)
        step.outcome = (
            f"{config.dev.metric} on dev {found['start']:.4f} → {found['val']:.4f} (epoch {found['epoch']:g})"
        )
