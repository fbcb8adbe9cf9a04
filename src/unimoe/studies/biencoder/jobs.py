"""What the commands ``train-biencoder`` and ``label-pairs`` do."""

from __future__ import annotations

from pathlib import Path

import torch

from unimoe.console import Steps, stderr, stdout
from unimoe.data.catalog import load_collection
from unimoe.studies.biencoder.config import BiEncoderConfig, LabelConfig
from unimoe.studies.biencoder.evaluation import base_retriever, evaluate, report, trained_retriever
from unimoe.studies.biencoder.labels.graders import load_grader
from unimoe.studies.biencoder.labels.labelling import (
    Agreement,
    agreement,
    candidates_of,
    clear_shards,
    grades_of,
    is_written,
    labels_fingerprint,
    probabilities,
    write_labels,
)
from unimoe.studies.biencoder.labels.queries import sample_queries
from unimoe.studies.biencoder.training.search import biencoder_splits
from unimoe.studies.biencoder.training.trainer import BiEncoderTrainer
from unimoe.studies.common.splits import Splits
from unimoe.trec import Qrels


def train_and_report(config: BiEncoderConfig, device: torch.device, given: list[str]) -> None:
    """Train one bi-encoder, search the test split before and after, print what has changed.

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
    """Train, or find trained; progress and what is odd in the data go to stderr."""
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
        stderr.print("the frozen base embeds what the cache lacks, once for every training", style="dim")
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


def label_pairs(config: LabelConfig, folder: Path, device: torch.device) -> None:
    """Sample queries, find candidates, grade them, write a collection; prints what it holds and how it agrees.

    Raises:
        UnimoeError: the collection or the reranker cannot be had, or nothing is left to write.
    """
    collection = load_collection(config.collection, config.split)
    test = load_collection(config.collection, config.test_split) if config.test_split else None
    sampled = sample_queries(collection.queries, config.sampling)
    reasons = "".join(f"; {reason}: {count:,}" for reason, count in sorted(sampled.rejected.items()))
    stderr.print(f"{len(sampled.queries):,} of {sampled.passed:,} queries that pass{reasons}", soft_wrap=True)
    grader, shards = load_grader(config, device), folder.with_name(f".{folder.name}.shards")
    fingerprint = labels_fingerprint(config, collection, grader)
    done = is_written(folder, fingerprint)
    steps = Steps(2)
    with steps.step(f"{config.collection}: BM25, {config.depth:,} deep", None) as step:
        run = candidates_of(collection, sampled.queries, config)
        pairs = sum(map(len, run.values()))
        step.outcome = f"{pairs:,} pairs"
    with steps.step(f"{config.reranker}: pairs graded", pairs) as step:
        if done:
            kept = load_collection(f"path:{folder}", "train").qrels
            qrels = {key: dict.fromkeys(found, 0) | kept.get(key, {}) for key, found in run.items() if found}
            step.outcome = "already done"
        else:
            scores = probabilities(grader, collection, sampled.queries, run, shards, config.shard_queries, step.advance)
            qrels = grades_of(scores, config.thresholds)
            write_labels(folder, collection, sampled.queries, qrels, test, fingerprint)
            clear_shards(shards)
    _print_labels(qrels, len(config.thresholds), agreement(qrels, collection.qrels), folder)


def _print_labels(qrels: Qrels, highest: int, found: Agreement | None, folder: Path) -> None:
    grades = [grade for judged in qrels.values() for grade in judged.values()]
    for grade in range(highest, 0, -1):
        stdout.print(f"{f'grade {grade}':<16}{grades.count(grade):,} pairs")
    queries = sum(any(judged.values()) for judged in qrels.values())
    stdout.print(f"{'queries':<16}{queries:,} with a pseudo-positive")
    if found is None:
        stdout.print("agreement       no labelled query has real judgments")
    else:
        stdout.print(
            f"{'precision':<16}{found.precision:.4f} ({found.both:,} of {found.pseudo:,} pseudo-positives are judged "
            f"relevant, {found.queries:,} queries; what is not judged counts as not relevant)\n"
            f"{'recall':<16}{found.recall:.4f} (of {found.real:,} judged relevant, {found.found:,} of which are "
            "candidates)",
            soft_wrap=True,
        )
    stdout.print(f"{'collection':<16}path:{folder}", soft_wrap=True)
