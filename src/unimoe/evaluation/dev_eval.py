"""Scores an arm in training on dev, as it is later scored on test, for early stopping and the best checkpoint."""

from __future__ import annotations

from functools import cached_property

from unimoe.config import Experiment
from unimoe.evaluation.datasets import Dataset, LoadedDataset
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.tasks.embed import evaluate_embedding_collection
from unimoe.evaluation.tasks.rerank import rerank_dataset
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.bm25 import engine_of

_METRIC = "ndcg@10"


class DevEvaluation:
    """Scores models on the queries of ``training.dev``, on the tasks that an arm is trained for."""

    def __init__(self, experiment: Experiment, arm: str) -> None:
        self._experiment, self._arm, self._task = experiment, arm, experiment.arm_named(arm).task

    def prepare(self) -> None:
        """Load queries, documents and candidates."""
        if self._task != "emb_only":  # each part is loaded when it is first read, and kept
            _ = self._data.to_read
        if self._task != "rank_only":
            _ = self._data.read

    def __call__(self, model: UnimodelForExp1) -> dict[str, float]:
        """Return ``{"reranking/ndcg@10": .., "embedding/ndcg@10": ..}``, only the tasks that the arm is trained for."""
        scores, data, evaluation = {}, self._data, self._experiment.evaluation
        if self._task != "emb_only":
            reranked = rerank_dataset(PairModelReranker(model, **evaluation.batches), data)
            scores[f"reranking/{_METRIC}"] = reranked.aggregate[_METRIC]
        if self._task != "rank_only":
            prompts = TaskPrompts(evaluation.mteb)
            wrapped = MTEBEncoderWrapper(model, name=self._arm, identity={}, prompts=prompts, **evaluation.batches)
            ranked = evaluate_embedding_collection(wrapped, data.pooled, passages=data.read.corpus)
            scores[f"embedding/{_METRIC}"] = ranked.scores.aggregate[_METRIC]
        return scores

    @cached_property
    def _data(self) -> LoadedDataset:
        training, evaluation = self._experiment.training, self._experiment.evaluation
        dev = training.dev
        settings = evaluation.model_copy(update={"first_stage": engine_of(evaluation), "depth": dev.depth})
        return LoadedDataset(Dataset(training.collection, dev.split, settings, dev.queries, dev.pool))
