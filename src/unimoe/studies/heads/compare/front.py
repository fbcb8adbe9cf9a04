"""The choice of a setting on the front of relevance and diversity on dev."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.objectives import diversity, first_documents, pareto_front
from unimoe.studies.heads.model import pool_scores
from unimoe.studies.heads.pools import PoolSet


def mean_diversity(weight: Tensor, pools: PoolSet, config: TrainConfig) -> float:
    """Return the mean diversity of each query's first documents, in a head's order."""
    scores = pool_scores(weight, pools, config).masked_fill(~pools.valid, -torch.inf).unsqueeze(2)
    top = first_documents(scores, pools.valid, config.ndcg_k)
    return float(diversity(top, pools.documents[pools.rows]).mean())


def chosen_on_front(points: Sequence[tuple[float, float]], give_up: float) -> int:
    """Return the index of the most diverse point on the front that gives up little relevance; of equals the first.

    Args:
        points: relevance and diversity of each.
        give_up: the most relevance below the best.
    """
    best = max(relevance for relevance, _ in points)
    eligible = [index for index in pareto_front(points) if points[index][0] >= best - give_up]
    return max(eligible, key=lambda index: (points[index][1], -index))
