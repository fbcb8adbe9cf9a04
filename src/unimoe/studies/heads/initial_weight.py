"""The weights that the training of a projection starts from."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unimoe.core.errors import DataError


def initial_weight(kind: str, documents: Tensor, outputs: int, seed: int) -> Tensor:
    """Return the first weights of a training.

    Args:
        kind: ``pca``, ``orthogonal`` or ``normal``, see ``TrainConfig.init``.
        documents: embeddings ``(N, D)`` for ``pca``.
        outputs: rows of the matrix.
        seed: of the random kinds.

    Returns:
        ``(outputs, D)`` float32 on the CPU. More outputs than inputs leave the rows beyond D zero in ``pca``.

    Raises:
        DataError: an embedding is not finite.
    """
    inputs = documents.shape[1]
    generator = torch.Generator().manual_seed(seed)
    if kind == "normal":
        return torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)
    if kind == "orthogonal":
        weight = torch.empty(outputs, inputs)
        nn.init.orthogonal_(weight, generator=generator)
        return weight
    if not bool(documents.isfinite().all()):
        raise DataError("an embedding is not finite; encode the corpus again, with model.dtype float32")
    moment = documents.double().cpu().T @ documents.double().cpu()
    directions = torch.linalg.eigh(moment).eigenvectors.flip(1).T[:outputs]
    # The sign of an eigenvector is arbitrary: the largest entry is made positive, so that machines agree.
    signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    weight = torch.zeros(outputs, inputs)
    weight[: len(directions)] = (directions * signs).float()
    return weight
