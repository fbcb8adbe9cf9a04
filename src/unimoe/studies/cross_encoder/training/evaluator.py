"""Reranking of dev candidates while a cross-encoder trains, by the scoring that results are made with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers.base.evaluation import BaseEvaluator

from unimoe.evaluation.reranking_eval import rerank_run
from unimoe.metrics import score_run
from unimoe.studies.cross_encoder.reranking_set import CrossEncoderReranker, RerankingSet

MEAN = "mean_ndcg@10"
"""What a checkpoint is chosen by."""

_METRICS = ("ndcg@10", "mrr@10", "map")


class DevEvaluator(BaseEvaluator):
    """Scores a model on dev sets by nDCG@10, MRR@10 and MAP, and by their mean nDCG@10.

    Args:
        sets: what is reranked, at least one.
        batch_size: pairs of one forward pass.
    """

    def __init__(self, sets: Sequence[RerankingSet], batch_size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sets, self._batch_size = tuple(sets), batch_size
        self.primary_metric = MEAN

    def __call__(self, model: Any, *_: Any, **__: Any) -> dict[str, float]:
        """``{"scifact_ndcg@10": .., ..., "mean_ndcg@10": ..}``."""
        found: dict[str, float] = {}
        means, reranker = [], CrossEncoderReranker(model, self._batch_size)
        for data in self._sets:
            run, _scored = rerank_run(reranker, data.collection, data.candidates)
            scores = score_run(data.collection.qrels, run, _METRICS, data.collection.relevance_level).aggregate
            found |= {f"{data.name}_{metric}": scores[metric] for metric in _METRICS}
            means.append(scores["ndcg@10"])
        return found | {MEAN: sum(means) / len(means)}
