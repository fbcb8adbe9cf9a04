"""Bi-encoders in a study: settings chosen on dev, and the test split searched as by BM25 and the untrained encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from unimoe.analysis.arms import FIRST_STAGE
from unimoe.analysis.statistics.variance import Array
from unimoe.data.catalog import result_name
from unimoe.evaluation.retriever import fused_name, retriever_name
from unimoe.evaluation.tasks.search import TASK
from unimoe.formats.runs import read_run
from unimoe.metrics import score_run
from unimoe.metrics.scoring import from_grade
from unimoe.models.embedder import Advance
from unimoe.results import Task, run_path
from unimoe.results.folder import Results
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.data import biencoder_splits
from unimoe.studies.biencoder.evaluation import (
    base_retriever,
    evaluate,
    retrieval_experiment,
    trained_retriever,
)
from unimoe.studies.biencoder.trainer import BiEncoderTrainer
from unimoe.studies.common.family import Family, Sample
from unimoe.studies.common.splits import Splits

_BATCH = 4  # queries of a batch, and of dev, in a plan


class BiEncoderFamily(Family[BiEncoderConfig, BiEncoderTrainer]):
    """Bi-encoders, each trained by contrast."""

    config_type = BiEncoderConfig
    dtype_key = "encoder.dtype"
    task: ClassVar[Task] = TASK
    metrics = ("recall_of_retrieved@10", "recall@10", "ndcg@10", "mrr@10", "recall@100")

    @cached_property
    def splits(self) -> Splits:
        """The queries that train, choose and report."""
        return biencoder_splits(self.base)

    @property
    def datasets(self) -> list[str]:
        """The collection's name."""
        return [result_name(self.base.collection)]

    @property
    def collection(self) -> str:
        """The collection's name."""
        return self.datasets[0]

    def training(self, config: BiEncoderConfig, arm: str) -> BiEncoderTrainer:
        """Return a training on the study's splits."""
        return BiEncoderTrainer(config.model_copy(update={"arm": arm}), self.device, self.splits)

    def sample(self, config: BiEncoderConfig, arm: str) -> Sample:
        """Return a training that searches a part of dev, and mines nothing by the model, unless its base is frozen.

        Its batches are small: as many queries in more steps take as long.
        """
        if config.freeze_base:
            return super().sample(config, arm)
        mined = config.negatives.model_copy(update={"source": "bm25", "refresh_every": None})
        small = {"negatives": mined, "batch_size": min(_BATCH, config.batch_size)}
        training = self.training(config.model_copy(update=small), arm)
        found = Sample(training, training.steps, training.evaluations, self.test_to_dev(training))
        whole, few = training.dev, training.dev.sample_queries(_BATCH)
        training.dev = replace(few, corpus=dict(islice(few.corpus.items(), 4 * _BATCH)))
        texts = [len(one.corpus) + len(one.qrels) for one in (whole, training.dev)]
        return found._replace(dev=texts[0] / texts[1])

    def decides_time(self, config: BiEncoderConfig) -> dict[str, Any]:
        """Return what decides the time: not the loss, which is little work."""
        return {key: value for key, value in super().decides_time(config).items() if key != "loss"}

    def dev(self, training: BiEncoderTrainer) -> dict[str, float]:
        """Return the dev metric before training and at its best epoch."""
        facts = training.fit()
        return {"val": facts["val"], "start": facts["start"], "best": facts["epoch"], "seconds": facts["seconds"]}

    def test(self, training: BiEncoderTrainer, arm: str, advance: Advance) -> float:
        """Search the test split with the best epoch, alone and fused with BM25."""
        before = base_retriever(training.config, self.splits, training.device)
        after = trained_retriever(training.best_dir, before, training.device)
        evaluate(training.config, self.splits, [after], [*self.given])
        advance(1)
        path = run_path(self.root, arm, training.config.seed, self.task, self.datasets[0])
        return float(self._scored(read_run(path), self.metrics[0]).mean())

    def test_to_dev(self, training: BiEncoderTrainer) -> float:
        """Return documents of the corpus for each that dev searches: their vectors are what takes time."""
        return len(self.splits.test.corpus) / max(1, len(training.dev.corpus))

    def untrained(self) -> dict[str, Callable[[BiEncoderConfig], None]]:
        """Return the encoder before training: its search writes the results of BM25 and of the fusion of both too."""
        encoder = retriever_name(retrieval_experiment(self.base), None, None)

        def search(config: BiEncoderConfig) -> None:
            evaluate(config, self.splits, [base_retriever(config, self.splits, self.device)], [*self.given])

        return {encoder: search, FIRST_STAGE: lambda _: None, fused_name(encoder): lambda _: None}

    def is_tested(self, training: BiEncoderTrainer, arm: str, seed: int | None) -> bool:
        """Return whether the fusion with BM25 is written, which comes last."""
        return super().is_tested(training, fused_name(arm), seed)

    def identity(self, training: BiEncoderTrainer) -> list[str]:
        """Return hashes of the training and of the test split."""
        return [training.state.fingerprint, self.splits.test.content_hash]

    def notes(self) -> Sequence[str]:
        """Say which seeds pair."""
        return ("Seeds pair between arms of one encoder and batch size: they share the batches and the first weights.",)

    def scores(self, results: Results, arm: str, key: str, seeds: Sequence[int], metric: str) -> Array:
        """Return scores; trec_eval's recall@10 is taken from the runs, as results do not hold it."""
        if metric != "recall@10":
            return super().scores(results, arm, key, seeds, metric)
        held: list[int | None] = [seed for seed in results.seeds(arm, key) if seed in seeds]
        runs = (read_run(run_path(self.root, arm, seed, self.task, self.datasets[0])) for seed in held or [None])
        return np.array([self._scored(run, metric) for run in runs])

    def _scored(self, run: dict[str, dict[str, float]], metric: str) -> Array:
        """Return the scores of a run by query, in the order of their ids."""
        test = self.splits.test
        qrels = from_grade(test.qrels, self.base.relevance_threshold)
        found = score_run(qrels, run, [metric], test.relevance_level).per_query[metric]
        return np.array([found[query_id] for query_id in sorted(found)])
