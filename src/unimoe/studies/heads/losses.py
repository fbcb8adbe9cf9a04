"""The gradient losses over the scores of pools: the baselines that evolution strategies are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unimoe.config.training import LOSSES, LossConfig


def head_loss(
    name: str,
    scores: Tensor,
    grades: Tensor,
    valid: Tensor,
    temperature: float,
    k: int,
    ties: torch.Generator,
    label_temperature: float = 1.0,
) -> Tensor:
    """Compute a loss of the registry over pools. Queries without a relevant document in their pool add nothing.

    Args:
        name: of the loss.
        scores: of the documents of each pool, ``(B, P)``.
        grades: their grades, ``(B, P)``.
        valid: which places hold a document, ``(B, P)``.
        temperature: scores are divided by it.
        k: the cutoff of nDCG, for LambdaLoss and ``pg_rank``.
        ties: shuffles documents of equal grade, where the loss needs an order: that of a pool means nothing. Draws the
            rankings of ``pg_rank``.
        label_temperature: ListNet divides grades by it.

    Returns:
        A scalar.
    """
    from unimoe.training.losses.listwise import ListwiseLoss

    rows = ((grades > 0) & valid).any(1).nonzero().flatten().tolist()
    if not rows:
        return 0.0 * scores.sum()
    options: dict[str, Any] = {"respect_input_order": False, "ties": "shuffle"} if LOSSES[name].in_order else {}
    if name == "lambdaloss":
        options["k"] = k
    if name == "listnet":
        options["label_temperature"] = label_temperature
    if name == "pg_rank":
        options["measure"] = f"ndcg@{k}"
    if name == "approxndcg":  # divides differences of scores, not the scores
        options["temperature"], temperature = temperature, 1.0
    loss = ListwiseLoss(LossConfig.model_validate({"name": name, **options}), generator=ties)
    found: Tensor = loss(
        [scores[row][valid[row]] / temperature for row in rows], [grades[row][valid[row]] for row in rows]
    )
    return found
