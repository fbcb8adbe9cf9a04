"""Trains a bi-encoder with progress on the console, and reports its test scores before and after."""

from __future__ import annotations

import torch

from unimoe.core.console import Steps, stderr, stdout
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.evaluation import base_retriever, evaluate, report, trained_retriever
from unimoe.studies.biencoder.training.pairs import biencoder_splits
from unimoe.studies.biencoder.training.trainer import BiEncoderTrainer
from unimoe.studies.common.splits import Splits


def train_and_report(config: BiEncoderConfig, device: torch.device, given: list[str]) -> None:
    """Train one bi-encoder, search the test split before and after, and print both scores.

    Raises:
        UnimoeError: see ``BiEncoderTrainer`` and ``evaluate``.
    """
    trainer = train(config, device, biencoder_splits(config))
    before = base_retriever(config, trainer.splits, device)
    after = trained_retriever(trainer.best_dir, before, trainer.splits, device)
    key = evaluate(config, trainer.splits, [before, after], given)
    report(config, before, key)
    stdout.print(f"Best:   {trainer.best_dir}\nLast:   {trainer.last_dir}", soft_wrap=True)


def train(config: BiEncoderConfig, device: torch.device, splits: Splits) -> BiEncoderTrainer:
    """Train one bi-encoder unless that is done; progress and notes on the data go to stderr."""
    trainer = BiEncoderTrainer(config, device, splits)
    steps, name = Steps(1), f"{config.arm}, seed {config.seed}"
    if trainer.is_finished():
        steps.skip(name)
        return trainer
    stderr.print(
        f"{config.collection}: {len(trainer.pairs):,} training queries ({trainer.pairs.dropped:,} without a positive "
        f"left out), {len(trainer.dev.queries):,} dev over {len(trainer.dev.corpus):,} documents",
        soft_wrap=True,
    )
    if config.freeze_base:
        stderr.print("the frozen base embeds the texts that the cache lacks, once for all trainings", style="dim")
    with steps.step(name, trainer.steps) as step:

        def on_step(number: int, facts: dict[str, float]) -> None:
            step.advance(1)
            if "val" in facts:
                stderr.print(
                    f"epoch {facts['epoch']}: loss {facts['loss']:.3f}, {config.dev.metric} on dev {facts['val']:.4f}"
                )

        facts = trainer.fit(on_step)
        step.outcome = (
            f"{config.dev.metric} on dev {facts['start']:.4f} → {facts['val']:.4f} (epoch {facts['epoch']:g})"
        )
    return trainer
