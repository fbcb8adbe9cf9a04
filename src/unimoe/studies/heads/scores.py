"""A head's scores of pools, and what they are worth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unimoe.errors import DataError
from unimoe.metrics import DEFAULT_METRICS, Scores, score_run
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.model import project, similarities
from unimoe.studies.heads.pools import PoolSet

_CHUNK = 256  # queries scored at a time


def main_metric(config: TrainConfig) -> str:
    """What a training is chosen by: nDCG at the config's cutoff."""
    return f"ndcg@{config.ndcg_k}"


def evaluate_head(weight: Tensor, pools: PoolSet, config: TrainConfig) -> Scores:
    """The usual measures of a head on pools, by pytrec_eval; queries without a positive in their pool count 0.

    Raises:
        DataError: a score is not finite.
    """
    metrics = tuple(dict.fromkeys((main_metric(config), *DEFAULT_METRICS)))
    return score_run(pools.qrels, pools.run(pool_scores(weight, pools, config)), metrics, pools.relevance_level)


def chosen_by(weight: Tensor, pools: PoolSet, config: TrainConfig) -> float:
    """The main metric alone."""
    metric = main_metric(config)
    run = pools.run(pool_scores(weight, pools, config))
    return score_run(pools.qrels, run, [metric], pools.relevance_level).aggregate[metric]


@torch.no_grad()
def pool_scores(weight: Tensor, pools: PoolSet, config: TrainConfig) -> Tensor:
    """The scores ``(Q, P)`` of every pool; those of padded places mean nothing.

    Raises:
        DataError: a score is not finite.
    """
    queries = project(weight, pools.queries, config.scoring)
    documents = project(weight, pools.documents, config.scoring)  # each once, though many pools hold it
    parts = [slice(begin, begin + _CHUNK) for begin in range(0, len(pools), _CHUNK)]
    scores = torch.cat([similarities(queries[part], documents[pools.rows[part]]) for part in parts])
    if not math.isfinite(float(scores.sum())):
        raise DataError(f"{pools.name}: a score is not finite; an embedding or a weight is not")
    return scores
